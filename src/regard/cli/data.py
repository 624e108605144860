"""`regard data check|clean|join|make`: look over data files, clean them, join their rows, or make some."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import click

from regard.cli.options import Option, changed_settings, knob_options, verb
from regard.cli.output import print_result, write_lines
from regard.config.data import ReadConfig
from regard.errors import DataError, UsageError

READING = knob_options(ReadConfig, section="Reading files")
FILES = click.Argument(["files"], nargs=-1, required=True, metavar="FILES…")
PLACES = "one file of two columns (.tsv, .jsonl; .gz too) or two parallel files"
OUT = Option(["--out"], multiple=True, required=True, metavar="FILE …", help=f"where to write: {PLACES}")

CHECK = """Report counts, lengths, repeated and suspicious pairs of FILES, and what other sets share with them.

\b
  regard data check train.en train.de --valid val.en val.de --test test.en test.de
"""
CLEAN = """Write the pairs of FILES that pass: not repeated, not too long, not in another set.

\b
  regard data clean train.en train.de --exclude test.en test.de --out clean.en clean.de
  regard data clean pairs.csv --ratio 3 --max-words 100 --out pairs.tsv
"""
JOIN = """Write rows of one to --most pairs of FILES joined, to train and test on texts of many lengths.

Every pair is used once in a pass; each pass joins others.

\b
  regard data join train.en train.de --most 5 --passes 3 --out long.en long.de
"""
MAKE = """Write made data, exact and without end: dates, numbers (extra `made`), spoken, copy, reverse or sort.

A target belongs to one split for good, so that test data never stands in training data.

\b
  regard data make dates --count 50000 --out dates.tsv
  regard data make sort --count 1000 --split test --out test.in test.out
  regard data make reverse --lengths 24-30 --out long.tsv
