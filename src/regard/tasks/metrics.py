"""Metrics of texts and labels, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacrebleuMetric

LENGTH_LIMITS = (10, 20, 30, 40, 60)  # largest source length of each group, in words
UNLIMITED = 10**9
MIN_PROBABILITY = 1e-12  # before the logarithm
SHORT_SOURCE_WORDS = 20  # a source with at most so many words is short
LONG_SOURCE_WORDS = 40  # a source with more words than this is long
MAX_PERPLEXITY = 1e6
NORMAL_QUANTILE = 1.959964  # 97.5 % quantile of the normal distribution: 95 % intervals


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Percentage of hypotheses that equal their reference.

    >>> exact_match(["a b", "c"], ["a b", "d"])
    50.0
    """
    num_equal = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return 100.0 * num_equal / max(1, len(references))


def perplexity(loss: float, count: int) -> float:
    """Exponential of the mean loss per token, at most a million."""
    return math.exp(min(loss / max(1, count), math.log(MAX_PERPLEXITY)))


def negative_log_likelihood(probabilities: NDArray[np.floating], targets: NDArray[np.int64]) -> float:
    """Mean negative logarithm of the probabilities [N, labels] of the targets [N]; 0 where there are none.

    >>> round(negative_log_likelihood(np.array([[0.5, 0.5], [0.75, 0.25]]), np.array([0, 1])), 4)
    1.0397
    """
    target_probabilities = probabilities[np.arange(len(targets)), targets].astype(np.float64)
    return float(-np.log(np.maximum(target_probabilities, MIN_PROBABILITY)).sum() / max(1, len(targets)))


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> float:
    """Corpus BLEU with 13a tokenization (sacrebleu).

    >>> round(bleu(["the cat sat on the mat"], ["the cat sat on the mat"]), 3)
    100.0
    """
    from sacrebleu.metrics import BLEU

    return corpus_score(BLEU(lowercase=lowercase), hypotheses, references)


def corpus_score(metric: SacrebleuMetric, hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Score of a metric of sacrebleu, with one reference per hypothesis."""
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)


class LengthGroup(TypedDict):
    """Translations of sources of similar length."""

    words: str  # range of the number of words
    sentences: int
    bleu: float


def scores_by_length(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> list[LengthGroup]:
    """BLEU by source length in words: how translation quality depends on sentence length."""
    limits = (0, *LENGTH_LIMITS, UNLIMITED)
    groups = [_score_length_group(low, high, sources, hypotheses, references) for low, high in pairwise(limits)]
    return [group for group in groups if group["sentences"]]


def _score_length_group(
    low: int, high: int, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> LengthGroup:
    """Size and BLEU of the sources with more than `low` and at most `high` words."""
    indices = [index for index, text in enumerate(sources) if low < max(1, len(text.split())) <= high]
    group_hypotheses = [hypotheses[index] for index in indices]
    group_references = [references[index] for index in indices]
    name = f"{low + 1}–{high}" if high < UNLIMITED else f"over {low}"
    score = bleu(group_hypotheses, group_references) if indices else 0.0
    return {"words": name, "sentences": len(indices), "bleu": score}


def confusion_matrix(targets: NDArray[np.int64], predictions: NDArray[np.int64], num_labels: int) -> NDArray[np.int64]:
    """Number of texts by target and predicted label, [labels, labels]; rows are targets.

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    counts = np.bincount(targets * num_labels + predictions, minlength=num_labels * num_labels)
    return counts.reshape(num_labels, num_labels)


def label_scores(confusion: NDArray[np.int64]) -> dict[str, float]:
    """Accuracy with its 95 % interval (Wilson 1927) and macro-F1, in percent, from a confusion matrix.

    Macro-F1 is the mean over the labels that occur, as target or as prediction.

    >>> {name: round(value, 1) for name, value in label_scores(np.array([[8, 2], [0, 0]])).items()}
    {'accuracy': 80.0, 'accuracy_low': 49.0, 'accuracy_high': 94.3, 'macro_f1': 44.4}
    """
    count = int(confusion.sum())
    if not count:
        raise UsageError("there is nothing to compare: the test set is empty")
    accuracy = int(np.trace(confusion)) / count
    squared = NORMAL_QUANTILE**2
    centre = (accuracy + squared / (2 * count)) / (1 + squared / count)
    variance = accuracy * (1 - accuracy) / count + squared / (4 * count**2)
    half_width = math.sqrt(squared * variance) / (1 + squared / count)
    sums = confusion.sum(0) + confusion.sum(1)  # texts with the label as prediction, plus those with it as target
    occurs = sums > 0
    f1 = 2 * np.diag(confusion)[occurs] / sums[occurs]
    return {
        "accuracy": 100 * accuracy,
        "accuracy_low": 100 * (centre - half_width),
        "accuracy_high": 100 * (centre + half_width),
        "macro_f1": 100 * float(f1.mean()),
    }
