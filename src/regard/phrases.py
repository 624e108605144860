"""Numbers as people say them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a length of time as people say it.

    >>> [duration(seconds) for seconds in (0.4, 42, 90, 3900, 200000)]
    ['0 s', '42 s', '1 min 30 s', '1 h 05 min', '55 h 33 min']
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
