"""`regard fill`: the most probable tokens for the masks of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import EVALUATIONS, TEXT_FLAGS, TORCH_OPTIONS, TestSet, evaluator
from regard.cli.options import Option
from regard.cli.output import note, print_result
from regard.cli.texts import TextInput, process_texts, text_verb

if TYPE_CHECKING:
    from regard.pipeline.fill_mask import FilledText, FillMaskPipeline

HELP = """Predict the masked tokens of TEXT, of the lines of a file, or of standard input line by line.

Write a mask as the model's mask token, [MASK] or <mask>. Each output line is a token, its probability, and the text
with the token filled in; with several masks, the predictions for the first mask come first.

\b
  regard fill runs/bert "Paris is the [MASK] of France."
  regard fill bert-base-uncased "The [MASK] sat on the [MASK]." --top-k 3
  regard fill runs/bert --in masked.txt --json
"""


@text_verb(
    HELP,
    [
        Option(["--top-k"], type=click.IntRange(1, 1000), default=5, help="Predictions per mask. [default: 5]"),
        *TORCH_OPTIONS,
    ],
    output=["regard.pipeline.fill_mask:FilledTextDict"],
)
def fill(context: click.Context, folder: str, inputs: TextInput, top_k: int, **load_options: Any) -> None:
    """Print the predictions for each mask."""
    num_truncated = 0

    def load_model() -> FillMaskPipeline:
        from regard.pipeline.loaders import load_filler

        return load_filler(folder, **load_options)

    def predict(model: FillMaskPipeline, window: Sequence[str]) -> Iterator[FilledText]:
        nonlocal num_truncated
        for filled in model.stream(window, top_k=top_k):
            num_truncated += filled.truncated > 0
            yield filled

    process_texts(inputs, load_model, predict, lambda model, index, filled: format_filled_text(filled))
    if num_truncated:
        note(f"{num_truncated:,} texts were truncated around their masks: --json shows how many tokens of each")


def format_filled_text(filled: FilledText) -> list[str]:
    """Format the predictions for one text, one line each."""
    predictions = [prediction for mask in filled.masks for prediction in mask]
    return [f"{prediction.token}\t{prediction.probability:.4f}\t{prediction.text}" for prediction in predictions]


@evaluator("--metric", *TEXT_FLAGS, output=f"{EVALUATIONS}:LanguageModelEvaluation")
def evaluate_masked_lm(test: TestSet) -> None:
    """Perplexity of masked tokens of running text."""
    from regard.data.documents import read_documents
    from regard.pipeline.loaders import load_filler

    documents = read_documents(test.files, test.read_config)
    scores = load_filler(test.folder, **test.load_options).evaluate(documents, metrics=test.metrics)
    lines = [
        f"{scores['documents']:,} documents, {scores['tokens']:,} tokens, {scores['masked']:,} of them masked: "
        f"perplexity {scores['perplexity']:.2f}"
    ]
    if "perplexity_unigram" in scores:
        lines.append(
            f"unigram baseline: perplexity {scores['perplexity_unigram']:.2f}, "
            f"{scores['times_better']:.2f} times that of the model"
        )
    if "next_accuracy" in scores:
        lines.append(f"next-sentence accuracy: {scores['next_accuracy']:.1f} %")
    print_result(scores, [*lines, *test.metric_lines(scores)], test.as_json)
