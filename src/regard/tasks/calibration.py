"""Chances that mean what they say: one temperature for all scores, one threshold for each label, and how far off."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Floats = NDArray[np.floating]

BINS = 15
LOWEST, HIGHEST = 0.05, 20.0  # temperatures that are tried
GOLDEN = (math.sqrt(5) - 1) / 2


def calibration_error(confidence: Floats, right: NDArray[np.bool_], bins: int = BINS) -> float:
    """Return the expected calibration error (Guo et al. 2017): how far the confidence in a bin is from the share right.

    >>> calibration_error(np.array([0.9, 0.9, 0.9, 0.9]), np.array([True, True, True, False]))
    0.15000000000000002
    """
    places = np.minimum((np.asarray(confidence) * bins).astype(int), bins - 1)
    gaps = np.bincount(places, weights=np.asarray(confidence, dtype=np.float64) - right, minlength=bins)
    return float(np.abs(gaps).sum() / max(1, len(places)))


def softmax_probabilities(logits: Floats, temperature: float = 1.0) -> NDArray[np.float64]:
    """Return chances of labels that exclude each other, [N, labels]."""
    raised = np.asarray(logits, dtype=np.float64) / temperature
    raised = np.exp(raised - raised.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def sigmoid_probabilities(logits: Floats, temperature: float = 1.0) -> NDArray[np.float64]:
    """Return chances of labels that do not exclude each other, [N, labels]."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * np.asarray(logits, dtype=np.float64) / temperature)))


def label_loss(scores: Floats, labels: Numbers, temperature: float = 1.0) -> float:
    """Return the mean surprise at the right label, one for each text."""
    raised = np.asarray(scores, dtype=np.float64) / temperature
    raised = raised - raised.max(axis=1, keepdims=True)
    return float((np.log(np.exp(raised).sum(1)) - raised[np.arange(len(labels)), labels]).mean())


def multi_label_loss(logits: Floats, label_matrix: Floats, temperature: float = 1.0) -> float:
    """Return the mean surprise at having or not having each label."""
    raised = np.asarray(logits, dtype=np.float64) / temperature
    return float(np.logaddexp(0.0, np.where(np.asarray(label_matrix) > 0, -raised, raised)).mean())


def fit_temperature(logits: Floats, targets: Numbers | Floats) -> float:
    """Return the temperature at which what is right surprises least; `wanted` is [N], or marks [N, labels].

    The loss is convex in its inverse, so that a search by golden section finds it.

    >>> scores = np.array([[4.0, 0.0]] * 4)
    >>> round(fit_temperature(scores, np.array([0, 0, 0, 1])), 2)  # three in four are right: e^(4/t) = 3
    3.64
    """
    loss = label_loss if targets.ndim == 1 else multi_label_loss
    low, high = 1 / HIGHEST, 1 / LOWEST
    for _ in range(60):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if loss(logits, targets, 1 / left) <= loss(logits, targets, 1 / right):  # type: ignore[arg-type]
            high = right
        else:
            low = left
    return 2 / (low + high)


def fit_thresholds(probabilities: Floats, label_matrix: Floats) -> NDArray[np.float64]:
    """Return for each label the chance from which giving it has the best F1; one half where it never occurs.

    >>> fit_thresholds(np.array([[0.1], [0.3], [0.4], [0.2]]), np.array([[0.0], [1.0], [1.0], [0.0]])).tolist()
    [0.25]
    """
    made = np.full(probabilities.shape[1], 0.5)
    for label in range(probabilities.shape[1]):
        ranked = np.argsort(-probabilities[:, label], kind="stable")
        found, wanted = probabilities[ranked, label].astype(np.float64), label_matrix[ranked, label] > 0
        if not wanted.any():
            continue
        given = np.arange(1, len(ranked) + 1)
        f1 = 2 * np.cumsum(wanted) / (given + wanted.sum())
        f1[:-1][found[:-1] == found[1:]] = -1.0  # equal chances are given together
        middles = (found + np.append(found[1:], 0.0)) / 2
        best = np.flatnonzero(f1 >= f1.max() - 1e-12)
        made[label] = middles[best[np.argmin(np.abs(middles[best] - 0.5))]]
    return made


def multi_label_f1(predicted: NDArray[np.bool_], label_matrix: Floats) -> dict[str, float]:
    """Return micro- and macro-F1 in percent, and how many texts have exactly their labels; macro over those that occur.

    >>> multi_label_f1(np.array([[True, False], [True, True]]), np.array([[1.0, 0.0], [0.0, 1.0]]))["micro_f1"]
    80.0
    """
    wanted = np.asarray(label_matrix) > 0
    both, sums = (predicted & wanted).sum(0), predicted.sum(0) + wanted.sum(0)
    occurs = sums > 0
    macro = 2 * both[occurs] / sums[occurs]
    return {
        "micro_f1": 200.0 * float(both.sum()) / max(1, int(sums.sum())),
        "macro_f1": 100.0 * float(macro.mean()) if occurs.any() else 0.0,
        "exact": 100.0 * float((predicted == wanted).all(1).mean()),
    }
