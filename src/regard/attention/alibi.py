"""Slopes of ALiBi (Press et al. 2022), for torch and NumPy alike."""

from __future__ import annotations

import math


def alibi_slopes(num_heads: int) -> list[float]:
    """Slopes of ALiBi's heads: geometric from 2^(-8/n) to 2^-8 for n heads, a power of two.

    For any other number, those of the next smaller power of two, then every other one of the next larger.

    >>> alibi_slopes(3)
    [0.0625, 0.00390625, 0.25]
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    extra_slopes = [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return slopes + extra_slopes[: num_heads - power]
