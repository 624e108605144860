"""Error analysis of a classifier: confusions, confident errors, error rates by length, and doubtful gold labels.

`analyse_errors` computes it as plain values; `errors_page` renders them as one self-contained page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Protocol

import numpy as np

MAX_ROWS = 40  # of each list
LENGTH_BOUNDS = (5, 10, 20, 40, 80, 160)  # upper bounds of the length groups, in words
RARE_WORD_BOUNDS = (0, 1, 2, 4)
MAX_GOLD_PROBABILITY = 0.2  # a gold label below it is doubtful where another label is confident
_WORD = re.compile(r"\w+")


class LabelledRows(Protocol):
    """Texts with their gold labels."""

    @property
    def texts(self) -> list[str]: ...
    @property
    def locations(self) -> list[str]: ...
    @property
    def label_sets(self) -> list[tuple[str, ...]]: ...


class LabelPrediction(Protocol):
    """Prediction of a model for a text."""

    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def probabilities(self) -> Mapping[str, float]: ...
    @property
    def probability(self) -> float: ...


def analyse_errors(
    texts: LabelledRows, predictions: Sequence[LabelPrediction], labels: Sequence[str]
) -> dict[str, Any]:
    """Analyse the errors of predictions; the result has plain values only."""
    gold = texts.label_sets
    errors = [index for index, prediction in enumerate(predictions) if set(prediction.labels) != set(gold[index])]
    confusions: Counter[tuple[str, str]] = Counter()
    for index in errors:
        pairs = product(gold[index] or ("",), predictions[index].labels or ("",))
        confusions.update((true, predicted) for true, predicted in pairs if true != predicted)
    word_counts = Counter(_WORD.findall(" ".join(texts.texts).lower()))
    lengths = [len(text.split()) for text in texts.texts]
    rare_words = [_count_rare_words(text, word_counts) for text in texts.texts]
    confident = sorted(errors, key=lambda index: (-predictions[index].probability, index))[:MAX_ROWS]
    doubtful = _find_doubtful_labels(predictions, gold, labels)[:MAX_ROWS]
    return {
        "texts": len(predictions),
        "errors": len(errors),
        "labels": list(labels),
        "confusions": [[*pair, count] for pair, count in confusions.most_common(MAX_ROWS)],
        "confident_errors": [_describe_example(texts, predictions[index], index) for index in confident],
        "by_length": _group_errors(lengths, LENGTH_BOUNDS, set(errors), "words"),
        "by_rare_words": _group_errors(rare_words, RARE_WORD_BOUNDS, set(errors), "words seen once"),
        "doubtful_labels": [_describe_example(texts, predictions[index], index) for index in doubtful],
    }


def _count_rare_words(text: str, word_counts: Counter[str]) -> int:
    """Number of words of a text that occur once in the data."""
    return sum(word_counts[word] == 1 for word in _WORD.findall(text.lower()))


def _describe_example(texts: LabelledRows, prediction: LabelPrediction, index: int) -> dict[str, Any]:
    gold = texts.label_sets[index]
    gold_probability = min((prediction.probabilities.get(label, 0.0) for label in gold), default=0.0)
    return {
        "text": texts.texts[index],
        "location": texts.locations[index],
        "true_labels": list(gold),
        "predicted_labels": list(prediction.labels),
        "probability": round(prediction.probability, 4),
        "true_probability": round(gold_probability, 4),
    }


def _group_errors(sizes: Sequence[int], bounds: Sequence[int], errors: set[int], unit: str) -> list[dict[str, Any]]:
    """Count texts and errors by size; groups without texts are left out.

    >>> _group_errors([1, 9, 8], (5,), {1}, "words")
    [{'group': '0–5 words', 'texts': 1, 'errors': 0}, {'group': 'over 5 words', 'texts': 2, 'errors': 1}]
    """
    groups = []
    lower = -1
    for upper in (*bounds, None):
        members = [index for index, size in enumerate(sizes) if lower < size and (upper is None or size <= upper)]
        if members:
            name = _group_name(lower, upper)
            num_errors = sum(index in errors for index in members)
            groups.append({"group": f"{name} {unit}", "texts": len(members), "errors": num_errors})
        if upper is not None:
            lower = upper
    return groups


def _group_name(lower: int, upper: int | None) -> str:
    """Name the group of sizes above `lower` and up to `upper`."""
    if upper is None:
        return f"over {lower}"
    return f"{lower + 1}–{upper}" if upper > lower + 1 else f"{upper}"


def _find_doubtful_labels(
    predictions: Sequence[LabelPrediction], gold: Sequence[tuple[str, ...]], labels: Sequence[str]
) -> list[int]:
    """Find texts whose gold label is probably wrong, most probable first (confident learning, Northcutt et al., 2021).

    The model is at least as confident in another label as it is on average on texts with that label, and the gold label
    has a low probability.
    """

    def probability(index: int, label: str) -> float:
        return predictions[index].probabilities.get(label, 0.0)

    thresholds = _mean_probabilities(labels, gold, probability)
    doubtful = []
    for index, gold_labels in enumerate(gold):
        other_labels = [label for label in predictions[index].labels if label not in gold_labels]
        if len(gold_labels) != 1 or not other_labels:
            continue
        gold_probability = probability(index, gold_labels[0])
        if gold_probability >= MAX_GOLD_PROBABILITY:
            continue
        if probability(index, other_labels[0]) >= thresholds[other_labels[0]]:
            doubtful.append((gold_probability, index))
    return [index for _, index in sorted(doubtful)]


def _mean_probabilities(
    labels: Sequence[str], gold: Sequence[tuple[str, ...]], probability: Callable[[int, str], float]
) -> dict[str, float]:
    """Mean probability of each label over the texts that have it; 1 for a label without texts."""
    means = {}
    for label in labels:
        probabilities = [probability(index, label) for index, gold_labels in enumerate(gold) if label in gold_labels]
        means[label] = float(np.mean(probabilities)) if probabilities else 1.0
    return means


_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p { color: GrayText; max-width: 48rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid #8884; }
th { font-weight: 600; font-size: 13px; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
meter { width: 8rem; } .location { color: GrayText; font-size: 12px; }
"""


