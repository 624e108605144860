"""Batches: rows of like length together, as many as a budget of tokens allows.

The order of examples and what is drawn at places of a text: pure functions of seed, epoch and the data's digest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


def cut_batches(lengths: Numbers, order: Numbers, max_tokens: int, max_rows: int | None = None) -> list[Numbers]:
    """Return the arranged example numbers cut into batches of at most `budget` tokens (a lone longer one is allowed).

    `lengths` is [examples, sides]; the side with more tokens counts. `rows` is the most examples of a batch.

    >>> [batch.tolist() for batch in cut_batches(np.array([[2], [2], [3]]), np.array([0, 1, 2]), 4)]
    [[0, 1], [2]]
    """
    made, first = [], 0
    total = [0] * lengths.shape[1]
    for place, sides in enumerate(lengths[order].tolist()):
        total = [some + side for some, side in zip(total, sides, strict=True)]
        if place > first and (max(total) > max_tokens or place - first == max_rows):
            made.append(order[first:place])
            first, total = place, sides
    if first < len(order):
        made.append(order[first:])
    return made


def epoch_batches(lengths: Numbers, *, max_tokens: int, seed: int, epoch: int, digest: str) -> list[Numbers]:
    """Return one epoch's batches in order: each example once, rows of one length together, all else by chance.

    `lengths` is [examples, sides]; rows are grouped by the last side exactly and by the others roughly.
    """
    shuffled = epoch_order(len(lengths), seed=seed, epoch=epoch, digest=digest)
    keys = [lengths[shuffled, side] // (1 if side == lengths.shape[1] - 1 else 4) for side in range(lengths.shape[1])]
    arranged = shuffled[np.lexsort(keys)]
    made = cut_batches(lengths, arranged, max_tokens)
    turn = epoch_rng(seed=seed, epoch=epoch, digest=digest, purpose=1).permutation(len(made))
    return [made[number] for number in turn]


def length_sorted_batches(lengths: Numbers, *, max_tokens: int, max_rows: int | None = None) -> list[Numbers]:
    """Return batches of like length, longest first, for evaluation."""
    return cut_batches(lengths, np.argsort(-lengths[:, -1], kind="stable"), max_tokens, max_rows)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def epoch_rng(*, seed: int, epoch: int, digest: str, purpose: int) -> np.random.Generator:
    """Return the generator for one purpose in one epoch over this data."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch, int(digest[:16], 16), purpose))))


def epoch_order(count: int, *, seed: int, epoch: int, digest: str) -> NDArray[np.int64]:
    """Return the example numbers in the order of this epoch, each once.

    >>> epoch_order(5, seed=1, epoch=0, digest="ab").tolist() == epoch_order(5, seed=1, epoch=0, digest="ab").tolist()
    True
    """
    return epoch_rng(seed=seed, epoch=epoch, digest=digest, purpose=0).permutation(count)


def position_uniforms(
    places: NDArray[np.int64], *, seed: int, epoch: int, digest: str, purpose: int, count: int = 1
) -> NDArray[np.float64]:
    """Return `count` numbers in [0, 1) for each place, [count, …]: of a place they are the same whoever asks with it.

    A place is hashed (Steele et al. 2014, the finalizer of SplitMix64), so that no generator must be wound to it.

    >>> position_uniforms(np.array([4, 7]), seed=1, epoch=0, digest="ab", purpose=5)[0, 1] == position_uniforms(
    ...     np.array([7]), seed=1, epoch=0, digest="ab", purpose=5)[0, 0]
    np.True_
    """
    keys = epoch_rng(seed=seed, epoch=epoch, digest=digest, purpose=purpose).integers(
        2**63, size=count, dtype=np.uint64
    )
    mixed = keys.reshape(-1, *(1,) * places.ndim) + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    for shift, factor in _MIXING:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    even: NDArray[np.float64] = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
    return even
