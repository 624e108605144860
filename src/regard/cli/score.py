"""`regard score`: log-probability of given translations."""

from __future__ import annotations

import math
from typing import Any

import click

from regard.cli.model_options import COMPUTING, FILES, FOLDER, RANKING, READING, SPLIT, load_translation_pipeline
from regard.cli.options import Option, changed_settings, verb
from regard.cli.output import json_line, note, print_result, write_lines
from regard.config.data import ReadConfig
from regard.config.inference import DecodingConfig

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
    from regard.data.pairs import read_pairs

    pairs = read_pairs(files, ReadConfig().override(changed_settings(context, ReadConfig)))
    found = load_translation_pipeline(folder, computing).score(
        pairs.source, pairs.target, split=split, **changed_settings(context, DecodingConfig)
    )
    lines = [
        json_line({"score": one.score, "total": one.logprob, "tokens": one.num_tokens})
        if as_json
        else f"{one.score:.4f}\t{one.logprob:.4f}\t{one.num_tokens}"
        for one in found
    ]
    if out:
        write_lines(out, lines)
    else:
        print_result(None, lines, as_json=False)
    total, tokens = sum(one.logprob for one in found), sum(one.num_tokens for one in found)
    note(f"{len(found):,} pairs, {tokens:,} tokens, perplexity {math.exp(min(-total / max(tokens, 1), 100)):.3f}")
