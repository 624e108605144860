"""`regard score`: log-probability of given translations."""

from __future__ import annotations

import math
from typing import Any

import click

from regard.cli.models import COMPUTING, FILES, FOLDER, RANKING, READING, SPLIT, opened
from regard.cli.options import Option, changes, verb
from regard.cli.output import give, json_line, note, write_lines
from regard.config.data import ReadConfig
from regard.config.decoding import DecodingConfig

HELP = """Give the log-probability of each translation in FILES.

A line has the score that a search would rank it by, the sum of the logarithms and the number of tokens.

\b
  regard score runs/en-de test.en test.de
"""


@verb(
    HELP,
    [
        FOLDER,
        FILES,
        Option(["--out"], metavar="FILE", help="write here instead of to standard output"),
        SPLIT,
        *READING,
        *RANKING,
        *COMPUTING,
    ],
)
def score(
    context: click.Context,
    folder: str,
    files: tuple[str, ...],
    out: str | None,
    split: bool,
    as_json: bool,
    **computing: Any,
) -> None:
    """Score given translations."""
    from regard.data.sources import read_pairs

    pairs = read_pairs(files, ReadConfig().override(changes(context, ReadConfig)))
    found = opened(folder, computing).score(pairs.source, pairs.target, split=split, **changes(context, DecodingConfig))
    lines = [
        json_line({"score": one.score, "total": one.total, "tokens": one.tokens})
        if as_json
        else f"{one.score:.4f}\t{one.total:.4f}\t{one.tokens}"
        for one in found
    ]
    if out:
        write_lines(out, lines)
    else:
        give(None, lines, as_json=False)
    total, tokens = sum(one.total for one in found), sum(one.tokens for one in found)
    note(f"{len(found):,} pairs, {tokens:,} tokens, perplexity {math.exp(min(-total / max(tokens, 1), 100)):.3f}")
