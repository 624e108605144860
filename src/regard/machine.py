"""What this process may use of the machine."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from functools import cache

HOPELESS = 2.0  # times as slow as float32: with such products no work is faster in bf16
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of glibc's mallopt


def cores() -> int:
    """Return how many processors this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for its next arrays; return whether its C library can.

    Training makes and frees the same large arrays step by step. Given back each time, their pages have to be cleared
    and mapped anew: about a twentieth of a small model's step.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):  # others know the function and do nothing, or lack it
        return False
    most = 2**31 - 1
    return bool(library.mallopt(_MMAP_THRESHOLD, 1 << 30)) and bool(library.mallopt(_TRIM_THRESHOLD, most))


def time_products(width: int = 768, seconds: float = 0.3) -> dict[str, float]:
    """Return billions of operations a second of a matrix product in float32 and bf16, undisturbed by others.

    >>> sorted(time_products(64, 0.01))
    ['bf16', 'float32']
    """
    import torch

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
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other where others use the processor, too
    try:
        speeds = time_products(256, 0.05)
    finally:
        torch.set_num_threads(threads)
    return speeds["float32"] / speeds["bf16"]
