"""`regard data check|clean|join|make`: check, clean, join and generate parallel data files."""

from __future__ import annotations

from typing import TypedDict

import click

from regard.cli.data_make import make
from regard.cli.data_output import OUT, write_pairs
from regard.cli.model_options import FILES, PAIR_READ_OPTIONS
from regard.cli.options import Option, changed_settings, verb
from regard.cli.output import note_each, print_result
from regard.config.data import ReadConfig

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


class CleanedDict(TypedDict):
    """What `regard data clean --json` prints."""

    read: int  # pairs of the files
    rejected: int  # rows that could not be read, with --lenient
    kept: int
    removed: dict[str, int]  # reason → pairs
    out: list[str]  # files


class JoinedDict(TypedDict):
    """What `regard data join --json` prints."""

    read: int  # pairs of the files
    rejected: int  # rows that could not be read, with --lenient
    rows: int  # written
    out: list[str]  # files


def _split_option(name: str, split: str) -> Option:
    return Option(
        [f"--{name}"], multiple=True, metavar="FILE …", help=f"{split}: two parallel files, or one with two columns."
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
    write_pairs(out, list(zip(cleaned.pairs.source, cleaned.pairs.target, strict=True)))
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
    write_pairs(out, rows)
    counts: JoinedDict = {
        "read": pairs.num_read,
        "rejected": pairs.num_rejected,
        "rows": len(rows),
        "out": list(out),
    }
    lines = [f"{len(pairs):,} pairs joined to {len(rows):,} rows in {' and '.join(out)}"]
    print_result(counts, lines, as_json)


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
