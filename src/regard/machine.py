"""What this process may use of the machine."""

from __future__ import annotations

import os


def cores() -> int:
    """Return how many processors this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
