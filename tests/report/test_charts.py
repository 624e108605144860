"""Charts of reports: every point and label, in the colours of the page."""

from __future__ import annotations

import re
from xml.etree import ElementTree as tree

import numpy as np
import pytest

from regard.report.charts import heat_map, interval_chart, line_chart

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>\" onload='x'"


def strokes(svg: str) -> list[dict[str, str]]:
    return [element.attrib for element in tree.fromstring(svg).iter(f"{SVG}path")]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in tree.fromstring(svg).iter(f"{SVG}text")]


def test_charts_contain_every_point_and_label() -> None:
    series = {"a": [(0, 1), (1, 2), (2, 0)], HOSTILE: [(0, 2), (1, 1)], "empty": []}
    chart = line_chart(series, title=HOSTILE, x_label="updates", y_label="nats", ticks={0: "none", 2: "<two>"})
    lines = [path["d"] for path in strokes(chart) if path["stroke-width"] == "2"]
    assert sorted(line.count("L") for line in lines) == [1, 1, 1, 1, 2]  # three in the legend, two series
    assert {"a", "empty", "none", "<two>", "updates", "nats", "0", "0.5", "1", "1.5", "2"} <= set(texts(chart))
    assert any(text.startswith("<script>alert") for text in texts(chart))
    assert "<script" not in chart
    assert tree.fromstring(chart).findtext(f"{SVG}title") == HOSTILE
    assert line_chart({}, title="t", x_label="x", y_label="y") == ""


def test_lines_pass_through_their_values() -> None:
    chart = line_chart({"a": [(0, 0), (5, 10), (10, 5)]}, title="t", x_label="x", y_label="y")
    line = next(path["d"] for path in strokes(chart) if path["d"].count("L") == 2)
    (x0, y0), (x1, y1), (x2, y2) = [map(float, point.split()) for point in line.removeprefix("M").split("L")]
    assert x1 - x0 == x2 - x1 > 0
    assert y0 > y2 > y1
    assert y0 - y2 == pytest.approx(y2 - y1)


def test_a_series_keeps_its_colour_where_another_is_missing() -> None:
    options = {"title": "t", "x_label": "x", "y_label": "y"}
    both = line_chart({"a": [(0, 1), (1, 2)], "b": [(0, 2), (1, 1)]}, **options)
    single = line_chart({"b": [(0, 2), (1, 1)]}, **options, colours=["a", "b"])
    colours = [path["stroke"] for path in strokes(both) if path["stroke-width"] == "2"]
    assert {path["stroke"] for path in strokes(single) if path["stroke-width"] == "2"} == {colours[-1]}
    assert colours[0] != colours[-1]


def test_an_interval_lies_between_its_bounds() -> None:
    chart = interval_chart({"a": (60.0, 50.0, 80.0), HOSTILE: (50.0, 50.0, 50.0)}, title="t", x_label="accuracy")
    line = next(path["d"] for path in strokes(chart) if path["stroke-width"] == "2")
    (left, y), (right, end_y) = [map(float, point.split()) for point in line.removeprefix("M").split("L")]
    circle, point = [element.attrib for element in tree.fromstring(chart).iter(f"{SVG}circle")]
    assert float(circle["cx"]) == pytest.approx(left + (right - left) / 3, abs=0.1)
    assert y == end_y == float(circle["cy"])
    assert float(point["cx"]) == pytest.approx(left, abs=0.1)
    assert {"a", "50", "80", "accuracy"} <= set(texts(chart))
    assert "<script" not in chart


def test_the_weights_of_a_heat_map_are_opacities() -> None:
    weights = np.array([[0.5, 0.0], [0.25, 0.75]])
    svg = heat_map(weights, ["ein", HOSTILE], ["a", "dog"], title="t")
    cells = {path["stroke-opacity"]: path["d"] for path in strokes(svg)}
    assert {opacity: re.findall(r"M(\d+) (\d+)h", path) for opacity, path in cells.items()} == {
        "0.5": [("0", "0")],
        "0.25": [("0", "1")],
        "0.75": [("1", "1")],
    }
    assert texts(svg) == ["a", "dog", "ein", HOSTILE]
    assert "<script" not in svg
    assert heat_map(np.zeros((0, 0)), [], [], title="t").startswith("<svg")


def test_charts_use_the_colours_of_the_page() -> None:
    chart = line_chart({"a": [(0, 1), (1, 2)]}, title="t", x_label="x", y_label="y")
    for svg in (chart, heat_map(np.eye(2), ["a", "b"], ["c", "d"], title="t")):
        assert "<rect" not in svg
        fills = {element.get("fill") for element in tree.fromstring(svg).iter(f"{SVG}text")}
        assert fills == {"currentColor"}
