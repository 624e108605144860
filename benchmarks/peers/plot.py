"""The report as one SVG: bars of ratios with their spread, and curves of growth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.peers.report import group_by_benchmark
from benchmarks.peers.statistics import REGARD, Row
from regard.view.drawing import Drawing, Point
from regard.view.palette import THEMES, Colour
from regard.view.svg import svg_text

WIDTH = 860.0
LABEL_WIDTH = 250.0  # of runners' names
VALUE_WIDTH = 150.0
GAP = 16.0
TITLE_HEIGHT = 30.0
BAR_PITCH = 22.0
BAR_HEIGHT = 16.0
CURVE_WIDTH = 400.0
CURVE_HEIGHT = 230.0
CURVES_PER_LINE = 2
TEXT_SIZE = 13.0
SMALL_SIZE = 11.0
LINE_WIDTH = 1.0
CURVE_LINE_WIDTH = 2.0
DOT_RADIUS = 3.0
REGARD_COLOUR: Colour = (31, 111, 235)
PEER_COLOUR: Colour = (154, 164, 178)


def plot(rows: Sequence[Row]) -> str:
    """SVG of all rows: a block of bars for each benchmark, then the curves.

    >>> plot([Row("training", "regard <bf16>", 2.0, "tokens/s", 1.5, 1.4, 1.6, library="regard")]).count("<rect")
    2
    """
    drawing = Drawing(WIDTH, THEMES["light"])
    groups = [group for _, group in group_by_benchmark(rows)]
    top = GAP
    for group in groups:
        if not group[0].axis:
            top += _draw_bars(drawing, group, top) + GAP
    curves = [group for group in groups if group[0].axis]
    for index, curve in enumerate(curves):
        column = index % CURVES_PER_LINE
        _draw_curve(drawing, curve, GAP + column * (CURVE_WIDTH + GAP), top)
        if column == CURVES_PER_LINE - 1 or curve is curves[-1]:
            top += CURVE_HEIGHT + GAP
    drawing.end(top)
    return svg_text(drawing, title="Speed beside other libraries")


def _draw_bars(drawing: Drawing, rows: Sequence[Row], top: float) -> float:
    """Draw one benchmark and return its height. Bars are ratios to the best peer; without peers, values."""
    sizes = [row.value if row.ratio is None else row.ratio for row in rows]
    largest = max([*sizes, *(row.high or 0 for row in rows)])
    scale = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / largest
    soft = drawing.theme.soft
    drawing.text(GAP, top + 14, rows[0].benchmark, size=TEXT_SIZE, bold=True)
    for index, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        y = top + TITLE_HEIGHT + index * BAR_PITCH
        name = f"{row.runner} {row.setting}".strip()
        drawing.text(GAP, y + 12, name, size=TEXT_SIZE, room=LABEL_WIDTH - GAP)
        drawing.box(LABEL_WIDTH, y, size * scale, BAR_HEIGHT, _colour(row))
        if row.low is not None and row.high is not None:
            middle = y + BAR_HEIGHT / 2
            ends = [(LABEL_WIDTH + ratio * scale, middle) for ratio in (row.low, row.high)]
            drawing.stroke(ends, soft, width=LINE_WIDTH)
        ratio_text = "" if row.ratio is None else f"{row.ratio:.2f}×, "
        value_text = f"{ratio_text}{row.value:,.4g} {row.unit}"
        drawing.text(WIDTH - VALUE_WIDTH + 8, y + 12, value_text, size=SMALL_SIZE, colour=soft)
    return TITLE_HEIGHT + len(rows) * BAR_PITCH


def _draw_curve(drawing: Drawing, rows: Sequence[Row], left: float, top: float) -> None:
    """Draw one curve on two logarithmic axes, a line for each runner."""
    soft = drawing.theme.soft
    origin_x = left + 50
    origin_y = top + CURVE_HEIGHT - 36
    x_scale = _LogScale([row.at or 1 for row in rows], origin_x, CURVE_WIDTH - 60)
    y_scale = _LogScale([row.value for row in rows], origin_y, 70 - CURVE_HEIGHT)

    def locate(row: Row) -> Point:
        return x_scale.position(row.at or 1), y_scale.position(row.value)

    drawing.text(left, top + 14, f"{rows[0].benchmark}, {rows[0].unit}", size=TEXT_SIZE, bold=True)
    drawing.stroke([(origin_x, origin_y), (x_scale.end, origin_y)], soft, width=LINE_WIDTH)
    drawing.stroke([(origin_x, origin_y), (origin_x, y_scale.end)], soft, width=LINE_WIDTH)
    for value in (y_scale.low, y_scale.high):
        drawing.text(left, y_scale.position(value) + 4, f"{value:.3g}", size=SMALL_SIZE, colour=soft)
    for name in dict.fromkeys(row.runner for row in rows):
        line = [row for row in rows if row.runner == name]
        points = [locate(row) for row in line]
        drawing.stroke(points, _colour(line[0]), width=CURVE_LINE_WIDTH)
        for x, y in points:
            drawing.disc(x, y, DOT_RADIUS, _colour(line[0]))
        end_x, end_y = points[-1]
        drawing.text(end_x - 60, end_y - 8, name, size=SMALL_SIZE, colour=soft)
    for at in sorted({row.at or 1 for row in rows}):
        drawing.text(x_scale.position(at) - 8, origin_y + 16, f"{at:,.0f}", size=SMALL_SIZE, colour=soft)


class _LogScale:
    """Maps values to positions on a logarithmic axis; a negative length runs upwards."""

    def __init__(self, values: Sequence[float], start: float, length: float) -> None:
        self.low = min(values)
        self.high = max(values)
        self.start = start
        self.length = length

    @property
    def end(self) -> float:
        """Position of the axis's end."""
        return self.start + self.length

    def position(self, value: float) -> float:
        """Position of a value."""
        span = math.log(self.high / self.low) or 1.0
        return self.start + self.length * math.log(value / self.low) / span


def _colour(row: Row) -> Colour:
    return REGARD_COLOUR if row.library == REGARD else PEER_COLOUR
