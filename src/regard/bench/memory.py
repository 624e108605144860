"""How much memory a process has held at most."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HOW = "peak resident set of a process of its own, with the processes that it starts"  # what the figures are


def family_memory() -> int:
    """Return the sum of the largest resident sets of this process and of those that it started, in bytes.

    >>> family_memory() >= peak_memory() // 2
    True
    """
    tasks = Path("/proc/self/task")
    try:
        children = [child for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        children = []
    return peak_memory() + sum(peak_memory(int(child)) for child in children)


def peak_memory(process: int | None = None) -> int:
    """Return the largest resident set, in bytes, of a process, by default this one; 0 where it cannot be told.

    >>> peak_memory() > 1_000_000
    True
    """
    status = Path(f"/proc/{process or os.getpid()}/status")
    try:
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    if process is not None:
        return 0
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
