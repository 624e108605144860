"""The order of examples: a pure function of seed, epoch and the data's digest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def chance(*, seed: int, epoch: int, digest: str, purpose: int) -> np.random.Generator:
    """Return the generator for one purpose in one epoch over this data."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch, int(digest[:16], 16), purpose))))


def order(count: int, *, seed: int, epoch: int, digest: str) -> NDArray[np.int64]:
    """Return the example numbers in the order of this epoch, each once.

    >>> order(5, seed=1, epoch=0, digest="ab").tolist() == order(5, seed=1, epoch=0, digest="ab").tolist()
    True
    """
    return chance(seed=seed, epoch=epoch, digest=digest, purpose=0).permutation(count)
