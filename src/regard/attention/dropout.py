"""Randomness without history: every draw is a pure function of seed, step, part and site."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

PATTERNS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers as wide as numbers of so many bytes


@dataclass(frozen=True)
class Noise:
    """The noise of one forward pass in training; whoever computes the same step again draws the same numbers.

    >>> noise = Noise(seed=1, step=7)
    >>> bool((noise.dropout_factors((2, 3), 0.5, "site", torch.float32) == noise.dropout_factors((2, 3), 0.5, "site", torch.float32)).all())
    True
    """

    seed: int
    step: int
    micro_batch: int = 0  # which of the batches that are added up before an update

    def generator(self, site: str) -> np.random.Generator:
        """Return the generator of one site: the same for the same seed, step, part and site."""
        entropy = (self.seed, self.step, self.micro_batch, zlib.crc32(site.encode()))
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))

    def dropout_factors(self, shape: tuple[int, ...], rate: float, site: str, dtype: torch.dtype) -> Tensor:
        """Return dropout's factors: 0 with chance `rate`, else what keeps the mean.

        One random byte decides a place, so the rate is rounded to 1/256; the factor belongs to the rounded rate. The
        factors are written as bit patterns by numpy, whose loops over bytes are several times faster than torch's.
        """
        threshold = round(rate * 256)
        count = math.prod(shape)
        drawn = self.generator(site).bit_generator.random_raw(-(-count // 8)).view(np.uint8)[:count]
        pattern = torch.tensor([256 / (256 - threshold)], dtype=dtype).view(PATTERNS[dtype.itemsize]).numpy()
        factors = np.multiply(drawn >= threshold, pattern, dtype=pattern.dtype)
        return torch.from_numpy(factors).view(dtype).view(shape)

    def uniform(self, shape: tuple[int, ...], site: str) -> Tensor:
        """Return numbers in [0, 1), float32."""
        return torch.from_numpy(self.generator(site).random(shape, dtype=np.float32))


def apply_dropout(hidden: Tensor, rate: float, noise: Noise | None, site: str) -> Tensor:
    """Return the states with dropout; outside training (no noise) they pass unchanged."""
    if noise is None or rate == 0:
        return hidden
    return hidden * noise.dropout_factors(tuple(hidden.shape), rate, site, hidden.dtype).to(hidden.device)
