"""Lines over an axis and shaded matrices as SVG text: no script, no fonts of others, colours that follow the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#999933")  # told apart by all
DASHES = ("", "6 3", "2 2", "8 3 2 3")
WIDTH, HEIGHT, LEFT, FOOT, HEAD, KEY = 640, 310, 52, 44, 28, 170

Points = Sequence[tuple[float, float]]


def lines(series: Mapping[str, Points], *, title: str, across: str, up: str, ticks: Mapping[float, str] = {}) -> str:
    """Return a chart of lines with a key; `ticks` names places of the horizontal axis.

    >>> drawn = lines({"a": [(0, 1.0), (1, 3.0)]}, title="t", across="x", up="y")
    >>> drawn.count("<polyline"), "<script" in drawn
    (1, False)
    """
    points = [point for some in series.values() for point in some]
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    rungs = round_values(min(0.0, *ys) if min(ys) < 0.4 * max(ys) else min(ys), max(ys))
    low, high = rungs[0], rungs[-1]
    wide, tall = WIDTH - LEFT - KEY, HEIGHT - FOOT - HEAD

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + wide * (x - min(xs)) / ((max(xs) - min(xs)) or 1),
            HEAD + tall * (1 - (y - low) / ((high - low) or 1)),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="11" fill="currentColor">',
        f"<title>{escape(title)}</title>",
    ]
    for value in rungs:
        y = at(min(xs), value)[1]
        parts.append(f'<path d="M{LEFT} {y:.1f}h{wide}" stroke="currentColor" stroke-opacity=".18"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    shown = ticks or {x: f"{x:,.6g}" for x in round_values(min(xs), max(xs)) if min(xs) <= x <= max(xs)}
    for x, label in shown.items():
        parts.append(
            f'<text x="{at(x, low)[0]:.1f}" y="{HEIGHT - FOOT + 16}" text-anchor="middle">{escape(label)}</text>'
        )
    parts.append(f'<text x="{LEFT + wide / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text x="4" y="12">{escape(up)}</text>')
    for number, (name, some) in enumerate(series.items()):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in some))
        parts.append(
            f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        y = HEAD + 8 + 18 * number
        parts.append(
            f'<path d="M{WIDTH - KEY + 12} {y}h22" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        parts.append(f'<text x="{WIDTH - KEY + 40}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"])


def round_values(low: float, high: float) -> list[float]:
    """Return round values at equal distances, four to eight of them, from at most `low` to at least `high`.

    >>> round_values(0, 38.88), round_values(26, 1815)
    ([0.0, 10.0, 20.0, 30.0, 40.0], [0.0, 500.0, 1000.0, 1500.0, 2000.0])
    >>> round_values(0.31, 0.36)
    [0.31, 0.32, 0.33, 0.34, 0.35, 0.36]
    """
    span = (high - low) or abs(high) or 1.0
    size = 10 ** math.floor(math.log10(span / 4))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= span / 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{step * number:.10g}") for number in range(first, max(last, first + 1) + 1)]


def matrix(weights: NDArray[np.floating], rows: Sequence[str], columns: Sequence[str], *, title: str) -> str:
    """Return a shaded matrix with its labels: the darker, the more a row looked at a column.

    >>> matrix(np.eye(2), ["ein", "Hund"], ["a", "dog"], title="t").count("<rect")
    2
    """
    cell = 20
    left = 12 + 7 * max((len(label) for label in rows), default=0)
    head = 12 + 6 * max((len(label) for label in columns), default=0)
    wide, tall = left + cell * len(columns) + 60, head + cell * len(rows) + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" width="{wide}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12" fill="currentColor">',
        f"<title>{escape(title)}</title>",
    ]
    for number, label in enumerate(columns):
        x = left + cell * number + cell / 2
        parts.append(f'<text transform="translate({x + 4:.0f} {head - 6}) rotate(-55)">{escape(label)}</text>')
    for number, (label, row) in enumerate(zip(rows, weights, strict=True)):
        y = head + cell * number
        parts.append(f'<text x="{left - 6}" y="{y + 14}" text-anchor="end">{escape(label)}</text>')
        parts += [
            f'<rect x="{left + cell * place}" y="{y}" width="{cell - 1}" height="{cell - 1}" '
            f'fill="{COLOURS[0]}" fill-opacity="{float(weight):.2f}"/>'
            for place, weight in enumerate(row)
            if weight >= 0.01
        ]
    return "\n".join([*parts, "</svg>"])
