"""Attention rollout (Abnar and Zuidema 2020): how much of each input token reaches each position through all layers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESIDUAL_SHARE = 0.5  # of a token that its residual connection passes on
MIN_TOTAL = 1e-6  # of a row of attention weights; below it the query attends to nothing
Floats = NDArray[np.floating[Any]]


def rollout_step(weights: Floats, *, has_residual: bool) -> Floats:
    """What a layer passes on, [tokens, tokens]: its attention, half of it replaced by a residual connection if any.

    A token that attends to nothing passes on itself.

    >>> rollout_step(np.array([[0.0, 1.0], [0.0, 0.0]]), has_residual=True).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    >>> rollout_step(np.array([[0.0, 1.0], [0.0, 0.0]]), has_residual=False).tolist()
    [[0.0, 1.0], [0.0, 1.0]]
    """
    identity = np.eye(len(weights))
    total = weights.sum(axis=1, keepdims=True)
    attention = np.where(total > MIN_TOTAL, weights / np.maximum(total, MIN_TOTAL), identity)
    if not has_residual:
        return attention
    return (1 - RESIDUAL_SHARE) * attention + RESIDUAL_SHARE * identity


def roll_out(steps: Iterable[Floats]) -> Floats:
    """How much of each input token reaches each position of the last layer; `steps` begin with the first layer.

    >>> roll_out([np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])]).tolist()
    [[0.0, 1.0], [0.5, 0.5]]
    """
    return reduce(lambda below, step: step @ below, steps)
