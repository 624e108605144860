"""An error book: which labels are confused, where a model is sure and wrong, and which given labels may be wrong.

An error book as one self-contained page: what a classifier confuses, where it is sure and wrong, what to look at.
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

SHOWN = 40  # examples in a list
LENGTHS = (5, 10, 20, 40, 80, 160)  # upper ends of groups, in words
RARE = (0, 1, 2, 4)
UNLIKELY = 0.2  # a given label with less than this chance may be wrong, where another one is sure
_WORD = re.compile(r"\w+")


class LabelledRows(Protocol):
    """Texts with the labels that people gave them."""

    @property
    def texts(self) -> list[str]: ...
    @property
    def locations(self) -> list[str]: ...
    @property
    def label_sets(self) -> list[tuple[str, ...]]: ...


class LabelPrediction(Protocol):
    """What a model says of a text."""

    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def probabilities(self) -> Mapping[str, float]: ...
    @property
    def probability(self) -> float: ...


def analyse_errors(
    texts: LabelledRows, predictions: Sequence[LabelPrediction], labels: Sequence[str]
) -> dict[str, Any]:
    """Return the error book of labels that were given, as plain values: what `view.errors_page` shows."""
    wanted = texts.label_sets
    wrong = [number for number, one in enumerate(predictions) if {*one.labels} != {*wanted[number]}]
    confused: Counter[tuple[str, str]] = Counter()
    for number in wrong:
        pairs = product(wanted[number] or ("",), predictions[number].labels or ("",))
        confused.update(pair for pair in pairs if pair[0] != pair[1])
    counts = Counter(_WORD.findall(" ".join(texts.texts).lower()))
    lengths = [len(text.split()) for text in texts.texts]
    rare = [sum(counts[word] == 1 for word in _WORD.findall(text.lower())) for text in texts.texts]
    sure = sorted(wrong, key=lambda number: (-predictions[number].probability, number))[:SHOWN]
    return {
        "texts": len(predictions),
        "wrong": len(wrong),
        "labels": list(labels),
        "confusions": [[*pair, count] for pair, count in confused.most_common(SHOWN)],
        "sure": [_example(texts, predictions, number) for number in sure],
        "by_length": _groups(lengths, LENGTHS, {*wrong}, "words"),
        "by_rare_words": _groups(rare, RARE, {*wrong}, "words seen once"),
        "doubtful": [_example(texts, predictions, number) for number in _doubtful(predictions, wanted, labels)[:SHOWN]],
    }


def _example(rows: LabelledRows, said: Sequence[LabelPrediction], number: int) -> dict[str, Any]:
    one = said[number]
    chance = min((one.probabilities.get(label, 0.0) for label in rows.label_sets[number]), default=0.0)
    facts: dict[str, Any] = {"text": rows.texts[number], "place": rows.locations[number]}
    facts |= {"wanted": list(rows.label_sets[number]), "said": list(one.labels)}
    return {**facts, "probability": round(one.probability, 4), "wanted_probability": round(chance, 4)}


def _groups(values: Sequence[int], ends: Sequence[int], wrong: set[int], what: str) -> list[dict[str, Any]]:
    """Return how many texts of each size there are and how many of them are wrong.

    >>> _groups([1, 9, 8], (5,), {1}, "words")
    [{'group': '0–5 words', 'texts': 1, 'wrong': 0}, {'group': 'over 5 words', 'texts': 2, 'wrong': 1}]
    """
    made = []
    for low, high in zip((-1, *ends), (*ends, 10**9), strict=True):
        inside = [number for number, value in enumerate(values) if low < value <= high]
        name = f"over {low}" if high == 10**9 else f"{low + 1}–{high}" if high > low + 1 else f"{high}"
        if inside:
            count = sum(number in wrong for number in inside)
            made.append({"group": f"{name} {what}", "texts": len(inside), "wrong": count})
    return made


def _doubtful(said: Sequence[LabelPrediction], wanted: Sequence[tuple[str, ...]], labels: Sequence[str]) -> list[int]:
    """Return texts whose given label is likely wrong, the likeliest first (after Northcutt et al. 2021).

    A model is surer of another label than it usually is of texts that have that label, and hardly believes the given.
    """

    def chance(number: int, label: str) -> float:
        return said[number].probabilities.get(label, 0.0)

    usual = _means(labels, wanted, chance)
    found = []
    for number, given in enumerate(wanted):
        other = [label for label in said[number].labels if label not in given]
        if len(given) != 1 or not other or chance(number, given[0]) >= UNLIKELY:
            continue
        if chance(number, other[0]) >= usual[other[0]]:
            found.append((chance(number, given[0]), number))
    return [number for _, number in sorted(found)]


def _means(
    labels: Sequence[str], wanted: Sequence[tuple[str, ...]], chance: Callable[[int, str], float]
) -> dict[str, float]:
    having = {label: [number for number, given in enumerate(wanted) if label in given] for label in labels}
    found = {label: [chance(number, label) for number in numbers] for label, numbers in having.items()}
    return {label: float(np.mean(values)) if values else 1.0 for label, values in found.items()}


_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p { color: GrayText; max-width: 48rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid #8884; }
th { font-weight: 600; font-size: 13px; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
meter { width: 8rem; } .place { color: GrayText; font-size: 12px; }
"""


