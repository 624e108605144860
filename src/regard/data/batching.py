"""Order and batches of an epoch, and random numbers by position: pure functions of seed, epoch and the data's digest.

A batch holds examples of similar length, as many as fit into a number of tokens.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # shift, factor
_COARSE_LENGTH = 4  # tokens of one length bucket


class RngPurpose(IntEnum):
    """What random numbers serve; every purpose has its own generator, so the values are part of the seed."""

    ORDER = 0
    BATCH_ORDER = 1
    HOLD_OUT = 2
    JOIN = 4


def cut_batches(lengths: Indices, order: Indices, max_tokens: int, max_rows: int | None = None) -> list[Indices]:
    """Cut ordered examples into batches of at most `max_tokens` tokens (a longer example is a batch of its own).

    `lengths` is [examples, sides]; the side with more tokens counts. `max_rows` limits the examples of a batch.

    >>> [batch.tolist() for batch in cut_batches(np.array([[2], [2], [3]]), np.array([0, 1, 2]), 4)]
    [[0, 1], [2]]
    """
    batches = []
    start = 0
    totals = [0] * lengths.shape[1]
    for stop, example_lengths in enumerate(lengths[order].tolist()):
        totals = [total + length for total, length in zip(totals, example_lengths, strict=True)]
        if stop > start and (max(totals) > max_tokens or stop - start == max_rows):
            batches.append(order[start:stop])
            start = stop
            totals = example_lengths
    if start < len(order):
        batches.append(order[start:])
    return batches


def epoch_batches(lengths: Indices, *, max_tokens: int, seed: int, epoch: int, digest: str) -> list[Indices]:
    """Batches of one epoch in random order: each example once, examples of one length together.

    `lengths` is [examples, sides]; examples are sorted by the last side exactly and by the others roughly.
    """
    shuffled = epoch_order(len(lengths), seed=seed, epoch=epoch, digest=digest)
    last_side = lengths.shape[1] - 1
    sort_keys = [lengths[shuffled, side] // _COARSE_LENGTH for side in range(last_side)]
    sort_keys.append(lengths[shuffled, last_side])
    by_length = shuffled[np.lexsort(sort_keys)]
    batches = cut_batches(lengths, by_length, max_tokens)
    rng = epoch_rng(seed=seed, epoch=epoch, digest=digest, purpose=RngPurpose.BATCH_ORDER)
    return [batches[index] for index in rng.permutation(len(batches))]


def length_sorted_batches(lengths: Indices, *, max_tokens: int, max_rows: int | None = None) -> list[Indices]:
    """Batches of similar length, longest first, for evaluation."""
    return cut_batches(lengths, np.argsort(-lengths[:, -1], kind="stable"), max_tokens, max_rows)


def epoch_rng(*, seed: int, epoch: int, digest: str, purpose: int) -> np.random.Generator:
    """Random generator for one purpose in one epoch over this data."""
    entropy = (seed, epoch, int(digest[:16], 16), int(purpose))
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


def epoch_order(num_examples: int, *, seed: int, epoch: int, digest: str) -> Indices:
    """Indices of the examples in the order of this epoch, each once.

    >>> epoch_order(5, seed=1, epoch=0, digest="ab").tolist() == epoch_order(5, seed=1, epoch=0, digest="ab").tolist()
    True
    """
    return epoch_rng(seed=seed, epoch=epoch, digest=digest, purpose=RngPurpose.ORDER).permutation(num_examples)


def position_uniforms(
    positions: Indices, *, seed: int, epoch: int, digest: str, purpose: int, num_draws: int = 1
) -> NDArray[np.float64]:
    """Draw uniform numbers in [0, 1) for each position, [num_draws, …]; they depend on no other position.

    Positions are hashed (finalizer of SplitMix64, Steele et al. 2014), so no generator has to be advanced to them.

    >>> position_uniforms(np.array([4, 7]), seed=1, epoch=0, digest="ab", purpose=5)[0, 1] == position_uniforms(
    ...     np.array([7]), seed=1, epoch=0, digest="ab", purpose=5)[0, 0]
    np.True_
    """
    rng = epoch_rng(seed=seed, epoch=epoch, digest=digest, purpose=purpose)
    keys = rng.integers(2**63, size=num_draws, dtype=np.uint64).reshape(-1, *(1,) * positions.ndim)  # [num_draws, 1, …]
    bits = keys + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
    for shift, factor in _MIX_ROUNDS:
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    bits = bits ^ (bits >> np.uint64(31))
    uniforms: NDArray[np.float64] = (bits >> np.uint64(11)) * 2.0**-53
    return uniforms
