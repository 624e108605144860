"""`regard classify`: labels of texts, with their probabilities; and the evaluation of classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import (
    COLUMN_FLAGS,
    ENGINE_OPTIONS,
    EVALUATIONS,
    TEXT_FLAGS,
    TestSet,
    evaluator,
    iter_windows,
)
from regard.cli.options import Option
from regard.cli.output import align_columns, note, note_each, note_features, print_result, show_progress, write_lines
from regard.cli.texts import TextInput, process_texts, text_verb
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.data.labelled import LabelledTexts
    from regard.pipeline.classification import ClassificationPipeline, Label
    from regard.text.special_tokens import TruncationReport

HELP = """Classify TEXT, the lines of a file, or standard input line by line, in order: label, tab, probability.

A text longer than the model's limit is read in windows. In a pair of texts, a tab separates the two.

\b
  regard classify runs/mood "A quiet triumph."
  regard classify runs/mood --in reviews.txt --out labels.tsv
  regard classify runs/mood --in reviews.txt --json --out labels.jsonl
  regard classify runs/mood --json < reviews.txt
"""


@text_verb(
    HELP,
    [Option(["--all", "all_labels"], is_flag=True, help="Print the probability of every label."), *ENGINE_OPTIONS],
    output=["regard.pipeline.classification:LabelDict"],
)
def classify(context: click.Context, folder: str, inputs: TextInput, all_labels: bool, **load_options: Any) -> None:
    """Print a label for each text."""

    def load_model() -> ClassificationPipeline:
        from regard.pipeline.load import load_classifier

        return load_classifier(folder, **load_options)

    process_texts(
        inputs,
        load_model,
        lambda model, window: model.stream(*_split_pairs(window, bool(model.task.get("has_pairs")))),
        lambda model, index, label: [format_label(label, all_labels)],
    )


def _split_pairs(texts: Sequence[str], has_pairs: bool) -> tuple[list[str], list[str] | None]:
    """First texts, and second texts where the model reads pairs."""
    if not has_pairs:
        return list(texts), None
    pairs = [text.split("\t") for text in texts]
    for text, sides in zip(texts, pairs, strict=True):
        if len(sides) != 2 and text.strip():
            raise UsageError(f"{text[:60]!r}: this model reads pairs of texts: put a tab between the two")
    return [sides[0] for sides in pairs], [sides[-1] for sides in pairs]


def format_label(label: Label, all_labels: bool) -> str:
    """Format the prediction for one text as a line."""
    if all_labels:
        return "\t".join(f"{name}\t{probability:.4f}" for name, probability in label.probabilities.items())
    return f"{label}\t{label.probability:.4f}"


@evaluator(
    *("--backend", "--out", "--metric", "--page", *COLUMN_FLAGS, *TEXT_FLAGS),
    output=f"{EVALUATIONS}:LabelEvaluation",
)
def evaluate_labels(test: TestSet) -> None:
    """Evaluate a classifier: accuracy with its confidence interval, macro-F1 and the confusion matrix."""
    from regard.data.labelled import read_labelled
    from regard.pipeline.classification import ClassificationPipeline
    from regard.pipeline.load import load

    model = load(test.folder, **test.load_options)
    assert isinstance(model, ClassificationPipeline)
    examples = read_labelled(test.files, model.read_config(test.read_config))
    note_each(examples.notes)
    examples.label_matrix(model.labels)  # raises for an unknown label before anything is computed
    note_features(model.task)
    batches = (list(model.stream(*_select(examples, window))) for window in iter_windows(range(len(examples))))
    predictions = list(show_progress(batches, len(examples), "texts"))
    if test.out:
        write_lines(test.out, (f"{label}\t{label.probability:.4f}" for label in predictions))
    scores = model.evaluate(examples, predictions, metrics=test.metrics)
    if test.page:
        from regard.report.error_analysis import analyse_errors, errors_page

        analysis = analyse_errors(examples, predictions, model.labels)
        write_lines(test.page, [errors_page(analysis, title=test.folder)])
        note(f"error analysis: {test.page}")
    if "confusion" in scores:
        shown: tuple[str, ...] = ("accuracy", "macro_f1")
        lines = _format_single_label(scores, model.labels, model.truncation_report)
    else:
        shown = ("macro_f1", "micro_f1", "exact_match")
        lines = _format_multi_label(scores, model.truncation_report)
    lines += test.metric_lines(scores, shown=shown)
    print_result({**scores, "truncation": model.truncation_report.to_dict()}, lines, test.as_json)


def _select(examples: LabelledTexts, indices: Sequence[int]) -> tuple[list[str], list[str] | None]:
    """Texts at the indices, and their second texts where there are pairs."""
    pairs = None if examples.pairs is None else [examples.pairs[index] for index in indices]
    return [examples.texts[index] for index in indices], pairs


def _format_single_label(scores: dict[str, Any], labels: Sequence[str], truncation: TruncationReport) -> list[str]:
    interval = f"{scores['accuracy_low']:.1f} to {scores['accuracy_high']:.1f}"
    confusion = zip(scores["labels"], scores["confusion"], strict=True)
    rows = [[label, *map(str, counts)] for label, counts in confusion]
    return [
        f"{scores['texts']:,} texts, accuracy {scores['accuracy']:.2f} % (95 % interval {interval}), "
        f"macro-F1 {scores['macro_f1']:.2f} %",
        "confusion matrix (rows: true labels, columns: predictions):",
        *align_columns([["", *labels], *rows]),
        f"calibration error {scores['calibration_error']:.4f} (15 bins)",
        truncation.format(),
    ]


def _format_multi_label(scores: dict[str, Any], truncation: TruncationReport) -> list[str]:
    return [
        f"{scores['texts']:,} texts, macro-F1 {scores['macro_f1']:.2f} %, micro-F1 {scores['micro_f1']:.2f} %, "
        f"all labels right {scores['exact_match']:.2f} %",
        *align_columns([[label, f"{f1:.2f}"] for label, f1 in scores["f1_by_label"].items()]),
        f"calibration error {scores['calibration_error']:.4f} (15 bins)",
        truncation.format(),
    ]
