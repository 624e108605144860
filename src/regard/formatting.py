"""Durations, counts and lists of names as text for people; numbers in the form that JSON takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def format_duration(seconds: float) -> str:
    """Format a duration with one or two units.

    >>> [format_duration(seconds) for seconds in (0.4, 42, 90, 3900, 200000)]
    ['0 s', '42 s', '1 min 30 s', '1 h 05 min', '55 h 33 min']
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_bytes(num_bytes: float) -> str:
    """Format a byte count with decimal units.

    >>> format_bytes(2_500_000)
    '2.5 MB'
    """
    for unit in ("bytes", "KB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.4g} GB"


def format_count(count: int, noun: str) -> str:
    """Format a number of things; the plural of the noun ends in s.

    >>> format_count(1, "seed"), format_count(0, "seed"), format_count(1500, "sentence pair")
    ('1 seed', '0 seeds', '1,500 sentence pairs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_p_value(p_value: float) -> str:
    """Format a p-value with its relation, as a small one is known from few random samples.

    >>> format_p_value(0.0142), format_p_value(0.0006)
    ('p = 0.014', 'p < 0.001')
    """
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def format_names(names: Sequence[str], max_names: int = 20) -> str:
    """Join names by commas; beyond `max_names`, give the number of the others."""
    others = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + others


def round_digits(value: float, digits: int = 6) -> float:
    """Round to the significant digits that a file needs.

    >>> round_digits(0.123456789), round_digits(1234567.0, 3)
    (0.123457, 1230000.0)
    """
    return float(f"{value:.{digits}g}")


def finite_values(value: Any) -> Any:
    """Replace infinity and nan in JSON values by None.

    >>> finite_values({"losses": [1.5, float("nan")]})
    {'losses': [1.5, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_values(inner) for inner in value]
    return value