def errors_page(book: Mapping[str, Any], *, title: str) -> str:
    """Return the page; texts enter it escaped, and its policy allows no script at all.

    >>> empty = {"texts": 2, "wrong": 1, "confusions": [["good", "<bad>", 1]], "sure": [], "doubtful": []}
    >>> made = errors_page({**empty, "by_length": [], "by_rare_words": []}, title="runs/mood")
    >>> "&lt;bad&gt;" in made, "<bad>" in made, "1 of 2 texts" in made
    (True, False, True)
    """
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    share = 100 * book["wrong"] / max(1, book["texts"])
    parts = [
        f"<h1>Error book of {html.escape(title)}</h1>",
        f"<p>{book['wrong']:,} of {book['texts']:,} texts ({share:.1f} %) have another label than they should.</p>",
        *_section(
            "Confusions",
            "Which label was given instead of which, the most frequent first.",
            ("right", "given", "texts"),
            [[_name(right), _name(given), count] for right, given, count in book["confusions"]],
        ),
        *_section("Sure and wrong", "The mistakes that the model was surest of.", *_examples(book["sure"])),
        *_section(
            "Likely wrong labels",
            "The model hardly believes the label that the data has, and is surer of another one than it usually is of "
            "texts that have that one: look at these first.",
            *_examples(book["doubtful"]),
        ),
        *_section("By length", "", ("length", "texts", "wrong", ""), _shares(book["by_length"])),
        *_section("By rare words", "", ("rare words", "texts", "wrong", ""), _shares(book["by_rare_words"])),
    ]
    head = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><title>{html.escape(title)}: errors</title>'
        f"<style>{_STYLE}</style></head><body>"
    )
    return "\n".join([head, *parts, "</body></html>"])


class _Html(str):
    """Text that is HTML already."""


def _name(label: str) -> str:
    return label or "(no label)"


def _examples(found: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], list[list[Any]]]:
    heads = ("text", "right", "given", "its chance", "chance of the right one")
    return heads, [
        [
            _Html(f'{html.escape(one["text"])} <span class="place">{html.escape(one["place"])}</span>'),
            _name(", ".join(one["wanted"])),
            _name(", ".join(one["said"])),
            one["probability"],
            one["wanted_probability"],
        ]
        for one in found
    ]


def _shares(groups: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for one in groups:
        share = one["wrong"] / max(1, one["texts"])
        meter = _Html(f'<meter value="{share:.4f}"></meter> {share:.1%}')
        rows.append([one["group"], one["texts"], one["wrong"], meter])
    return rows


def _section(title: str, text: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    if not rows:
        return []
    cells = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in heads)
    made = [f"<h2>{html.escape(title)}</h2>", f"<p>{html.escape(text)}</p>" if text else "", f"<table><tr>{cells}</tr>"]
    for row in rows:
        made.append(f"<tr>{''.join(map(_cell, row))}</tr>")
    return [*made, "</table>"]


def _cell(value: Any) -> str:
    if isinstance(value, int | float):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{value if isinstance(value, _Html) else html.escape(str(value))}</td>"
