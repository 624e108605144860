"""`regard data check|clean|join|make`: check, clean, join and generate parallel data files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TypedDict

import click

from regard.cli.model_options import FILES, PAIR_READ_OPTIONS
from regard.cli.options import Option, changed_settings, verb
from regard.cli.output import note_each, print_result, write_lines
from regard.config.data import ReadConfig
from regard.errors import DataError, UsageError

OUTPUT_FILES = "one file of two columns (.tsv, .jsonl; .gz too) or two parallel files"
OUT = Option(["--out"], multiple=True, required=True, metavar="FILE …", help=f"Output: {OUTPUT_FILES}.")

CHECK = """Report counts, lengths, repeated and suspicious pairs of FILES, and their overlap with other splits.

\b
  regard data check train.en train.de --valid val.en val.de --test test.en test.de
"""
CLEAN = """Write the pairs of FILES that pass the filters: not repeated, not too long, not in another split.

\b
  regard data clean train.en train.de --exclude test.en test.de --out clean.en clean.de
  regard data clean pairs.csv --ratio 3 --max-words 100 --out pairs.tsv
"""
JOIN = """Join one to --max-pairs pairs of FILES to a row, for training and testing on texts of many lengths.

Each pass uses every pair once and joins other pairs.

\b
  regard data join train.en train.de --max-pairs 5 --passes 3 --out long.en long.de
"""
MAKE = """Generate synthetic pairs: dates, numbers (extra `numbers`), spoken, copy, reverse, sort or recall.

Each target belongs to one split, so that no test pair occurs in training data; of recall, each source.

A source of recall is letters with one digit among them, its target the digit: `c a 7 f b d` → `7`. The letters after
the digit are the distance, between LOW and HIGH of --distance with equal probability; every source has HIGH letters.

\b
  regard data make dates --count 50000 --out dates.tsv
  regard data make sort --count 1000 --split test --out test.in test.out
  regard data make reverse --lengths 24-30 --out long.tsv
  regard data make recall --distance 10-200 --out recall.tsv
"""


class CleanedDict(TypedDict):
    """What `regard data clean --json` prints."""

    read: int  # pairs of the files
    rejected: int  # rows that could not be read, with --lenient
    kept: int
    removed: dict[str, int]  # reason → pairs
    out: list[str]  # files


class GeneratedDict(TypedDict):
    """What `regard data make --json` prints."""

    pairs: int
    out: list[str]  # files


class JoinedDict(TypedDict):
    """What `regard data join --json` prints."""

    read: int  # pairs of the files
    rejected: int  # rows that could not be read, with --lenient
    rows: int  # written
    out: list[str]  # files


def _split_option(name: str, noun: str) -> Option:
    return Option(
        [f"--{name}"], multiple=True, metavar="FILE …", help=f"{noun}: two parallel files, or one with two columns."
    )


@verb(
    CHECK,
    [FILES, _split_option("valid", "Validation split"), _split_option("test", "Test split"), *PAIR_READ_OPTIONS],
    greedy=("--valid", "--test"),
    output=["regard.data.check:CorpusReportDict"],
)
def check(
    context: click.Context, files: tuple[str, ...], valid: tuple[str, ...], test: tuple[str, ...], as_json: bool
) -> None:
    """Report on data files."""
    from regard.data.check import check_pairs
    from regard.data.pairs import read_pairs

    read_config = ReadConfig().override(changed_settings(context))
    splits = {"valid": valid, "test": test}
    other_splits = {name: read_pairs(paths, read_config) for name, paths in splits.items() if paths}
    pairs = read_pairs(files, read_config)
    for split in (pairs, *other_splits.values()):
        note_each(split.notes)
    report = check_pairs(pairs, other_splits)
    print_result(report.to_dict(), [report.format()], as_json)


@verb(
    CLEAN,
    [
        FILES,
        OUT,
        Option(["--min-words"], type=click.IntRange(0), default=1, help="Minimum words of each side. [default: 1]"),
        Option(["--max-words"], type=click.IntRange(1), default=250, help="Maximum words of each side. [default: 250]"),
        Option(
            ["--ratio"],
            type=float,
            default=0.0,
            help="Maximum length ratio of the two sides, relative to the mean ratio; 0 allows any. [default: 0]",
        ),
        Option(["--keep-repeated"], is_flag=True, help="Keep repeated pairs."),
        Option(["--drop-identical"], is_flag=True, help="Drop pairs with identical sides."),
        _split_option("exclude", "Split whose source texts are dropped"),
        *PAIR_READ_OPTIONS,
    ],
    greedy=("--out", "--exclude"),
    output=[CleanedDict],
)
def clean(
    context: click.Context,
    files: tuple[str, ...],
    out: tuple[str, ...],
    min_words: int,
    max_words: int,
    ratio: float,
    keep_repeated: bool,
    drop_identical: bool,
    exclude: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the pairs that pass the filters."""
    from regard.data.check import clean_pairs
    from regard.data.pairs import read_pairs

    read_config = ReadConfig().override(changed_settings(context))
    pairs = read_pairs(files, read_config)
    note_each(pairs.notes)
    cleaned = clean_pairs(
        pairs,
        min_words=min_words,
        max_words=max_words,
        ratio=ratio,
        deduplicate=not keep_repeated,
        drop_identical=drop_identical,
        exclude=[read_pairs(exclude, read_config)] if exclude else [],
    )
    _write_pairs(out, list(zip(cleaned.pairs.source, cleaned.pairs.target, strict=True)))
    num_kept = len(cleaned.pairs)
    lines = [f"{num_kept:,} of {len(pairs):,} pairs kept in {' and '.join(out)}"]
    lines += [f"  {count:,} {reason}" for reason, count in cleaned.removed.items()]
    counts: CleanedDict = {
        "read": pairs.num_read,
        "rejected": pairs.num_rejected,
        "kept": num_kept,
        "removed": cleaned.removed,
        "out": list(out),
    }
    print_result(counts, lines, as_json)


