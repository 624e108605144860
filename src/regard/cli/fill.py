"""`regard fill`: the likeliest words for the gaps of texts, of a file, or of standard input line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import COMPUTING, TestSet
from regard.cli.options import Option
from regard.cli.output import json_line, note, print_result
from regard.cli.texts import TextInput, process_texts, text_verb

if TYPE_CHECKING:
    from regard.pipeline.fill_mask import FilledText, FillMaskPipeline

HELP = """Tell the likeliest words for the gaps of TEXT, of the lines of a file, or of standard input line by line.

A gap is written as the model's mask token, [MASK] or <mask>. Each line is a word, its probability, and the text with
it; with several gaps, those of the first gap come first.

\b
  regard fill runs/bert "Paris is the [MASK] of France."
  regard fill bert-base-uncased "The [MASK] sat on the [MASK]." --best 3
  regard fill runs/bert --in gaps.txt --json
"""


@text_verb(
    HELP,
    [
        Option(["--best"], type=click.IntRange(1, 1000), default=5, help="words for each gap [default: 5]"),
        *COMPUTING,
    ],
)
def fill(context: click.Context, folder: str, given: TextInput, best: int, **computing: Any) -> None:
    """Fill what was given."""
    cut = 0

    def opened() -> FillMaskPipeline:
        from regard.pipeline.loaders import load_filler

        return load_filler(folder, **computing)

    def told(model: FillMaskPipeline, number: int, filled: FilledText) -> list[str]:
        nonlocal cut
        cut += filled.truncated > 0
        return [shown(filled, number, given.as_json)]

    process_texts(given, opened, lambda model, window: model.stream(window, k=best), told)
    if cut:
        note(f"{cut:,} texts were read only around their gaps: --json says how many tokens were cut")


def shown(filled: FilledText, number: int, as_json: bool) -> str:
    """Return the lines for one text."""
    if not as_json:
        return "\n".join(f"{one.token}\t{one.probability:.4f}\t{one.text}" for gap in filled.masks for one in gap)
    gaps = [
        [
            {"word": one.token, "probability": round(one.probability, 6), "token": one.token_id, "text": one.text}
            for one in gap
        ]
        for gap in filled.masks
    ]
    return json_line(
        {"number": number, "text": filled.text, "best": filled.best_text, "gaps": gaps, "cut": filled.truncated}
    )


def evaluate_gaps(test: TestSet) -> None:
    """Hide some tokens of running text and give the perplexity of telling them."""
    from regard.data.documents import read_documents
    from regard.pipeline.loaders import load_filler

    documents = read_documents(test.files, test.reading)
    scores = load_filler(test.folder, **test.computing).scores(documents)
    lines = [
        f"{scores['documents']:,} documents, {scores['tokens']:,} tokens, {scores['hidden']:,} of them hidden: "
        f"perplexity {scores['perplexity']:.2f}"
    ]
    if "perplexity_unigram" in scores:
        lines.append(
            f"told by their counts alone: perplexity {scores['perplexity_unigram']:.2f}, "
            f"{scores['times_better']:.2f} times that of the model"
        )
    if "next_accuracy" in scores:
        lines.append(f"pairs told apart: {scores['next_accuracy']:.1f} %")
    print_result(scores, lines, test.as_json)
