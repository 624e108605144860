"""Dropout and other randomness of training as a pure function of seed, step, micro-batch and site."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BIT_PATTERNS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # integer dtype by bytes per element


@dataclass(frozen=True)
class Noise:
    """Random numbers of one forward pass in training; repeating a step draws the same numbers.

    >>> noise = Noise(seed=1, step=7)
    >>> factors = noise.dropout_factors((2, 3), 0.5, "site", torch.float32)
    >>> bool((factors == noise.dropout_factors((2, 3), 0.5, "site", torch.float32)).all())
    True
    """

    seed: int
    step: int
    micro_batch: int = 0  # index among the batches whose gradients are summed before an update

    def generator(self, site: str) -> np.random.Generator:
        """Random generator of one site."""
        entropy = (self.seed, self.step, self.micro_batch, zlib.crc32(site.encode()))
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))

    def dropout_factors(self, shape: tuple[int, ...], rate: float, site: str, dtype: torch.dtype) -> Tensor:
        """Dropout factors: 0 with probability `rate`, otherwise 1 / (1 - rate).

        One random byte decides an element, so the rate is rounded to 1/256, and the factor follows the rounded rate.
        NumPy writes the factors as bit patterns: its loops over bytes are several times faster than torch's.
        """
        threshold = round(rate * 256)
        count = math.prod(shape)
        random_bytes = self.generator(site).bit_generator.random_raw(-(-count // 8)).view(np.uint8)[:count]
        pattern = torch.tensor([256 / (256 - threshold)], dtype=dtype).view(BIT_PATTERNS[dtype.itemsize]).numpy()
        factors = np.multiply(random_bytes >= threshold, pattern, dtype=pattern.dtype)
        return torch.from_numpy(factors).view(dtype).view(shape)

    def uniform(self, shape: tuple[int, ...], site: str) -> Tensor:
        """Uniform random numbers in [0, 1), float32."""
        return torch.from_numpy(self.generator(site).random(shape, dtype=np.float32))


def apply_dropout(hidden: Tensor, rate: float, noise: Noise | None, site: str) -> Tensor:
    """Apply dropout; without noise, outside training, return the input unchanged."""
    if noise is None or rate == 0:
        return hidden
    return hidden * noise.dropout_factors(tuple(hidden.shape), rate, site, hidden.dtype).to(hidden.device)
