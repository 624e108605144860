"""Batches: rows of like length together, as many as a budget of tokens allows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regard.data.order import chance, order

Numbers = NDArray[np.int64]


def cut(lengths: Numbers, arranged: Numbers, budget: int, rows: int | None = None) -> list[Numbers]:
    """Return the arranged example numbers cut into batches of at most `budget` tokens (a lone longer one is allowed).

    `lengths` is [examples, sides]; the side with more tokens counts. `rows` is the most examples of a batch.

    >>> [batch.tolist() for batch in cut(np.array([[2], [2], [3]]), np.array([0, 1, 2]), 4)]
    [[0, 1], [2]]
    """
    made, first = [], 0
    total = [0] * lengths.shape[1]
    for place, sides in enumerate(lengths[arranged].tolist()):
        total = [some + side for some, side in zip(total, sides, strict=True)]
        if place > first and (max(total) > budget or place - first == rows):
            made.append(arranged[first:place])
            first, total = place, sides
    if first < len(arranged):
        made.append(arranged[first:])
    return made


def epoch_batches(lengths: Numbers, *, budget: int, seed: int, epoch: int, digest: str) -> list[Numbers]:
    """Return one epoch's batches in order: each example once, rows of one length together, all else by chance.

    `lengths` is [examples, sides]; rows are grouped by the last side exactly and by the others roughly.
    """
    shuffled = order(len(lengths), seed=seed, epoch=epoch, digest=digest)
    keys = [lengths[shuffled, side] // (1 if side == lengths.shape[1] - 1 else 4) for side in range(lengths.shape[1])]
    arranged = shuffled[np.lexsort(keys)]
    made = cut(lengths, arranged, budget)
    turn = chance(seed=seed, epoch=epoch, digest=digest, purpose=1).permutation(len(made))
    return [made[number] for number in turn]


def sorted_batches(lengths: Numbers, *, budget: int, rows: int | None = None) -> list[Numbers]:
    """Return batches of like length, longest first, for evaluation."""
    return cut(lengths, np.argsort(-lengths[:, -1], kind="stable"), budget, rows)
