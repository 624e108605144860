"""The report as a picture: bars of ratios with their spread, and curves of growth; one SVG that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby

from regard.bench.measure import OURS, Row

WIDTH = 860
LEFT, RIGHT = 250, 150  # room for names and for values
LINE, TITLE, GAP = 22, 30, 16
CHART, CHART_HEIGHT, PER_LINE = 400, 230, 2
COLOURS = {True: "#1f6feb", False: "#9aa4b2"}  # ours, others
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.h{font-weight:600}.s{fill:#57606a;font-size:11px}"
    "line{stroke:#57606a;stroke-width:1}polyline{fill:none;stroke-width:2}rect.page{fill:#fff}"
)


def plot(rows: Sequence[Row]) -> str:
    """Return the SVG.

    >>> plot([Row("training", "regard <bf16>", 2.0, "tokens/s", 1.5, 1.4, 1.6, library="regard")]).count("<rect")
    2
    """
    made: list[str] = []
    top = GAP
    curves: list[list[Row]] = []
    for _, some in groupby(rows, key=lambda row: row.bench):
        bench = list(some)
        if bench[0].axis:
            curves.append(bench)
        else:
            parts, height = _bars(bench, top)
            made += parts
            top += height + GAP
    for number, curve in enumerate(curves):
        made += _chart(curve, GAP + (number % PER_LINE) * (CHART + GAP), top)
        if number % PER_LINE == PER_LINE - 1 or curve is curves[-1]:
            top += CHART_HEIGHT + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}">'
    page = f'<rect class="page" width="{WIDTH}" height="{top}"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", page, *made, "</svg>", ""])


def _bars(rows: Sequence[Row], top: int) -> tuple[list[str], int]:
    """Return one bench: a bar a row, as long as its ratio to the best peer; without a peer, as its value."""
    sizes = [row.value if row.ratio is None else row.ratio for row in rows]
    most = max([*sizes, *(row.high or 0 for row in rows)])
    room = WIDTH - LEFT - RIGHT
    made = [_text(GAP, top + 14, rows[0].bench, "h")]
    for place, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        y = top + TITLE + place * LINE
        long = room * size / most
        made.append(_text(GAP, y + 12, f"{row.peer} {row.setting}".strip()))
        made.append(
            f'<rect x="{LEFT}" y="{y}" width="{long:.1f}" height="{LINE - 6}" fill="{COLOURS[row.library == OURS]}"/>'
        )
        if row.low is not None and row.high is not None:
            ends = [LEFT + room * ratio / most for ratio in (row.low, row.high)]
            made.append(_line(ends[0], y + LINE / 2 - 3, ends[1], y + LINE / 2 - 3))
        said = "" if row.ratio is None else f"{row.ratio:.2f}×, "
        made.append(_text(LEFT + room + 8, y + 12, f"{said}{row.value:,.4g} {row.unit}", "s"))
    return made, TITLE + len(rows) * LINE


def _chart(rows: Sequence[Row], left: float, top: float) -> list[str]:
    """Return one curve on two logarithmic axes, a line for each who was measured."""
    across, up, foot = CHART - 60, CHART_HEIGHT - 70, top + CHART_HEIGHT - 36
    begin = left + 50
    xs = [math.log(row.at or 1) for row in rows]
    ys = [math.log(row.value) for row in rows]

    def place(row: Row) -> tuple[float, float]:
        x = (math.log(row.at or 1) - min(xs)) / ((max(xs) - min(xs)) or 1)
        y = (math.log(row.value) - min(ys)) / ((max(ys) - min(ys)) or 1)
        return begin + across * x, foot - up * y

    made = [_text(left, top + 14, f"{rows[0].bench}, {rows[0].unit}", "h")]
    made += [_line(begin, foot, begin + across, foot), _line(begin, foot, begin, foot - up)]
    for y in (min(ys), max(ys)):
        made.append(
            _text(left, foot - up * ((y - min(ys)) / ((max(ys) - min(ys)) or 1)) + 4, f"{math.exp(y):.3g}", "s")
        )
    for name in dict.fromkeys(row.peer for row in rows):
        some = [row for row in rows if row.peer == name]
        colour = COLOURS[some[0].library == OURS]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, some))
        made.append(f'<polyline points="{points}" stroke="{colour}"/>')
        made += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in map(place, some)]
        x, y = place(some[-1])
        made.append(_text(x - 60, y - 8, name, "s"))
    for at in sorted({row.at or 1 for row in rows}):
        x = begin + across * (math.log(at) - min(xs)) / ((max(xs) - min(xs)) or 1)
        made.append(_text(x - 8, foot + 16, f"{at:,.0f}", "s"))
    return made


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    shown = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{shown}>{escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'
