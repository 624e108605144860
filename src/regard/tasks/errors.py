"""An error book: which labels are confused, where a model is sure and wrong, and which given labels may be wrong."""

from __future__ import annotations

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


class Rows(Protocol):
    """Texts with the labels that people gave them."""

    @property
    def texts(self) -> list[str]: ...
    @property
    def places(self) -> list[str]: ...
    @property
    def each(self) -> list[tuple[str, ...]]: ...


class Said(Protocol):
    """What a model says of a text."""

    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def probabilities(self) -> Mapping[str, float]: ...
    @property
    def probability(self) -> float: ...


def label_errors(rows: Rows, said: Sequence[Said], labels: Sequence[str]) -> dict[str, Any]:
    """Return the error book of labels that were given, as plain values: what `view.errors_page` shows."""
    wanted = rows.each
    wrong = [number for number, one in enumerate(said) if {*one.labels} != {*wanted[number]}]
    confused: Counter[tuple[str, str]] = Counter()
    for number in wrong:
        pairs = product(wanted[number] or ("",), said[number].labels or ("",))
        confused.update(pair for pair in pairs if pair[0] != pair[1])
    counts = Counter(_WORD.findall(" ".join(rows.texts).lower()))
    lengths = [len(text.split()) for text in rows.texts]
    rare = [sum(counts[word] == 1 for word in _WORD.findall(text.lower())) for text in rows.texts]
    sure = sorted(wrong, key=lambda number: (-said[number].probability, number))[:SHOWN]
    return {
        "texts": len(said),
        "wrong": len(wrong),
        "labels": list(labels),
        "confusions": [[*pair, count] for pair, count in confused.most_common(SHOWN)],
        "sure": [_example(rows, said, number) for number in sure],
        "by_length": _groups(lengths, LENGTHS, {*wrong}, "words"),
        "by_rare_words": _groups(rare, RARE, {*wrong}, "words seen once"),
        "doubtful": [_example(rows, said, number) for number in _doubtful(said, wanted, labels)[:SHOWN]],
    }


def _example(rows: Rows, said: Sequence[Said], number: int) -> dict[str, Any]:
    one = said[number]
    chance = min((one.probabilities.get(label, 0.0) for label in rows.each[number]), default=0.0)
    facts: dict[str, Any] = {"text": rows.texts[number], "place": rows.places[number]}
    facts |= {"wanted": list(rows.each[number]), "said": list(one.labels)}
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


def _doubtful(said: Sequence[Said], wanted: Sequence[tuple[str, ...]], labels: Sequence[str]) -> list[int]:
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