"""


def _set(name: str, what: str) -> Option:
    return Option([f"--{name}"], multiple=True, metavar="FILE …", help=f"{what}: two parallel files or one")


@verb(
    CHECK,
    [FILES, _set("valid", "the validation set"), _set("test", "the test set"), *READING],
    greedy=("--valid", "--test"),
)
def check(
    context: click.Context, files: tuple[str, ...], valid: tuple[str, ...], test: tuple[str, ...], as_json: bool
) -> None:
    """Report on data files."""
    from regard.data.check import check_pairs
    from regard.data.pairs import read_pairs

    reading = ReadConfig().override(changed_settings(context))
    others = {name: read_pairs(paths, reading) for name, paths in (("valid", valid), ("test", test)) if paths}
    report = check_pairs(read_pairs(files, reading), others)
    print_result(report.to_dict(), [report.format()], as_json)


@verb(
    CLEAN,
    [
        FILES,
        OUT,
        Option(["--min-words"], type=click.IntRange(0), default=1, help="fewest words of a side [default: 1]"),
        Option(["--max-words"], type=click.IntRange(1), default=250, help="most words of a side [default: 250]"),
        Option(
            ["--ratio"],
            type=float,
            default=0.0,
            help="how many times longer than usual a side may be beside the other; 0: any [default: 0]",
        ),
        Option(["--keep-repeated"], is_flag=True, help="keep pairs that stand in the files before"),
        Option(["--drop-identical"], is_flag=True, help="drop pairs whose sides are the same"),
        _set("exclude", "a set whose source texts must not be kept"),
        *READING,
    ],
    greedy=("--out", "--exclude"),
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
    """Write clean pairs."""
    from regard.data.check import clean_pairs
    from regard.data.pairs import read_pairs

    reading = ReadConfig().override(changed_settings(context))
    pairs = read_pairs(files, reading)
    cleaned = clean_pairs(
        pairs,
        min_words=min_words,
        max_words=max_words,
        ratio=ratio,
        deduplicate=not keep_repeated,
        drop_identical=drop_identical,
        exclude=[read_pairs(exclude, reading)] if exclude else [],
    )
    _write_pairs(out, list(zip(cleaned.pairs.source, cleaned.pairs.target, strict=True)))
    kept = len(cleaned.pairs)
    removed = [f"  {count:,} {reason}" for reason, count in cleaned.removed.items()]
    lines = [f"{kept:,} of {len(pairs):,} pairs kept in {' and '.join(out)}", *removed]
    print_result(
        {"read": pairs.num_read, "rejected": pairs.rejected, "kept": kept, "removed": cleaned.removed}, lines, as_json
    )


@verb(
    MAKE,
    [
        click.Argument(["kind"], metavar="dates|numbers|spoken|copy|reverse|sort"),
        OUT,
        Option(["--count"], type=click.IntRange(0), default=10_000, help="pairs to make [default: 10000]"),
        Option(["--seed"], type=click.IntRange(0), default=1, help="seed of the choice of pairs [default: 1]"),
        Option(
            ["--split"],
            type=click.Choice(["train", "valid", "test", "all"]),
            default="train",
            help="which targets: one in twenty is for validation, one for testing [default: train]",
        ),
        Option(
            ["--languages"], default="", metavar="CODES", help="for dates and numbers: de,fr,… [default: some twenty]"
        ),
        Option(["--alignment"], metavar="FILE", help="for spoken: write the word links here, 0-0 1-2 … a line"),
        Option(["--lengths"], metavar="LOW-HIGH", help="for copy, reverse and sort: letters of a row [default: 3-12]"),
    ],
    greedy=("--out",),
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
    alignment: str | None,
    as_json: bool,
) -> None:
    """Write made pairs."""
    from regard.data.synthetic import generate_rows

    codes = [code.strip() for code in languages.split(",") if code.strip()]
    rows = list(generate_rows(kind, count, seed, split=split, languages=codes, lengths=_range(lengths)))
    if alignment and rows and not rows[0].links:
        raise UsageError(f"the word links of {kind} are not known: --alignment is for spoken")
    _write_pairs(out, [(row.source, row.target) for row in rows])
    if alignment:
        write_lines(alignment, (" ".join(f"{read}-{written}" for read, written in row.links) for row in rows))
    print_result({"pairs": count, "files": list(out)}, [f"{count:,} pairs written to {' and '.join(out)}"], as_json)


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal()):
        raise UsageError(f"--lengths {text}: give the fewest and the most letters, as in 24-30")
    return int(low), int(high)


@verb(
    JOIN,
    [
        FILES,
        OUT,
        Option(["--most"], type=click.IntRange(1), default=5, help="most pairs joined to one row [default: 5]"),
        Option(["--passes"], type=click.IntRange(1), default=1, help="times that every pair is used [default: 1]"),
        Option(["--seed"], type=click.IntRange(0), default=1, help="seed of who is joined with whom [default: 1]"),
        *READING,
    ],
    greedy=("--out",),
)
def join(
    context: click.Context,
    files: tuple[str, ...],
    out: tuple[str, ...],
    most: int,
    passes: int,
    seed: int,
    as_json: bool,
) -> None:
    """Write joined pairs."""
    from regard.data.pairs import join_pairs, read_pairs

    pairs = read_pairs(files, ReadConfig().override(changed_settings(context)))
    made = list(join_pairs(pairs, max_pairs=most, passes=passes, seed=seed))
    _write_pairs(out, made)
    lines = [f"{len(pairs):,} pairs joined to {len(made):,} rows in {' and '.join(out)}"]
    print_result(
        {"read": pairs.num_read, "rejected": pairs.rejected, "rows": len(made), "files": list(out)}, lines, as_json
    )


def _write_pairs(out: tuple[str, ...], pairs: list[tuple[str, str]]) -> None:
    """Write pairs in the form that the names ask for."""
    if len(out) == 2:
        for path, side in zip(out, (0, 1), strict=True):
            write_lines(path, (pair[side] for pair in pairs))
    elif len(out) != 1:
        raise UsageError(f"--out names {len(out)} files: {PLACES} are needed")
    elif out[0].removesuffix(".gz").endswith(".jsonl"):
        write_lines(out[0], (json.dumps({"source": s, "target": t}, ensure_ascii=False) for s, t in pairs))
    elif out[0].removesuffix(".gz").endswith((".tsv", ".tab")):
        write_lines(out[0], _tab_separated(out[0], pairs))
    else:
        raise UsageError(f"--out {out[0]}: one file must end in .tsv or .jsonl (.gz may follow); or name two files")


def _tab_separated(path: str, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for number, (source, target) in enumerate(pairs, 1):
        if "\t" in source or "\t" in target:
            raise DataError(
                "a text holds a tab", location=f"{path}:{number}", advice="write two files or .jsonl instead"
            )
        yield f"{source}\t{target}"


HELP = """Check, clean, join or make data files.

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
