"""`regard classify`: labels of texts, of a file, or of standard input line by line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from regard.cli.models import COMPUTING, FOLDER, windows
from regard.cli.options import Option, verb
from regard.cli.output import give, json_line, note, progress, table, write_lines
from regard.cli.texts import GIVEN, given, put
from regard.config.data import ReadConfig

if TYPE_CHECKING:
    from regard.pipeline import Label

HELP = """Label TEXT, the lines of a file, or standard input line by line, in order: label, tab, probability.

\b
  regard classify runs/mood "A quiet triumph."
  regard classify runs/mood --in reviews.txt --out labels.tsv
  regard classify runs/mood --all --json < reviews.txt
"""


@verb(
    HELP,
    [
        FOLDER,
        *GIVEN,
        Option(["--all", "every"], is_flag=True, help="give the probability of every label"),
        *COMPUTING,
    ],
)
def classify(
    context: click.Context,
    folder: str,
    texts: tuple[str, ...],
    source: str | None,
    out: str | None,
    encoding: str,
    every: bool,
    as_json: bool,
    **computing: Any,
) -> None:
    """Label what was given."""
    cut = 0

    def lines() -> Iterator[str]:
        nonlocal cut
        waiting, total = given(texts, source, encoding)
        from regard.pipeline import load_classifier

        model = load_classifier(folder, **computing)
        found = (list(model.stream(window)) for window in waiting)
        said = progress(found, total, "texts") if out and total else itertools.chain.from_iterable(found)
        for number, label in enumerate(said):
            cut += label.cut > 0
            yield shown(label, number, every, as_json)

    put(lines(), out)
    if cut:
        note(f"{cut:,} texts were read only as far as the model reads: --json says how many tokens were cut")


def shown(label: Label, number: int, every: bool, as_json: bool) -> str:
    """Return the line for one text."""
    if as_json:
        facts: dict[str, Any] = {"number": number, "text": label.text, "label": str(label) or None}
        facts |= {"probability": round(label.probability, 6), "cut": label.cut}
        if every:
            facts["probabilities"] = {name: round(chance, 6) for name, chance in label.probabilities.items()}
        return json_line(facts)
    if every:
        return "\t".join(f"{name}\t{chance:.4f}" for name, chance in label.probabilities.items())
    return f"{label}\t{label.probability:.4f}"


def evaluate_labels(
    folder: str, files: tuple[str, ...], reading: ReadConfig, out: str | None, as_json: bool, computing: dict[str, Any]
) -> None:
    """Label a test set and give accuracy with its interval, macro-F1 and the table of confusions."""
    from regard.data.labelled import read_labelled
    from regard.pipeline import load_classifier

    rows = read_labelled(files, reading)
    model = load_classifier(folder, **computing)
    rows.numbers(model.labels)  # an unknown label is refused before anything is computed
    said = list(progress((list(model.stream(window)) for window in windows(rows.texts)), len(rows), "texts"))
    if out:
        write_lines(out, (f"{label}\t{label.probability:.4f}" for label in said))
    scores = model.scores(rows, said)
    low, high = scores["accuracy_low"], scores["accuracy_high"]
    lines = [
        f"{len(rows):,} texts, accuracy {scores['accuracy']:.2f} % (95 % interval {low:.1f} to {high:.1f}), "
        f"macro-F1 {scores['macro_f1']:.2f} %",
        "rows are what is right, columns what was said:",
        *table([["", *model.labels], *([label, *map(str, row)] for label, row in _rows(scores))]),
    ]
    if scores["cut"]:
        lines.append(f"{scores['cut']:,} texts were read only as far as the model reads")
    give(scores, lines, as_json)


def _rows(scores: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    return zip(scores["labels"], scores["confusion"], strict=True)
