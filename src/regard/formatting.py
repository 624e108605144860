"""Numbers as people say them.

The disk: the system calls that writing uses, and what is said when one of them fails.

Read labelled texts, or pairs of texts, from TSV, CSV or JSON lines: strictly, every fault with its place.

Where a separator is given, a text may have several labels or none.
"""

from __future__ import annotations

from collections.abc import Sequence


def format_duration(seconds: float) -> str:
    """Return a length of time as people say it.

    >>> [format_duration(seconds) for seconds in (0.4, 42, 90, 3900, 200000)]
    ['0 s', '42 s', '1 min 30 s', '1 h 05 min', '55 h 33 min']
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_bytes(count: float) -> str:
    """Return a number of bytes as people say it.

    >>> format_bytes(2_500_000)
    '2.5 MB'
    """
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} GB"


def format_names(names: Sequence[str], max_names: int = 20) -> str:
    """Return names in a row, the first of them where there are many."""
    more = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + more
