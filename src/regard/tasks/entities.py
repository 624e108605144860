"""Tags that mark entities: which may follow which, the likeliest valid ones, strict scores, each word's usual tag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Floats = NDArray[np.floating]


class TagSpan(NamedTuple):
    """Words from `start` up to `stop` that are of a kind."""

    start: int
    stop: int
    label: str


def tag_spans(tags: Sequence[str]) -> list[TagSpan]:
    """Return the entities that valid tags mark.

    >>> tag_spans(["O", "B-place", "I-place", "B-place"])
    [TagSpan(start=1, stop=3, label='place'), TagSpan(start=3, stop=4, label='place')]
    """
    made: list[TagSpan] = []
    for place, tag in enumerate(tags):
        if tag.startswith("B-"):
            made.append(TagSpan(place, place + 1, tag[2:]))
        elif tag.startswith("I-") and made and made[-1].stop == place and made[-1].label == tag[2:]:
            made[-1] = made[-1]._replace(stop=place + 1)
    return made


def tag_transitions(tags: Sequence[str]) -> NDArray[np.bool_]:
    """Return which tag may follow which, [tags + 1, tags]; the last row is the beginning of a sentence.

    >>> tag_transitions(["O", "B-x", "I-x"]).tolist()
    [[True, True, False], [True, True, True], [True, True, True], [True, True, False]]
    """
    made = np.ones((len(tags) + 1, len(tags)), dtype=np.bool_)
    for column, tag in enumerate(tags):
        if tag.startswith("I-"):
            before = [other[2:] == tag[2:] and other[:2] in ("B-", "I-") for other in tags]
            made[:, column] = [*before, False]
    return made


def viterbi(logprobs: Floats, allowed: NDArray[np.bool_]) -> Numbers:
    """Return the likeliest valid tags of a sentence, given log-chances [words, tags] and `followers`.

    >>> scores = np.log([[0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
    >>> viterbi(scores, tag_transitions(["O", "B-x", "I-x"])).tolist()
    [1, 2]
    """
    barred = np.where(allowed, 0.0, -np.inf)
    total = np.asarray(logprobs[0] + barred[-1], dtype=np.float64)
    back = np.zeros(logprobs.shape, dtype=np.int64)
    for place in range(1, len(logprobs)):
        ways = total[:, None] + barred[:-1]
        back[place] = ways.argmax(0)
        total = ways[back[place], np.arange(len(total))] + logprobs[place]
    made = np.zeros(len(logprobs), dtype=np.int64)
    made[-1] = total.argmax()
    for place in range(len(logprobs) - 1, 0, -1):
        made[place - 1] = back[place, made[place]]
    return made


def entity_counts(
    said: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]], kinds: Sequence[str] | None = None
) -> Numbers:
    """Return of each sentence the entities that are right, said and wanted, [sentences, 1 or kinds, 3].

    An entity is right where its words and its kind are.
    """
    groups = 1 if kinds is None else len(kinds)
    made = np.zeros((len(said), groups, 3), dtype=np.int64)
    for row, given, right in zip(made, said, wanted, strict=True):
        sides = [{*tag_spans(given)}, {*tag_spans(right)}]
        for column, found in enumerate((sides[0] & sides[1], *sides)):
            for one in found:
                if kinds is None or one.label in kinds:
                    row[0 if kinds is None else kinds.index(one.label), column] += 1
    return made


def entity_scores(said: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return strict precision, recall and F1 of entities, in percent, and how many words have the right tag.

    >>> round(entity_scores([["B-x", "O", "B-y"]], [["B-x", "O", "B-x"]])["f1"], 1)
    50.0
    """
    right, given, there = (int(number) for number in entity_counts(said, wanted).sum((0, 1)))
    pairs = [(one, other) for row in zip(said, wanted, strict=True) for one, other in zip(*row, strict=True)]
    return {
        "f1": 200.0 * right / max(1, given + there),
        "precision": 100.0 * right / max(1, given),
        "recall": 100.0 * right / max(1, there),
        "accuracy": 100.0 * sum(one == other for one, other in pairs) / max(1, len(pairs)),
    }


def most_frequent_tags(
    sentences: Sequence[tuple[Sequence[str], Sequence[str]]], target_words: Sequence[Sequence[str]], tags: Sequence[str]
) -> list[list[str]]:
    """Return the tag that each word had most often, valid ones: what a model must beat.

    >>> seen = [(["in", "York"], ["O", "B-place"])]
    >>> most_frequent_tags(seen, [["near", "York"]], ["O", "B-place", "I-place"])
    [['O', 'B-place']]
    """
    place = {tag: number for number, tag in enumerate(tags)}
    counts: dict[str, NDArray[np.float64]] = {}
    usual = np.zeros(len(tags))
    for words, given in sentences:
        for word, tag in zip(words, given, strict=True):
            counts.setdefault(word, np.zeros(len(tags)))[place[tag]] += 1
            usual[place[tag]] += 1
    usual /= max(1.0, usual.sum())
    allowed = tag_transitions(tags)
    made = []
    for words in target_words:
        scores = np.stack([counts.get(word, np.zeros(len(tags))) + usual + 1e-9 for word in words])
        best = viterbi(np.log(scores / scores.sum(1, keepdims=True)), allowed)
        made.append([tags[number] for number in best])
    return made
