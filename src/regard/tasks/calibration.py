"""Calibration: temperature scaling, thresholds per label, and the metrics of probabilities and label matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
FloatArray = NDArray[np.floating]

BINS = 15
MIN_TEMPERATURE = 0.05
MAX_TEMPERATURE = 20.0
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
GOLDEN_SECTION_STEPS = 60


def calibration_error(confidence: FloatArray, is_correct: NDArray[np.bool_], bins: int = BINS) -> float:
    """Expected calibration error: mean distance of confidence and accuracy over bins (Guo et al. 2017).

    >>> calibration_error(np.array([0.9, 0.9, 0.9, 0.9]), np.array([True, True, True, False]))
    0.15000000000000002
    """
    bin_indices = np.minimum((np.asarray(confidence) * bins).astype(int), bins - 1)
    differences = np.asarray(confidence, dtype=np.float64) - is_correct
    bin_errors = np.bincount(bin_indices, weights=differences, minlength=bins)
    return float(np.abs(bin_errors).sum() / max(1, len(bin_indices)))


def softmax_probabilities(logits: FloatArray, temperature: float = 1.0) -> NDArray[np.float64]:
    """Probabilities of mutually exclusive labels, [N, labels]."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    exponentials = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def sigmoid_probabilities(logits: FloatArray, temperature: float = 1.0) -> NDArray[np.float64]:
    """Probabilities of independent labels, [N, labels]."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * np.asarray(logits, dtype=np.float64) / temperature)))


def label_loss(logits: FloatArray, labels: Indices, temperature: float = 1.0) -> float:
    """Mean cross-entropy of one label per text."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    return float((np.log(np.exp(scaled).sum(1)) - scaled[np.arange(len(labels)), labels]).mean())


def multi_label_loss(logits: FloatArray, label_matrix: FloatArray, temperature: float = 1.0) -> float:
    """Mean binary cross-entropy of all labels."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    return float(np.logaddexp(0.0, np.where(np.asarray(label_matrix) > 0, -scaled, scaled)).mean())


def fit_temperature(logits: FloatArray, targets: Indices | FloatArray) -> float:
    """Temperature of the lowest loss; targets are labels [N] or a label matrix [N, labels] (Guo et al. 2017).

    The loss is convex in the inverse temperature, so golden-section search finds its minimum.

    >>> logits = np.array([[4.0, 0.0]] * 4)
    >>> round(fit_temperature(logits, np.array([0, 0, 0, 1])), 2)  # three in four are right: e^(4/t) = 3
    3.64
    """
    loss = label_loss if targets.ndim == 1 else multi_label_loss
    low = 1 / MAX_TEMPERATURE
    high = 1 / MIN_TEMPERATURE
    for _ in range(GOLDEN_SECTION_STEPS):
        lower = high - GOLDEN_RATIO * (high - low)
        upper = low + GOLDEN_RATIO * (high - low)
        if loss(logits, targets, 1 / lower) <= loss(logits, targets, 1 / upper):  # type: ignore[arg-type]
            high = upper
        else:
            low = lower
    return 2 / (low + high)


def fit_thresholds(probabilities: FloatArray, label_matrix: FloatArray) -> NDArray[np.float64]:
    """Probability threshold of the best F1, per label; 0.5 for labels that do not occur.

    >>> fit_thresholds(np.array([[0.1], [0.3], [0.4], [0.2]]), np.array([[0.0], [1.0], [1.0], [0.0]])).tolist()
    [0.25]
    """
    thresholds = np.full(probabilities.shape[1], 0.5)
    for label in range(probabilities.shape[1]):
        order = np.argsort(-probabilities[:, label], kind="stable")
        sorted_probabilities = probabilities[order, label].astype(np.float64)
        is_target = label_matrix[order, label] > 0
        if not is_target.any():
            continue
        num_predicted = np.arange(1, len(order) + 1)
        f1 = 2 * np.cumsum(is_target) / (num_predicted + is_target.sum())
        f1[:-1][sorted_probabilities[:-1] == sorted_probabilities[1:]] = -1.0  # no threshold separates equal ones
        midpoints = (sorted_probabilities + np.append(sorted_probabilities[1:], 0.0)) / 2
        best = np.flatnonzero(f1 >= f1.max() - 1e-12)
        thresholds[label] = midpoints[best[np.argmin(np.abs(midpoints[best] - 0.5))]]
    return thresholds


def multi_label_f1(predicted: NDArray[np.bool_], label_matrix: NDArray[Any]) -> dict[str, float]:
    """Micro-F1, macro-F1 over the labels that occur, and exact matches, in percent.

    >>> multi_label_f1(np.array([[True, False], [True, True]]), np.array([[1.0, 0.0], [0.0, 1.0]]))["micro_f1"]
    80.0
    """
    targets = np.asarray(label_matrix) > 0
    correct = (predicted & targets).sum(0)
    sums = predicted.sum(0) + targets.sum(0)
    occurs = sums > 0
    label_f1 = 2 * correct[occurs] / sums[occurs]
    return {
        "micro_f1": 200.0 * float(correct.sum()) / max(1, int(sums.sum())),
        "macro_f1": 100.0 * float(label_f1.mean()) if occurs.any() else 0.0,
        "exact_match": 100.0 * float((predicted == targets).all(1).mean()),
    }
