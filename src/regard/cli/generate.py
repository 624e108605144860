"""`regard generate`: texts continued by a causal language model."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import ENGINE, TestSet
from regard.cli.options import changed_settings, knob_options
from regard.cli.output import json_line, note, print_result
from regard.cli.texts import TextInput, text_verb, write_output
from regard.config.inference import GenerationConfig

if TYPE_CHECKING:
    from regard.pipeline.generation import Generation, GenerationPipeline

HELP = """Continue TEXT, or the lines of a file; without any, begin a text of one's own.

On a terminal a single text appears while it is written. The same seed gives the same text again.

\b
  regard generate runs/gpt "Once upon"
  regard generate runs/gpt "Once upon" --temperature 0.8 --top-k 40 --max-new-tokens 500 --seed 7
  regard generate runs/gpt --in beginnings.txt --greedy --json
  regard generate gpt2 "The cat" --samples 5
"""
BETWEEN = "―――"  # between two texts, for people


@text_verb(HELP, [*knob_options(GenerationConfig, section="Writing"), *ENGINE])
def generate(context: click.Context, folder: str, given: TextInput, **computing: Any) -> None:
    """Continue what was given."""
    config = GenerationConfig().override(changed_settings(context, GenerationConfig))
    prompts = given.lines() if given.source else given.lines() or [""]
    from regard.pipeline.loaders import load_generator

    model = load_generator(folder, **computing)
    if len(prompts) == config.samples == 1 and not given.as_json and not given.out and sys.stdout.isatty():
        _live(model, prompts[0], config)
        return
    write_output(_lines(model, prompts, config, given.as_json), given.out)


def _live(model: GenerationPipeline, prompt: str, config: GenerationConfig) -> None:
    """Show one text while it is written."""
    print(prompt, end="", flush=True)
    ((made,),) = model.generate([prompt], config, hear=lambda text: print(text, end="", flush=True))
    print()
    _tell(made)


def _lines(model: GenerationPipeline, prompts: Sequence[str], config: GenerationConfig, as_json: bool) -> Iterator[str]:
    first = True
    for number, prompt in enumerate(prompts):
        (some,) = model.generate([prompt], config)
        _tell(some[0])
        for sample, made in enumerate(some):
            if as_json:
                facts = {"number": number, "sample": sample, "prompt": prompt, "text": str(made)}
                facts |= {"tokens": len(made.ids), "finished": made.finished, "logp": round(made.logprob, 4)}
                yield json_line({**facts, "cut": made.truncated})
                continue
            if not first:
                yield BETWEEN
            first = False
            yield made.full_text


def _tell(made: Generation) -> None:
    """Say what of the prompt the model could not use."""
    if made.truncated:
        note(f"the text is longer than the model reads: its first {made.truncated:,} tokens were left out")
    if made.unknown:
        note(f"{made.unknown:,} tokens of the text are unknown to the model")


def evaluate_writing(test: TestSet) -> None:
    """Give the loss of running text, a token and a character, each token told from those before it."""
    from regard.data.documents import read_documents
    from regard.pipeline.loaders import load_generator

    model = load_generator(test.folder, **test.computing)
    scores = model.scores(read_documents(test.files, test.reading, model.task.get("document", "file")))
    line = (
        f"{scores['documents']:,} documents, {scores['tokens']:,} tokens of {scores['characters']:,} characters: "
        f"{scores['loss']:.4f} nats a token, {scores['loss_per_character']:.4f} a character, "
        f"perplexity {scores['perplexity']:.2f}"
    )
    print_result(scores, [line], test.as_json)
