"""Dropout and other randomness of training as a pure function of seed, step, micro-batch and site."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

INTEGERS = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32))  # random numbers that decide an element
MAX_RATE_ERROR = 0.02  # relative
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

        One random byte decides an element where that rounds neither the rate nor its complement by more than 2 %, two
        or four bytes otherwise; the factor follows the rounded rate. NumPy writes the factors as bit patterns: its
        loops over bytes are several times faster than torch's.
        """
        integer, threshold, num_values = _quantize_rate(rate)
        count = math.prod(shape)
        num_words = -(-count * integer.itemsize // 8)
        random_integers = self.generator(site).bit_generator.random_raw(num_words).view(integer)[:count]
        keep_factor = num_values / (num_values - threshold)
        pattern = torch.tensor([keep_factor], dtype=dtype).view(BIT_PATTERNS[dtype.itemsize]).numpy()
        factors = np.multiply(random_integers >= threshold, pattern, dtype=pattern.dtype)
        return torch.from_numpy(factors).view(dtype).view(shape)

    def uniform(self, shape: tuple[int, ...], site: str) -> Tensor:
        """Uniform random numbers in [0, 1), float32."""
        return torch.from_numpy(self.generator(site).random(shape, dtype=np.float32))


def _quantize_rate(rate: float) -> tuple[np.dtype[np.unsignedinteger], int, int]:
    """Smallest integer type that represents a dropout rate, its threshold, and the number of the type's values.

    >>> [_quantize_rate(rate)[0].name for rate in (0.25, 0.1, 0.01, 1e-6)]
    ['uint8', 'uint8', 'uint16', 'uint32']
    """
    for integer in INTEGERS:
        num_values = 256**integer.itemsize
        threshold = round(rate * num_values)
        if abs(threshold / num_values - rate) <= MAX_RATE_ERROR * min(rate, 1 - rate):
            break
    return integer, threshold, num_values


def apply_dropout(hidden: Tensor, rate: float, noise: Noise | None, site: str) -> Tensor:
    """Apply dropout; without noise, outside training, return the input unchanged."""
    if noise is None or rate == 0:
        return hidden
    return hidden * noise.dropout_factors(tuple(hidden.shape), rate, site, hidden.dtype).to(hidden.device)


def drop_tokens(embedded: Tensor, rate: float, noise: Noise | None) -> Tensor:  # [N, D]
    """Set whole token embeddings to zero and scale the others (word dropout); outside training return the input."""
    if noise is None or rate == 0:
        return embedded
    return embedded * noise.dropout_factors((len(embedded), 1), rate, "tokens", embedded.dtype).to(embedded.device)
