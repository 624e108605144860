"""`regard score`: log-probability of given translations."""

from __future__ import annotations

import math
from typing import Any

import click

from regard.cli.model_options import (
    FILES,
    MODEL_ARGUMENT,
    PAIR_READ_OPTIONS,
    RANKING_OPTIONS,
    SPLIT_ROWS,
    TORCH_OPTIONS,
    load_translation_pipeline,
)
from regard.cli.options import Option, changed_settings, verb
from regard.cli.output import json_line, note, note_each
from regard.cli.texts import write_output
from regard.config.data import ReadConfig
from regard.config.inference import DecodingConfig

HELP = """Print the log-probability of each translation in FILES.

Each line has the score by which beam search ranks it, the log-probability and the number of tokens.

\b
  regard score runs/en-de test.en test.de
"""
MAX_LOSS = 100  # limits the exponent of the perplexity


@verb(
    HELP,
    [
        MODEL_ARGUMENT,
        FILES,
        Option(["--out"], metavar="FILE", help="Write here instead of to standard output."),
        SPLIT_ROWS,
        *PAIR_READ_OPTIONS,
        *RANKING_OPTIONS,
        *TORCH_OPTIONS,
    ],
    output=["regard.pipeline.sentence_pairs:TranslationScore"],
)
def score(
    context: click.Context,
    folder: str,
    files: tuple[str, ...],
    out: str | None,
    split: bool,
    as_json: bool,
    **load_options: Any,
) -> None:
    """Score the translations of a file."""
    from regard.data.pairs import read_pairs

    pairs = read_pairs(files, ReadConfig().override(changed_settings(context, ReadConfig)))
    note_each(pairs.notes)
    model = load_translation_pipeline(folder, load_options)
    settings = changed_settings(context, DecodingConfig)
    translations = model.score(pairs.source, pairs.target, split=split, **settings)
    lines = []
    for translation in translations:
        if as_json:
            lines.append(json_line(translation.to_dict()))
        else:
            lines.append(f"{translation.score:.4f}\t{translation.logprob:.4f}\t{translation.num_tokens}")
    write_output(lines, out)
    total_logprob = sum(translation.logprob for translation in translations)
    total_tokens = sum(translation.num_tokens for translation in translations)
    perplexity = math.exp(min(-total_logprob / max(total_tokens, 1), MAX_LOSS))
    note(f"{len(translations):,} pairs, {total_tokens:,} tokens, perplexity {perplexity:.3f}")
