"""Line charts and heat maps as SVG inside a page, on its ground and in its text colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.view.drawing import Drawing, Point, text_width
from regard.view.palette import HEAD_COLOURS, LEVELS, PAGE
from regard.view.svg import svg_text

WIDTH, HEIGHT = 640, 310  # of a line chart, in points
LEFT, FOOT, TOP, LEGEND = 52, 44, 28, 170  # around its axes
LABEL = 11.0
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 2), (8, 3, 2, 3))
CELL = 15.0  # of a heat map
CELL_GAP = 0.75
CELL_LABEL = 9.0
LABEL_GAP = 5.0
LABEL_ANGLE = 55.0  # degrees
Points = Sequence[tuple[float, float]]


def line_chart(
    series: Mapping[str, Points], *, title: str, x_label: str, y_label: str, ticks: Mapping[float, str] = {}
) -> str:
    """Draw one line per series, with a legend; `ticks` names positions of the horizontal axis.

    >>> drawn = line_chart({"loss": [(0, 1.0), (1, 3.0)]}, title="t", x_label="x", y_label="y")
    >>> drawn.startswith("<svg"), "<script" in drawn
    (True, False)
    """
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    xs = [x for x, _ in points]
    ys = [y for _, y in points]
    y_ticks = round_values(min(0.0, *ys) if min(ys) < 0.4 * max(ys) else min(ys), max(ys))
    x_ticks = ticks or {x: f"{x:,.6g}" for x in round_values(min(xs), max(xs)) if min(xs) <= x <= max(xs)}
    axes = _Axes(x_low=min(xs), x_high=max(xs), y_low=y_ticks[0], y_high=y_ticks[-1])
    drawing = Drawing(WIDTH, PAGE)
    for y in y_ticks:
        height = axes.place(axes.x_low, y)[1]
        drawing.stroke([(LEFT, height), (WIDTH - LEGEND, height)], PAGE.line, width=0.4)
        drawing.text(LEFT - 6, height + 4, f"{y:.4g}", size=LABEL, anchor="end")
    for x, label in x_ticks.items():
        drawing.text(axes.place(x, axes.y_low)[0], HEIGHT - FOOT + 16, label, size=LABEL, anchor="middle")
    drawing.text((LEFT + WIDTH - LEGEND) / 2, HEIGHT - 8, x_label, size=LABEL, anchor="middle")
    drawing.text(4, 12, y_label, size=LABEL)
    for index, (name, line) in enumerate(series.items()):
        colour = HEAD_COLOURS[index % len(HEAD_COLOURS)]
        dash = DASHES[index // len(HEAD_COLOURS) % len(DASHES)]
        legend_y = TOP + 8 + 18 * index
        legend_x = WIDTH - LEGEND + 12
        if line:
            drawing.stroke([axes.place(x, y) for x, y in line], colour, width=2, dash=dash)
        drawing.stroke([(legend_x, legend_y), (legend_x + 22, legend_y)], colour, width=2, dash=dash)
        drawing.text(legend_x + 28, legend_y + 4, name, size=LABEL, room=WIDTH - legend_x - 28)
    drawing.end(max(HEIGHT, TOP + 18 * len(series)))
    return svg_text(drawing, title=title)


def heat_map(weights: NDArray[np.floating], rows: Sequence[str], columns: Sequence[str], *, title: str) -> str:
    """Draw a shaded matrix with its labels: the darker, the larger the weight.

    >>> heat_map(np.eye(2), ["ein", "Hund"], ["a", "dog"], title="t").count("stroke-opacity")
    1
    """
    angle = math.radians(LABEL_ANGLE)
    label_widths = [text_width(label, CELL_LABEL) for label in columns]
    label_ends = [CELL * (column + 1) + math.cos(angle) * width for column, width in enumerate(label_widths)]
    left = LABEL_GAP + max((text_width(label, CELL_LABEL) for label in rows), default=0.0)
    top = LABEL_GAP + math.sin(angle) * max(label_widths, default=0.0) + CELL_LABEL / 2
    drawing = Drawing(left + max([CELL * len(columns), *label_ends]), PAGE)
    for column, label in enumerate(columns):
        x = left + CELL * (column + 0.5) + CELL_LABEL / 3
        drawing.text(x, top - LABEL_GAP, label, size=CELL_LABEL, turn=LABEL_ANGLE)
    for row, label in enumerate(rows):
        y = top + CELL * (row + 0.5) + CELL_LABEL / 3
        drawing.text(left - LABEL_GAP, y, label, size=CELL_LABEL, anchor="end")
    levels = np.rint(LEVELS * np.clip(weights, 0, 1)).astype(int)
    drawing.grid(left, top, (CELL, CELL), levels, CELL_GAP)
    drawing.end(top + CELL * len(rows))
    return svg_text(drawing, title=title)


@dataclass(frozen=True)
class _Axes:
    """Ranges of the axes of a line chart."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def place(self, x: float, y: float) -> Point:
        """Where values lie on the drawing."""
        across = (x - self.x_low) / ((self.x_high - self.x_low) or 1)
        up = (y - self.y_low) / ((self.y_high - self.y_low) or 1)
        return LEFT + (WIDTH - LEFT - LEGEND) * across, TOP + (HEIGHT - FOOT - TOP) * (1 - up)


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