def errors_page(analysis: Mapping[str, Any], *, title: str) -> str:
    """Render the page; texts are escaped, and its security policy allows no script.

    >>> empty = dict.fromkeys(("confident_errors", "doubtful_labels", "by_length", "by_rare_words"), [])
    >>> analysis = {"texts": 2, "errors": 1, "confusions": [["good", "<bad>", 1]], **empty}
    >>> page = errors_page(analysis, title="runs/mood")
    >>> "&lt;bad&gt;" in page, "<bad>" in page, "1 of 2 texts" in page
    (True, False, True)
    """
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    percent = 100 * analysis["errors"] / max(1, analysis["texts"])
    confusions = [[_format_label(true), _format_label(label), count] for true, label, count in analysis["confusions"]]
    parts = [
        f"<h1>Error analysis of {html.escape(title)}</h1>",
        f"<p>{analysis['errors']:,} of {analysis['texts']:,} texts ({percent:.1f} %) have a wrong prediction.</p>",
        *_section(
            "Confusions",
            "Which label was predicted for which, the most frequent first.",
            ("true label", "prediction", "texts"),
            confusions,
        ),
        *_section(
            "Confident errors",
            "Wrong predictions with the highest probabilities.",
            _EXAMPLE_HEADER,
            _example_rows(analysis["confident_errors"]),
        ),
        *_section(
            "Doubtful labels",
            "The label in the data has a low probability, and the model is more confident in another label than it is "
            "on average on texts with that label: check these first.",
            _EXAMPLE_HEADER,
            _example_rows(analysis["doubtful_labels"]),
        ),
        *_section("By length", "", ("length", "texts", "errors", ""), _error_rate_rows(analysis["by_length"])),
        *_section(
            "By rare words", "", ("rare words", "texts", "errors", ""), _error_rate_rows(analysis["by_rare_words"])
        ),
    ]
    head = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><title>{html.escape(title)}: errors</title>'
        f"<style>{_STYLE}</style></head><body>"
    )
    return "\n".join([head, *parts, "</body></html>"])


class _Html(str):
    """Markup that must not be escaped again."""


def _format_label(label: str) -> str:
    return label or "(no label)"


_EXAMPLE_HEADER = ("text", "true label", "prediction", "its probability", "probability of the true label")


def _example_rows(examples: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for example in examples:
        location = f'<span class="location">{html.escape(example["location"])}</span>'
        row = [
            _Html(f"{html.escape(example['text'])} {location}"),
            _format_label(", ".join(example["true_labels"])),
            _format_label(", ".join(example["predicted_labels"])),
            example["probability"],
            example["true_probability"],
        ]
        rows.append(row)
    return rows


def _error_rate_rows(groups: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for group in groups:
        error_rate = group["errors"] / max(1, group["texts"])
        meter = _Html(f'<meter value="{error_rate:.4f}"></meter> {error_rate:.1%}')
        rows.append([group["group"], group["texts"], group["errors"], meter])
    return rows


def _section(title: str, text: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Heading, explanation and table; nothing where the table has no rows."""
    if not rows:
        return []
    cells = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in header)
    lines = [f"<h2>{html.escape(title)}</h2>", f"<p>{html.escape(text)}</p>" if text else ""]
    lines.append(f"<table><tr>{cells}</tr>")
    lines += [f"<tr>{''.join(map(_format_cell, row))}</tr>" for row in rows]
    return [*lines, "</table>"]


def _format_cell(content: Any) -> str:
    if isinstance(content, int | float):
        return f'<td class="number">{content:,}</td>'
    return f"<td>{content if isinstance(content, _Html) else html.escape(str(content))}</td>"
