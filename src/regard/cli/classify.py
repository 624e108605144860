"""`regard classify`: labels of texts, of a file, or of standard input line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import ENGINE, TestSet, iter_windows
from regard.cli.options import Option
from regard.cli.output import align_columns, json_line, note, print_result, show_progress, write_lines
from regard.cli.texts import TextInput, process_texts, text_verb
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.data.labelled import LabelledTexts
    from regard.pipeline.classification import ClassificationPipeline, Label
    from regard.text.special_tokens import TruncationReport

HELP = """Label TEXT, the lines of a file, or standard input line by line, in order: label, tab, probability.

A text longer than the model reads is read in windows. Where texts come in pairs, a tab stands between the two.

\b
  regard classify runs/mood "A quiet triumph."
  regard classify runs/mood --in reviews.txt --out labels.tsv
  regard classify runs/mood --all --json < reviews.txt
"""


@text_verb(HELP, [Option(["--all", "every"], is_flag=True, help="give the probability of every label"), *ENGINE])
def classify(context: click.Context, folder: str, given: TextInput, every: bool, **computing: Any) -> None:
    """Label what was given."""

    def opened() -> ClassificationPipeline:
        from regard.pipeline.loaders import load_classifier

        return load_classifier(folder, **computing)

    process_texts(
        given,
        opened,
        lambda model, window: model.stream(*_sides(window, bool(model.task.get("pairs")))),
        lambda _, number, label: [format_label(label, number, every, given.as_json)],
    )


def _sides(texts: Sequence[str], pairs: bool) -> tuple[list[str], list[str] | None]:
    """Return texts, and the second text of each where they come in pairs."""
    if not pairs:
        return list(texts), None
    sides = [text.split("\t") for text in texts]
    for text, found in zip(texts, sides, strict=True):
        if len(found) != 2 and text.strip():
            raise UsageError(f"{text[:60]!r}: this model reads pairs of texts: put a tab between the two")
    return [found[0] for found in sides], [found[-1] for found in sides]


def format_label(label: Label, number: int, every: bool, as_json: bool) -> str:
    """Return the line for one text."""
    if as_json:
        facts: dict[str, Any] = {"number": number, "text": label.text, "label": str(label) or None}
        facts |= {"probability": round(label.probability, 6), "cut": label.truncated, "windows": label.windows}
        facts["labels"] = list(label.labels)
        if every:
            facts["probabilities"] = {name: round(chance, 6) for name, chance in label.probabilities.items()}
        return json_line(facts)
    if every:
        return "\t".join(f"{name}\t{chance:.4f}" for name, chance in label.probabilities.items())
    return f"{label}\t{label.probability:.4f}"


def evaluate_labels(test: TestSet) -> None:
    """Label a test set and give accuracy with its interval, macro-F1 and the table of confusions."""
    from regard.data.labelled import read_labelled
    from regard.pipeline.loaders import load_classifier

    reading = test.reading
    model = load_classifier(test.folder, **test.computing)
    separator = model.task.get("separator")
    if model.thresholds is not None and separator and not reading.label_separator:
        reading = reading.override({"label_separator": separator})
    rows = read_labelled(test.files, reading)
    rows.label_matrix(model.labels)  # an unknown label is refused before anything is computed
    numbers = iter_windows(range(len(rows)))
    found = (list(model.stream(*_chosen(rows, some))) for some in numbers)
    said = list(show_progress(found, len(rows), "texts"))
    if test.out:
        write_lines(test.out, (f"{label}\t{label.probability:.4f}" for label in said))
    scores = model.evaluate(rows, said)
    if test.errors:
        from regard.report.error_analysis import analyse_errors, errors_page

        page = errors_page(analyse_errors(rows, said, model.labels), title=test.folder)
        write_lines(test.errors, [page])
        note(f"error book: {test.errors}")
    if "confusion" not in scores:
        _give_several(scores, model.account, test.as_json)
        return
    low, high = scores["accuracy_low"], scores["accuracy_high"]
    lines = [
        f"{len(rows):,} texts, accuracy {scores['accuracy']:.2f} % (95 % interval {low:.1f} to {high:.1f}), "
        f"macro-F1 {scores['macro_f1']:.2f} %",
        "rows are what is right, columns what was said:",
        *align_columns([["", *model.labels], *([label, *map(str, row)] for label, row in _rows(scores))]),
        f"calibration error {scores['calibration_error']:.4f} (15 bins)",
        model.account.format(),
    ]
    print_result({**scores, "account": model.account.to_dict()}, lines, test.as_json)


def _chosen(rows: LabelledTexts, numbers: Sequence[int]) -> tuple[list[str], list[str] | None]:
    pairs = None if rows.pairs is None else [rows.pairs[number] for number in numbers]
    return [rows.texts[number] for number in numbers], pairs


def _give_several(scores: dict[str, Any], account: TruncationReport, as_json: bool) -> None:
    """Give the scores of texts that may have several labels."""
    lines = [
        f"{scores['texts']:,} texts, macro-F1 {scores['macro_f1']:.2f} %, micro-F1 {scores['micro_f1']:.2f} %, "
        f"all labels right {scores['exact']:.2f} %",
        *align_columns([[label, f"{value:.2f}"] for label, value in scores["f1_by_label"].items()]),
        f"calibration error {scores['calibration_error']:.4f} (15 bins)",
        account.format(),
    ]
    print_result({**scores, "account": account.to_dict()}, lines, as_json)


def _rows(scores: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    return zip(scores["labels"], scores["confusion"], strict=True)
