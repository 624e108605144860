"""What this process may use of the machine."""

from __future__ import annotations

import ctypes
import os
import sys

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
