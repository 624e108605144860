"""`regard data make`: generate data files: pairs of texts, sentences with a pronoun, nested brackets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypedDict

import click

from regard.cli.data_output import OUT, write_pairs
from regard.cli.lists import split_list
from regard.cli.options import Option, verb
from regard.cli.output import print_result, write_lines
from regard.errors import UsageError, nearest

MAKE = """Generate data: pairs (dates, numbers, spoken, copy, reverse, sort or recall), coreference or brackets.

Dates and numbers need the extra `numbers`.

Each target (of recall, each source) belongs to one split, so that no test pair occurs in training data.

A source of recall is letters with one digit among them, its target the digit: `c a 7 f b d` → `7`. The letters after
the digit are the distance, between LOW and HIGH of --distance with equal probability; every source has HIGH letters.

Coreference is pairs of sentences that differ in one word, which decides what the pronoun means, for `regard heads
--links`: a .tsv of sentence, index of the pronoun, right and wrong noun, and scenario. No sentence is in two splits.

Brackets are nested, with letters between them, for `regard probe --target depth`: words and their depth in the columns
of a .conll file, or the words alone in a .txt file, to train a model on.

\b
  regard data make dates --count 50000 --out dates.tsv
  regard data make sort --count 1000 --split test --out test.in test.out
  regard data make reverse --lengths 24-30 --out long.tsv
  regard data make recall --distance 10-200 --out recall.tsv
  regard data make coreference --out coreference.tsv
  regard data make brackets --count 500 --split test --out brackets.conll
"""
DEFAULT_PAIRS = 10_000


class GeneratedDict(TypedDict):
    """What `regard data make --json` prints."""

    rows: int  # written: pairs of texts, or sentences
    out: list[str]  # files


@verb(
    MAKE,
    [
        click.Argument(["kind"], metavar="dates|numbers|spoken|copy|reverse|sort|recall|coreference|brackets"),
        OUT,
        Option(
            ["--count"],
            type=click.IntRange(0),
            help="Number of pairs, or of rows of brackets. [default: 10000; coreference: 300; brackets: 1000]",
        ),
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
            help="Range of letters per row of copy, reverse and sort, or of words per row of brackets. [default: 3-12; "
            "brackets: 8-40]",
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
    count: int | None,
    seed: int,
    split: str,
    languages: str,
    lengths: str | None,
    distance: str | None,
    alignment: str | None,
    as_json: bool,
) -> None:
    """Write generated data."""
    from regard.data.synthetic import KINDS

    if kind not in {*KINDS, *TABLES}:
        kinds = [*KINDS, *TABLES]
        raise UsageError(f"unknown kind of synthetic data {kind!r}{nearest(kind, kinds)}: there are {', '.join(kinds)}")
    request = _Request(
        kind,
        out,
        count=count,
        seed=seed,
        split=split,
        languages=tuple(split_list(languages)),
        lengths=_parse_range("--lengths", lengths),
        distances=_parse_range("--distance", distance),
        alignment=alignment,
    )
    num_rows = TABLES[kind](request) if kind in TABLES else _write_synthetic_pairs(request)
    result: GeneratedDict = {"rows": num_rows, "out": list(out)}
    unit = "rows" if kind in TABLES else "pairs"
    print_result(result, [f"{num_rows:,} {unit} written to {' and '.join(out)}"], as_json)


@dataclass(frozen=True)
class _Request:
    """What to generate, and where to write it."""

    kind: str
    out: tuple[str, ...]
    count: int | None
    seed: int
    split: str
    languages: tuple[str, ...]
    lengths: tuple[int, int] | None
    distances: tuple[int, int] | None
    alignment: str | None

    def reject(self, **options: object) -> None:
        """Raise `UsageError` for an option that is set and means nothing to this kind."""
        for name, value in options.items():
            if value:
                raise UsageError(f"{self.kind} has no {name}: leave out --{name}")

    def write(self, lines: Iterable[str], *suffixes: str) -> int:
        """Write lines to one file, whose name must have one of the suffixes; return their number."""
        if len(self.out) != 1 or not self.out[0].removesuffix(".gz").endswith(suffixes):
            endings = " or ".join(suffixes)
            raise UsageError(f"--out {' '.join(self.out)}: {self.kind} is written to one file in {endings}")
        rows = list(lines)
        write_lines(self.out[0], rows)
        return len(rows)


def _write_synthetic_pairs(request: _Request) -> int:
    from regard.data.synthetic import generate_rows

    generated = generate_rows(
        request.kind,
        DEFAULT_PAIRS if request.count is None else request.count,
        request.seed,
        split=request.split,
        languages=request.languages,
        lengths=request.lengths,
        distances=request.distances,
    )
    rows = list(generated)
    if request.alignment and rows and not rows[0].links:
        raise UsageError(f"{request.kind} has no word alignments: --alignment is for spoken and recall")
    write_pairs(request.out, [(row.source, row.target) for row in rows])
    if request.alignment:
        links = (row.links for row in rows)
        write_lines(request.alignment, (" ".join(f"{source}-{target}" for source, target in row) for row in links))
    return len(rows)


def _write_coreference(request: _Request) -> int:
    from regard.data.coreference import HEADER
    from regard.data.coreference_templates import DEFAULT_COUNT, generate_coreference

    request.reject(
        languages=request.languages,
        lengths=request.lengths,
        distance=request.distances,
        alignment=request.alignment,
    )
    count = DEFAULT_COUNT if request.count is None else request.count
    rows = generate_coreference(count, request.seed, split=request.split)
    table = ["\t".join(HEADER), *("\t".join(map(str, row)) for row in rows)]
    return request.write(table, ".tsv") - 1


def _write_brackets(request: _Request) -> int:
    from regard.data.brackets import DEFAULT_COUNT, generate_brackets
    from regard.data.conll import conll_lines

    request.reject(languages=request.languages, distance=request.distances, alignment=request.alignment)
    count = DEFAULT_COUNT if request.count is None else request.count
    rows = list(generate_brackets(count, request.seed, split=request.split, lengths=request.lengths))
    is_text = request.out[0].removesuffix(".gz").endswith(".txt")
    request.write((" ".join(row.words) for row in rows) if is_text else conll_lines(rows), ".conll", ".txt")
    return len(rows)


TABLES: dict[str, Callable[[_Request], int]] = {"coreference": _write_coreference, "brackets": _write_brackets}


def _parse_range(option: str, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal()):
        raise UsageError(f"{option} {text}: a minimum and a maximum are needed, as in 24-30")
    return int(low), int(high)
