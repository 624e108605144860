"""A comparison as a report: its verdict, its table, and nothing that could run."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as tree

import numpy as np
import pytest

from regard.report.charts import heat_map, line_chart
from regard.report.compare import ComparedModel, ComparisonReport

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>\" onload='x'"


def model(name: str, bleu: float, chance: float | None, long: float) -> ComparedModel:
    scores = {"bleu": bleu - 1, "bleu_lowercase": bleu, "chrf": 50.0, "ter": 40.0, "exact_match": 7.0}
    scores["bleu_lowercase_signature"] = "case:lc"
    groups = [{"words": "1–10", "sentences": 3, "bleu": bleu}, {"words": "11–20", "sentences": 1, "bleu": bleu}]
    groups.append({"words": "over 40", "sentences": 2, "bleu": long})
    losses = [(1.0, 5.0), (2.0, 3.0)]
    known = (name, "a model", 1000, scores, bleu - 2, bleu + 2, chance, groups, 10.0)
    return ComparedModel(
        *known, bleu_short_long=(bleu, long), training=99.0, minutes=1.5, losses=losses, prediction="Hund"
    )


def report(*names: str) -> ComparisonReport:
    best, worse, close = names
    models = [model(worse, 10.0, 0.001, 2.0), model(best, 30.0, None, 27.0), model(close, 29.5, 0.4, 20.0)]
    return ComparisonReport("three", models, "a dog", "ein Hund")


def test_the_conclusion_names_the_best_what_it_surely_beats_and_who_holds_on_long_texts() -> None:
    assert report("attention", "plain", "other").conclusion() == (
        "attention is best with 30.0 BLEU (28.0–32.0), surely better than plain; "
        "from other the test set cannot tell it. "
        "On sources of over 40 words attention keeps 90 % of its BLEU on short ones, plain 20 %."
    )


def test_what_is_kept_on_long_texts_needs_long_and_short_ones() -> None:
    one = model("a", 20.0, None, 5.0)
    assert one.kept == pytest.approx(0.25)
    assert one.to_dict()["kept_on_long"] == one.kept
    other = ComparedModel("b", "", 1, one.scores, 0, 0, None, one.by_length[:2], 1.0)
    assert other.kept is None
    head, first, second = ComparisonReport("t", [one, other], "", "").table()
    assert first[head.index("kept")] == "25 %"
    assert second[head.index("kept")] == ""
    assert "kept" not in ComparisonReport("t", [other], "", "").table()[0]


def test_texts_enter_the_page_as_text() -> None:
    made = ComparisonReport("t", report(HOSTILE, "b", "c").models, HOSTILE, HOSTILE)
    page = made.page()
    assert "<script" not in page
    assert "onload='x'" not in page.replace("onload=&#x27;x&#x27;", "")
    assert page.count("<svg") == 2
    assert "default-src 'none'" in page
    json.dumps(made.to_dict())
    assert made.markdown().startswith("# t\n")


def strokes(drawn: str) -> list[dict[str, str]]:
    return [element.attrib for element in tree.fromstring(drawn).iter(f"{SVG}path")]


def texts(drawn: str) -> list[str]:
    return [element.text or "" for element in tree.fromstring(drawn).iter(f"{SVG}text")]


def test_charts_hold_every_point_and_label() -> None:
    series = {"a": [(0, 1), (1, 2), (2, 0)], HOSTILE: [(0, 2), (1, 1)], "empty": []}
    drawn = line_chart(series, title=HOSTILE, x_label="updates", y_label="nats", ticks={0: "none", 2: "<two>"})
    lines = [path["d"] for path in strokes(drawn) if path["stroke-width"] == "2"]
    assert sorted(line.count("L") for line in lines) == [1, 1, 1, 1, 2]  # three of the legend, two series
    assert {"a", "empty", "none", "<two>", "updates", "nats", "0", "0.5", "1", "1.5", "2"} <= set(texts(drawn))
    assert any(text.startswith("<script>alert") for text in texts(drawn))
    assert "<script" not in drawn
    assert tree.fromstring(drawn).findtext(f"{SVG}title") == HOSTILE
    assert line_chart({}, title="t", x_label="x", y_label="y") == ""


def test_lines_lie_where_their_values_are() -> None:
    drawn = line_chart({"a": [(0, 0), (5, 10), (10, 5)]}, title="t", x_label="x", y_label="y")
    line = next(path["d"] for path in strokes(drawn) if path["d"].count("L") == 2)
    (x0, y0), (x1, y1), (x2, y2) = [map(float, point.split()) for point in line.removeprefix("M").split("L")]
    assert x1 - x0 == x2 - x1 > 0
    assert y0 > y2 > y1
    assert y0 - y2 == pytest.approx(y2 - y1)


def test_the_weights_of_a_heat_map_are_parts_of_its_ink() -> None:
    weights = np.array([[0.5, 0.0], [0.25, 0.75]])
    shaded = heat_map(weights, ["ein", HOSTILE], ["a", "dog"], title="t")
    cells = {path["stroke-opacity"]: path["d"] for path in strokes(shaded)}
    assert {share: re.findall(r"M(\d+) (\d+)h", path) for share, path in cells.items()} == {
        "0.5": [("0", "0")],
        "0.25": [("0", "1")],
        "0.75": [("1", "1")],
    }
    assert texts(shaded) == ["a", "dog", "ein", HOSTILE]
    assert "<script" not in shaded
    assert heat_map(np.zeros((0, 0)), [], [], title="t").startswith("<svg")


def test_charts_take_the_colours_of_the_page() -> None:
    chart = line_chart({"a": [(0, 1), (1, 2)]}, title="t", x_label="x", y_label="y")
    for drawn in (chart, heat_map(np.eye(2), ["a", "b"], ["c", "d"], title="t")):
        assert "<rect" not in drawn
        fills = {element.get("fill") for element in tree.fromstring(drawn).iter(f"{SVG}text")}
        assert fills == {"currentColor"}
