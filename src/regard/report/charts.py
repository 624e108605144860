"""Line charts, intervals and heat maps as SVG for a page, in the page's background and text colours."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.view.drawing import Drawing, Point, text_width
from regard.view.palette import HEAD_COLOURS, LEVELS, PAGE
from regard.view.svg import svg_text

# size of a line chart and margins of its axes, in points
WIDTH = 640
HEIGHT = 310
LEFT = 52
BOTTOM = 44
TOP = 28
LEGEND = 170
LABEL = 11.0  # font size
ROW = 22.0  # height of a row of an interval chart
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 2), (8, 3, 2, 3))
CELL = 15.0  # side of a cell of a heat map
CELL_GAP = 0.75
CELL_LABEL = 9.0  # font size
LABEL_GAP = 5.0
LABEL_ANGLE = 55.0  # degrees
Points = Sequence[tuple[float, float]]
PAGE_STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:0}main{max-width:76rem;margin:auto;"
    "padding:1.5rem}.lead{font-size:1.15rem}.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:"
    "tabular-nums}th,td{padding:.3rem .6rem;text-align:right;white-space:nowrap;border-bottom:1px solid #8884}"
    "thead th{white-space:normal;vertical-align:bottom}"
    "th:first-child{text-align:left}figure{margin:1.5rem 0}svg{max-width:100%;height:auto}.attention{display:grid;"
    "gap:1rem;grid-template-columns:repeat(auto-fill,minmax(18rem,1fr))}.attention figure{margin:0}dt{font-weight:600}"
    ".small{font-size:.85rem;opacity:.8}tr.best{font-weight:600}.charts{display:grid;gap:0 2rem;grid-template-columns:"
    "repeat(auto-fit,minmax(min(100%,30rem),1fr))}"
)


def line_chart(
    series: Mapping[str, Points],
    *,
    title: str,
    x_label: str,
    y_label: str,
    ticks: Mapping[float, str] = {},
    colours: Sequence[str] = (),
) -> str:
    """Draw one line per series, with a legend; `ticks` labels positions of the horizontal axis.

    `colours` are names in the order of their colours, so that a series has the same one in several charts.

    >>> chart = line_chart({"loss": [(0, 1.0), (1, 3.0)]}, title="t", x_label="x", y_label="y")
    >>> chart.startswith("<svg"), "<script" in chart
    (True, False)
    """
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    xs = [x for x, _ in points]
    ys = [y for _, y in points]
    # the axis starts at zero unless the values vary little
    lowest = min(0.0, *ys) if min(ys) < 0.4 * max(ys) else min(ys)
    y_ticks = round_values(lowest, max(ys))
    x_ticks = ticks or {x: f"{x:,.6g}" for x in round_values(min(xs), max(xs)) if min(xs) <= x <= max(xs)}
    axes = _Axes(x_low=min(xs), x_high=max(xs), y_low=y_ticks[0], y_high=y_ticks[-1])
    drawing = Drawing(WIDTH, PAGE)
    for y in y_ticks:
        height = axes.to_point(axes.x_low, y)[1]
        drawing.stroke([(LEFT, height), (WIDTH - LEGEND, height)], PAGE.line, width=0.4)
        drawing.text(LEFT - 6, height + 4, f"{y:.4g}", size=LABEL, anchor="end")
    for x, label in x_ticks.items():
        drawing.text(axes.to_point(x, axes.y_low)[0], HEIGHT - BOTTOM + 16, label, size=LABEL, anchor="middle")
    drawing.text((LEFT + WIDTH - LEGEND) / 2, HEIGHT - 8, x_label, size=LABEL, anchor="middle")
    drawing.text(4, 12, y_label, size=LABEL)
    for row, (name, line) in enumerate(series.items()):
        index = colours.index(name) if name in colours else row
        colour = HEAD_COLOURS[index % len(HEAD_COLOURS)]
        dash = DASHES[index // len(HEAD_COLOURS) % len(DASHES)]
        legend_y = TOP + 8 + 18 * row
        legend_x = WIDTH - LEGEND + 12
        if line:
            drawing.stroke([axes.to_point(x, y) for x, y in line], colour, width=2, dash=dash)
        drawing.stroke([(legend_x, legend_y), (legend_x + 22, legend_y)], colour, width=2, dash=dash)
        drawing.text(legend_x + 28, legend_y + 4, name, size=LABEL, room=WIDTH - legend_x - 28)
    drawing.end(max(HEIGHT, TOP + 18 * len(series)))
    return svg_text(drawing, title=title)


def interval_chart(scores: Mapping[str, tuple[float, float, float]], *, title: str, x_label: str) -> str:
    """Draw a score with its interval for each name: mean, lower and upper bound.

    >>> interval_chart({"a": (3.0, 2.0, 5.0)}, title="t", x_label="x").count("<circle")
    1
    """
    bounds = [bound for _, low, high in scores.values() for bound in (low, high)]
    ticks = round_values(min(bounds), max(bounds))
    left = LABEL + max(text_width(name, LABEL) for name in scores)
    left = min(left, WIDTH / 2)
    right = WIDTH - 3 * LABEL
    bottom = TOP + ROW * len(scores)

    def to_x(value: float) -> float:
        return left + (right - left) * (value - ticks[0]) / ((ticks[-1] - ticks[0]) or 1)

    drawing = Drawing(WIDTH, PAGE)
    for tick in ticks:
        drawing.stroke([(to_x(tick), TOP), (to_x(tick), bottom)], PAGE.line, width=0.4)
        drawing.text(to_x(tick), bottom + 16, f"{tick:.4g}", size=LABEL, anchor="middle")
    drawing.text((left + right) / 2, bottom + 34, x_label, size=LABEL, anchor="middle")
    for row, (name, (mean, low, high)) in enumerate(scores.items()):
        y = TOP + ROW * (row + 0.5)
        colour = HEAD_COLOURS[row % len(HEAD_COLOURS)]
        drawing.text(left - LABEL, y + 4, name, size=LABEL, anchor="end", room=left - LABEL)
        drawing.stroke([(to_x(low), y), (to_x(high), y)], colour, width=2)
        drawing.disc(to_x(mean), y, 4, colour)
    drawing.end(bottom + BOTTOM)
    return svg_text(drawing, title=title)


def chart_page(title: str, lines: Sequence[str], charts: Mapping[str, str], after: str = "") -> str:
    """Build a self-contained page without scripts: lines of text, charts by title, and HTML after them.

    >>> chart_page("<a>", ["b"], {}).count("<a>")
    0
    """
    text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    return static_page(title, f"{text}{html_figures(charts)}{after}")


def static_page(title: str, body: str) -> str:
    """Build a self-contained page without scripts; `body` is the HTML below its title.

    >>> static_page("a & b", "<p>c").count("a &amp; b")
    2
    """
    title = html.escape(title)
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{PAGE_STYLE}</style></head><body><main><h1>{title}</h1>{body}</main></body></html>\n"
    )


def html_figures(charts: Mapping[str, str]) -> str:
    """Charts with their titles as HTML."""
    return "".join(
        f"<figure><figcaption><b>{html.escape(name)}</b></figcaption>{chart}</figure>" for name, chart in charts.items()
    )


def html_table(rows: Sequence[Sequence[str]], *, best: int | None = None) -> str:
    """Titles and rows as a table of a page; the first cell of each row is its name, and the row `best` is bold.

    >>> html_table([["layer", "R²"], ["0", "<1"]]).count("&lt;1")
    1
    """
    header, *body = ([html.escape(cell) for cell in row] for row in rows)
    head = "".join(f"<th scope=col>{cell}</th>" for cell in header)
    lines = ""
    for index, (name, *cells) in enumerate(body):
        mark = " class=best" if index == best else ""
        lines += f"<tr{mark}><th scope=row>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"


def heat_map(weights: NDArray[np.floating], rows: Sequence[str], columns: Sequence[str], *, title: str) -> str:
    """Draw a matrix with labels; darker cells have larger weights.

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

    def to_point(self, x: float, y: float) -> Point:
        """Point of the drawing for a pair of values."""
        x_fraction = (x - self.x_low) / ((self.x_high - self.x_low) or 1)
        y_fraction = (y - self.y_low) / ((self.y_high - self.y_low) or 1)
        return LEFT + (WIDTH - LEFT - LEGEND) * x_fraction, TOP + (HEIGHT - BOTTOM - TOP) * (1 - y_fraction)


def round_values(low: float, high: float) -> list[float]:
    """Choose four to eight equidistant round values from at most `low` to at least `high`.

    >>> round_values(0, 38.88), round_values(26, 1815)
    ([0.0, 10.0, 20.0, 30.0, 40.0], [0.0, 500.0, 1000.0, 1500.0, 2000.0])
    >>> round_values(0.31, 0.36)
    [0.31, 0.32, 0.33, 0.34, 0.35, 0.36]
    """
    span = (high - low) or abs(high) or 1.0
    magnitude = 10 ** math.floor(math.log10(span / 4))
    step = next(magnitude * factor for factor in (1, 2, 2.5, 5, 10) if magnitude * factor >= span / 6)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [float(f"{step * multiple:.10g}") for multiple in range(first, max(last, first + 1) + 1)]
