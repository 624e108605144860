"""Peak memory of processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

MEMORY_CAPTION = "peak resident set of a process of its own, with the processes that it starts"


def family_peak_memory(process_id: int | None = None) -> int:
    """Sum of the peak resident sets of a process, by default this one, and its children, in bytes.

    >>> family_peak_memory() >= peak_memory() // 2
    True
    """
    tasks = Path(f"/proc/{process_id or os.getpid()}/task")
    try:
        children = [child for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        children = []
    return peak_memory(process_id) + sum(peak_memory(int(child)) for child in children)


def peak_memory(process_id: int | None = None) -> int:
    """Peak resident set of a process, by default this one, in bytes; 0 where the system does not tell.

    >>> peak_memory() > 1_000_000
    True
    """
    status = Path(f"/proc/{process_id or os.getpid()}/status")
    try:
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    if process_id is not None:
        return 0
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
