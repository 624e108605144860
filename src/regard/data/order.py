"""The order of examples and what is drawn at places of a text: pure functions of seed, epoch and the data's digest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def chance(*, seed: int, epoch: int, digest: str, purpose: int) -> np.random.Generator:
    """Return the generator for one purpose in one epoch over this data."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch, int(digest[:16], 16), purpose))))


def order(count: int, *, seed: int, epoch: int, digest: str) -> NDArray[np.int64]:
    """Return the example numbers in the order of this epoch, each once.

    >>> order(5, seed=1, epoch=0, digest="ab").tolist() == order(5, seed=1, epoch=0, digest="ab").tolist()
    True
    """
    return chance(seed=seed, epoch=epoch, digest=digest, purpose=0).permutation(count)


def draws(
    places: NDArray[np.int64], *, seed: int, epoch: int, digest: str, purpose: int, count: int = 1
) -> NDArray[np.float64]:
    """Return `count` numbers in [0, 1) for each place, [count, …]: of a place they are the same whoever asks with it.

    A place is hashed (Steele et al. 2014, the finalizer of SplitMix64), so that no generator must be wound to it.

    >>> draws(np.array([4, 7]), seed=1, epoch=0, digest="ab", purpose=5)[0, 1] == draws(
    ...     np.array([7]), seed=1, epoch=0, digest="ab", purpose=5)[0, 0]
    np.True_
    """
    keys = chance(seed=seed, epoch=epoch, digest=digest, purpose=purpose).integers(2**63, size=count, dtype=np.uint64)
    mixed = keys.reshape(-1, *(1,) * places.ndim) + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    for shift, factor in _MIXING:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    even: NDArray[np.float64] = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
    return even
