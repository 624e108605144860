"""How fast this processor multiplies matrices, by number format."""

from __future__ import annotations

import math
import time
from functools import cache

import torch

HOPELESS = 2.0  # times as slow as float32: with such products no work is faster in bf16


def time_products(width: int = 768, seconds: float = 0.3) -> dict[str, float]:
    """Return billions of operations a second of a matrix product in float32 and bf16, undisturbed by others.

    >>> sorted(time_products(64, 0.01))
    ['bf16', 'float32']
    """
    speeds = {}
    for name, kind in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        one = torch.randn(width, width).to(kind)
        one @ one  # the first call prepares the kernel
        start, least = time.perf_counter(), math.inf
        while math.isinf(least) or time.perf_counter() - start < seconds:
            began = time.perf_counter()
            one @ one
            least = min(least, time.perf_counter() - began)
        speeds[name] = round(2 * width**3 / least / 1e9, 2)
    return speeds


@cache
def bf16_slowdown() -> float:
    """Return how many times as long as in float32 a product takes in bf16, by a look of a tenth of a second.

    Processors without instructions for bf16 may take tens of times as long: even a timing of real work would not end.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other where others use the processor, too
    try:
        speeds = time_products(256, 0.05)
    finally:
        torch.set_num_threads(threads)
    return speeds["float32"] / speeds["bf16"]