@verb(
    MAKE,
    [
        click.Argument(["kind"], metavar="dates|numbers|spoken|copy|reverse|sort|recall"),
        OUT,
        Option(["--count"], type=click.IntRange(0), default=10_000, help="Number of pairs. [default: 10000]"),
        Option(["--seed"], type=click.IntRange(0), default=1, help="Random seed. [default: 1]"),
        Option(
            ["--split"],
            type=click.Choice(["train", "valid", "test", "all"]),
            default="train",
            help="Split to generate; a twentieth of the targets is for validation, one for testing. [default: train]",
        ),
        Option(
            ["--languages"],
            default="",
            metavar="CODES",
            help="Languages of dates and numbers, as in de,fr. [default: about twenty languages]",
        ),
        Option(
            ["--alignment"],
            metavar="FILE",
            help="Write the word alignments of spoken or recall here, one line per pair: 0-0 1-2 …",
        ),
        Option(
            ["--lengths"],
            metavar="LOW-HIGH",
            help="Range of letters per row of copy, reverse and sort. [default: 3-12]",
        ),
        Option(
            ["--distance"],
            metavar="LOW-HIGH",
            help="Range of letters after the digit of recall. [default: 0-40]",
        ),
    ],
    greedy=("--out",),
    output=[GeneratedDict],
)
def make(
    context: click.Context,
    kind: str,
    out: tuple[str, ...],
    count: int,
    seed: int,
    split: str,
    languages: str,
    lengths: str | None,
    distance: str | None,
    alignment: str | None,
    as_json: bool,
) -> None:
    """Write synthetic pairs."""
    from regard.data.synthetic import generate_rows

    codes = [code.strip() for code in languages.split(",") if code.strip()]
    generated = generate_rows(
        kind,
        count,
        seed,
        split=split,
        languages=codes,
        lengths=_parse_range("--lengths", lengths),
        distances=_parse_range("--distance", distance),
    )
    rows = list(generated)
    if alignment and rows and not rows[0].links:
        raise UsageError(f"{kind} has no word alignments: --alignment is for spoken and recall")
    _write_pairs(out, [(row.source, row.target) for row in rows])
    if alignment:
        write_lines(alignment, (" ".join(f"{source}-{target}" for source, target in row.links) for row in rows))
    result: GeneratedDict = {"pairs": count, "out": list(out)}
    print_result(result, [f"{count:,} pairs written to {' and '.join(out)}"], as_json)


def _parse_range(option: str, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal()):
        raise UsageError(f"{option} {text}: a minimum and a maximum are needed, as in 24-30")
    return int(low), int(high)


@verb(
    JOIN,
    [
        FILES,
        OUT,
        Option(["--max-pairs"], type=click.IntRange(1), default=5, help="Maximum pairs in a row. [default: 5]"),
        Option(["--passes"], type=click.IntRange(1), default=1, help="Passes over the pairs. [default: 1]"),
        Option(["--seed"], type=click.IntRange(0), default=1, help="Random seed of the joins. [default: 1]"),
        *PAIR_READ_OPTIONS,
    ],
    greedy=("--out",),
    output=[JoinedDict],
)
def join(
    context: click.Context,
    files: tuple[str, ...],
    out: tuple[str, ...],
    max_pairs: int,
    passes: int,
    seed: int,
    as_json: bool,
) -> None:
    """Write joined pairs."""
    from regard.data.pairs import join_pairs, read_pairs

    pairs = read_pairs(files, ReadConfig().override(changed_settings(context)))
    note_each(pairs.notes)
    rows = list(join_pairs(pairs, max_pairs=max_pairs, passes=passes, seed=seed))
    _write_pairs(out, rows)
    counts: JoinedDict = {
        "read": pairs.num_read,
        "rejected": pairs.num_rejected,
        "rows": len(rows),
        "out": list(out),
    }
    lines = [f"{len(pairs):,} pairs joined to {len(rows):,} rows in {' and '.join(out)}"]
    print_result(counts, lines, as_json)


def _write_pairs(out: tuple[str, ...], pairs: list[tuple[str, str]]) -> None:
    """Write pairs in the format that the file names imply."""
    if len(out) == 2:
        source_path, target_path = out
        write_lines(source_path, (source for source, _ in pairs))
        write_lines(target_path, (target for _, target in pairs))
        return
    if len(out) != 1:
        raise UsageError(f"--out names {len(out)} files: {OUTPUT_FILES} are needed")
    path = out[0]
    name = path.removesuffix(".gz")
    if name.endswith(".jsonl"):
        objects = ({"source": source, "target": target} for source, target in pairs)
        write_lines(path, (json.dumps(pair, ensure_ascii=False) for pair in objects))
    elif name.endswith((".tsv", ".tab")):
        write_lines(path, _tab_separated(path, pairs))
    else:
        raise UsageError(f"--out {path}: one file must end in .tsv or .jsonl (.gz may follow); or name two files")


def _tab_separated(path: str, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for line_number, (source, target) in enumerate(pairs, 1):
        if "\t" in source or "\t" in target:
            location = f"{path}:{line_number}"
            raise DataError("a text contains a tab", location=location, advice="write two files or .jsonl instead")
        yield f"{source}\t{target}"


HELP = """Check, clean, join or generate data files.

\b
  regard data check train.en train.de
  regard data make dates --out dates.tsv
"""


data = click.Group(
    "data",
    commands=[check, clean, join, make],
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)
