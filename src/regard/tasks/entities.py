"""Entities as BIO tags: valid transitions, Viterbi decoding, strict entity scores, and a most-frequent-tag baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
FloatArray = NDArray[np.floating]


class TagSpan(NamedTuple):
    """An entity: the words from `start` up to `stop`, with its label."""

    start: int
    stop: int
    label: str


def tag_spans(tags: Sequence[str]) -> list[TagSpan]:
    """Entities of valid BIO tags.

    >>> tag_spans(["O", "B-place", "I-place", "B-place"])
    [TagSpan(start=1, stop=3, label='place'), TagSpan(start=3, stop=4, label='place')]
    """
    spans: list[TagSpan] = []
    for index, tag in enumerate(tags):
        if tag.startswith("B-"):
            spans.append(TagSpan(index, index + 1, label=tag[2:]))
        elif tag.startswith("I-") and spans and spans[-1].stop == index and spans[-1].label == tag[2:]:
            spans[-1] = spans[-1]._replace(stop=index + 1)
    return spans


def tag_transitions(tags: Sequence[str]) -> NDArray[np.bool_]:
    """Which tag may follow which, [tags + 1, tags]; the last row is the start of a sentence.

    >>> tag_transitions(["O", "B-x", "I-x"]).tolist()
    [[True, True, False], [True, True, True], [True, True, True], [True, True, False]]
    """
    allowed = np.ones((len(tags) + 1, len(tags)), dtype=np.bool_)
    for column, tag in enumerate(tags):
        if tag.startswith("I-"):
            same_label = [previous[2:] == tag[2:] and previous[:2] in ("B-", "I-") for previous in tags]
            allowed[:, column] = [*same_label, False]
    return allowed


def viterbi(logprobs: FloatArray, allowed: NDArray[np.bool_]) -> Indices:
    """Most likely valid tags of a sentence, by logprobs [words, tags] and the allowed transitions.

    >>> logprobs = np.log([[0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
    >>> viterbi(logprobs, tag_transitions(["O", "B-x", "I-x"])).tolist()
    [1, 2]
    """
    penalty = np.where(allowed, 0.0, -np.inf)
    best_logprobs = np.asarray(logprobs[0] + penalty[-1], dtype=np.float64)  # [tags], of the best path to each tag
    back_pointers = np.zeros(logprobs.shape, dtype=np.int64)
    for word in range(1, len(logprobs)):
        path_logprobs = best_logprobs[:, None] + penalty[:-1]  # [previous tag, tag]
        back_pointers[word] = path_logprobs.argmax(0)
        best_logprobs = path_logprobs[back_pointers[word], np.arange(len(best_logprobs))] + logprobs[word]
    path = np.zeros(len(logprobs), dtype=np.int64)
    path[-1] = best_logprobs.argmax()
    for word in range(len(logprobs) - 1, 0, -1):
        path[word - 1] = back_pointers[word, path[word]]
    return path


def entity_counts(
    predictions: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], labels: Sequence[str] | None = None
) -> Indices:
    """Correct, predicted and target entities of each sentence, [sentences, 1 or labels, 3].

    An entity is correct if its words and its label are. With `labels`, only their entities count, each by label.
    """
    num_groups = 1 if labels is None else len(labels)
    counts = np.zeros((len(predictions), num_groups, 3), dtype=np.int64)
    for sentence_counts, predicted_tags, target_tags in zip(counts, predictions, targets, strict=True):
        predicted = {*tag_spans(predicted_tags)}
        target = {*tag_spans(target_tags)}
        for column, spans in enumerate((predicted & target, predicted, target)):
            for span in spans:
                if labels is None:
                    sentence_counts[0, column] += 1
                elif span.label in labels:
                    sentence_counts[labels.index(span.label), column] += 1
    return counts


def entity_scores(predictions: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> dict[str, float]:
    """Strict precision, recall and F1 of entities, and the accuracy of tags, in percent.

    >>> round(entity_scores([["B-x", "O", "B-y"]], [["B-x", "O", "B-x"]])["f1"], 1)
    50.0
    """
    num_correct, num_predicted, num_target = entity_counts(predictions, targets).sum((0, 1)).tolist()
    num_words = 0
    num_correct_words = 0
    for predicted_tags, target_tags in zip(predictions, targets, strict=True):
        for predicted, target in zip(predicted_tags, target_tags, strict=True):
            num_words += 1
            num_correct_words += predicted == target
    return {
        "f1": 200.0 * num_correct / max(1, num_predicted + num_target),
        "precision": 100.0 * num_correct / max(1, num_predicted),
        "recall": 100.0 * num_correct / max(1, num_target),
        "accuracy": 100.0 * num_correct_words / max(1, num_words),
    }


def most_frequent_tags(
    sentences: Sequence[tuple[Sequence[str], Sequence[str]]], target_words: Sequence[Sequence[str]], tags: Sequence[str]
) -> list[list[str]]:
    """Baseline: the most frequent tag of each word in the training sentences, with valid transitions.

    >>> train = [(["in", "York"], ["O", "B-place"])]
    >>> most_frequent_tags(train, [["near", "York"]], ["O", "B-place", "I-place"])
    [['O', 'B-place']]
    """
    tag_indices = {tag: index for index, tag in enumerate(tags)}
    word_counts: dict[str, NDArray[np.float64]] = {}
    prior = np.zeros(len(tags))
    for words, word_tags in sentences:
        for word, tag in zip(words, word_tags, strict=True):
            word_counts.setdefault(word, np.zeros(len(tags)))[tag_indices[tag]] += 1
            prior[tag_indices[tag]] += 1
    prior /= max(1.0, prior.sum())
    allowed = tag_transitions(tags)
    predictions = []
    for words in target_words:
        scores = np.stack([word_counts.get(word, np.zeros(len(tags))) + prior + 1e-9 for word in words])
        path = viterbi(np.log(scores / scores.sum(1, keepdims=True)), allowed)
        predictions.append([tags[index] for index in path])
    return predictions
