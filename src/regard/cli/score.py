"""`regard score`: how probable the second text of a pair is after the first: as its translation, or as what follows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import (
    MODEL_ARGUMENT,
    PAIR_READ_OPTIONS,
    RANKING_OPTIONS,
    SPLIT_ROWS,
    TORCH_OPTIONS,
    load_translation_pipeline,
)
from regard.cli.options import Option, changed_settings, reject_other_options, verb
from regard.cli.output import json_line, note, note_each
from regard.cli.texts import write_output
from regard.config.data import ReadConfig
from regard.config.inference import DecodingConfig
from regard.errors import UsageError
from regard.formatting import format_count

if TYPE_CHECKING:
    from regard.data.pairs import ParallelTexts

HELP = """Print how probable the second text of each pair in FILES is, given the first.

With a translation model, the second text is a translation: each line has the score by which beam search ranks it, the
log-probability and the number of tokens. With an encoder that has a next-sentence head (BERT; trained with
--next-sentence), each line is the probability that the second text follows the first; --next-sentence takes one pair
from the command line.

\b
  regard score runs/en-de test.en test.de
  regard score runs/bert-pairs --next-sentence "The dog ran." "It was fast."
  regard score runs/bert-pairs pairs.tsv --json
"""
MAX_LOSS = 100  # limits the exponent of the perplexity
PAIR_FLAGS = ("--out", "--json", *(option.opts[0] for option in (*PAIR_READ_OPTIONS, *TORCH_OPTIONS)))


@verb(
    HELP,
    [
        MODEL_ARGUMENT,
        click.Argument(["files"], nargs=-1, metavar="[FILES]…"),
        Option(
            ["--next-sentence"],
            nargs=2,
            type=str,
            metavar="A B",
            help="One pair of texts instead of FILES: the probability that B follows A.",
        ),
        Option(["--out"], metavar="FILE", help="Write here instead of to standard output."),
        SPLIT_ROWS,
        *PAIR_READ_OPTIONS,
        *RANKING_OPTIONS,
        *TORCH_OPTIONS,
    ],
    output=["regard.pipeline.sentence_pairs:TranslationScore", "regard.pipeline.next_sentence:NextSentenceDict"],
)
def score(
    context: click.Context,
    folder: str,
    files: tuple[str, ...],
    next_sentence: tuple[str, str] | None,
    out: str | None,
    split: bool,
    as_json: bool,
    **load_options: Any,
) -> None:
    """Score the pairs of files, or one pair of texts."""
    from regard.checkpoint.model_dir import is_encoder_folder
    from regard.data.pairs import ParallelTexts, read_pairs

    if bool(files) == bool(next_sentence):
        raise UsageError("score needs pairs of texts: files, or one pair after --next-sentence")
    if next_sentence:
        pairs = ParallelTexts.from_texts([next_sentence[0]], [next_sentence[1]])
    else:
        pairs = read_pairs(files, ReadConfig().override(changed_settings(context, ReadConfig)))
    note_each(pairs.notes)
    if next_sentence or is_encoder_folder(folder):
        reject_other_options(context, (*PAIR_FLAGS, "--next-sentence"), f"{folder}, which scores next sentences")
        lines = score_next_sentences(folder, pairs, as_json, load_options)
    else:
        settings = changed_settings(context, DecodingConfig)
        lines = score_translations(folder, pairs, as_json, load_options, split=split, **settings)
    write_output(lines, out)


def score_translations(
    folder: str, pairs: ParallelTexts, as_json: bool, load_options: dict[str, Any], **settings: Any
) -> list[str]:
    """One line for each translation; the perplexity of all is noted."""
    model = load_translation_pipeline(folder, load_options)
    translations = model.score(pairs.source, pairs.target, **settings)
    total_logprob = sum(translation.logprob for translation in translations)
    total_tokens = sum(translation.num_tokens for translation in translations)
    perplexity = math.exp(min(-total_logprob / max(total_tokens, 1), MAX_LOSS))
    note(f"{len(translations):,} pairs, {total_tokens:,} tokens, perplexity {perplexity:.3f}")
    if as_json:
        return [json_line(translation.to_dict()) for translation in translations]
    return [
        f"{translation.score:.4f}\t{translation.logprob:.4f}\t{translation.num_tokens}" for translation in translations
    ]


def score_next_sentences(folder: str, pairs: ParallelTexts, as_json: bool, load_options: dict[str, Any]) -> list[str]:
    """One line for each pair; how many are predicted to follow, and what was truncated, is noted."""
    from regard.pipeline.loaders import load_next_sentence

    model = load_next_sentence(folder, **load_options)
    predictions = model.predict(pairs.source, pairs.target)
    following = sum(prediction.probability > 0.5 for prediction in predictions)
    num_pairs = format_count(len(predictions), "pair")
    note(f"{num_pairs}; predicted to follow: {following:,}; {model.truncation_report.format()}")
    if as_json:
        return [json_line(prediction.to_dict()) for prediction in predictions]
    return [f"{prediction.probability:.4f}" for prediction in predictions]
