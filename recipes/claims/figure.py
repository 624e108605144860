"""Figure of a claim's result: curves where the measure has them, else every seed's number with the mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from recipes.claims.measure import MEASURES
from recipes.claims.rules import HAS_REACHED, Rule
from regard.report.charts import line_chart, round_values
from regard.view.drawing import Drawing, text_width
from regard.view.palette import HEAD_COLOURS, THEMES
from regard.view.svg import svg_text

WIDTH = 560.0
ROW = 24.0
TOP = 26.0
MARGIN = 14.0  # between names, axis and right edge
LABEL = 11.0  # font size
DOT = 3.2
MEAN_HEIGHT = 9.0
BACKGROUND = "#ffffff"


def draw_result(result: Mapping[str, Any]) -> str:
    """Draw a written result as SVG."""
    if result["curves"]:
        x_label = MEASURES[result["measure"]["name"]].x_label
        chart = line_chart(result["curves"], title=result["claim"], x_label=x_label, y_label=result["unit"])
        return _with_background(chart)
    return _draw_dots(result)


def _with_background(chart: str) -> str:
    """A chart for a page of its own: its text is black, on white whatever surrounds it."""
    return re.sub(r"(<title>)", rf"<style>svg{{background:{BACKGROUND};color:#1d2129}}</style>\1", chart, count=1)


def _draw_dots(result: Mapping[str, Any]) -> str:
    """One row for each number that a rule refers to: a dot per seed, and a line at the mean."""
    rows = {
        f"{model}.{name}".removesuffix(".value"): values for (model, name), values in _shown_numbers(result).items()
    }
    theme = THEMES["light"]
    drawing = Drawing(WIDTH, theme)
    left = 2 * MARGIN + max(text_width(name, LABEL) for name in rows)
    values = [value for row in rows.values() for value in row if value is not None] or [0.0]
    lowest = 0.0 if 0 <= min(values) < 0.6 * max(values) else min(values)
    ticks = round_values(lowest, max(values))
    scale = (WIDTH - MARGIN - left) / ((ticks[-1] - ticks[0]) or 1)
    drawing.text(left, LABEL, result["unit"], size=LABEL)
    bottom = TOP + ROW * len(rows)
    for tick in ticks:
        x = left + scale * (tick - ticks[0])
        drawing.stroke([(x, TOP), (x, bottom)], theme.line, width=0.5)
        drawing.text(x, bottom + LABEL + 3, f"{tick:.4g}", size=LABEL, anchor="middle")
    for index, (name, row) in enumerate(rows.items()):
        y = TOP + ROW * (index + 0.5)
        drawing.text(left - MARGIN, y + LABEL / 3, name, size=LABEL, anchor="end")
        known = [value for value in row if value is not None]
        colour = HEAD_COLOURS[index % len(HEAD_COLOURS)]
        for value in known:
            drawing.disc(left + scale * (value - ticks[0]), y, DOT, colour)
        if known:
            x = left + scale * (fmean(known) - ticks[0])
            drawing.stroke([(x, y - MEAN_HEIGHT), (x, y + MEAN_HEIGHT)], theme.text, width=1.2)
    drawing.end(bottom + 2 * LABEL)
    return svg_text(drawing, title=result["claim"], about="Dots are seeds, lines their means.")


def _shown_numbers(result: Mapping[str, Any]) -> dict[tuple[str, str], list[float | None]]:
    """Values of the numbers that rules refer to, but for those that are no quantity of the axis."""
    references = [reference for rule in result["rules"] for reference in Rule.parse(rule["rule"]).references()]
    shown = (reference for reference in dict.fromkeys(references) if reference[1] != HAS_REACHED)
    return {(model, name): result["measured"][model][name] for model, name in shown}
