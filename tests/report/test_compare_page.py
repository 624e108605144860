"""The report of a comparison: conclusion, table, charts, and a page without scripts."""

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


def build_model(name: str, bleu: float, p_value: float | None, long: float) -> ComparedModel:
    scores = {"bleu": bleu - 1, "bleu_lowercase": bleu, "chrf": 50.0, "ter": 40.0, "exact_match": 7.0}
    scores["bleu_lowercase_signature"] = "case:lc"
    groups = [{"words": "1–10", "sentences": 3, "bleu": bleu}, {"words": "11–20", "sentences": 1, "bleu": bleu}]
    groups.append({"words": "over 40", "sentences": 2, "bleu": long})
    losses = [(1.0, 5.0), (2.0, 3.0)]
    return ComparedModel(
        name,
        "a model",
        parameters=1000,
        scores=scores,
        low=bleu - 2,
        high=bleu + 2,
        p_value=p_value,
        by_length=groups,
        sentences_per_second=10.0,
        bleu_short_long=(bleu, long),
        tokens_per_second=99.0,
        minutes=1.5,
        losses=losses,
        prediction="Hund",
    )


def build_report(best: str, worse: str, close: str) -> ComparisonReport:
    models = [
        build_model(worse, 10.0, 0.001, 2.0),
        build_model(best, 30.0, None, 27.0),
        build_model(close, 29.5, 0.4, 20.0),
    ]
    return ComparisonReport("three", models, "a dog", "ein Hund")


def test_the_conclusion_names_the_best_model_significant_differences_and_quality_on_long_sources() -> None:
    assert build_report("attention", "plain", "other").conclusion() == (
        "attention is best with 30.0 BLEU (28.0–32.0), significantly better than plain; "
        "the difference to other is not significant. "
        "On sources of over 40 words attention retains 90 % of its BLEU on short ones, plain 20 %."
    )


def test_quality_retained_on_long_sources_needs_long_and_short_ones() -> None:
    model = build_model("a", 20.0, None, 5.0)
    assert model.retained_on_long == pytest.approx(0.25)
    assert model.to_dict()["retained_on_long"] == model.retained_on_long
    without_long = ComparedModel("b", "", 1, model.scores, 0, 0, None, model.by_length[:2], 1.0)
    assert without_long.retained_on_long is None
    header, first, second = ComparisonReport("t", [model, without_long], "", "").table()
    assert first[header.index("retained")] == "25 %"
    assert second[header.index("retained")] == ""
    assert "retained" not in ComparisonReport("t", [without_long], "", "").table()[0]


def test_the_json_of_a_model_has_fixed_keys_and_no_picture() -> None:
    assert list(build_model("a", 20.0, 0.5, 5.0).to_dict()) == [
        "name",
        "summary",
        "parameters",
        "scores",
        "low",
        "high",
        "p_value",
        "by_length",
        "sentences_per_second",
        "tokens_per_second",
        "minutes",
        "losses",
        "prediction",
        "bleu_short",
        "bleu_long",
        "retained_on_long",
    ]


def test_texts_are_escaped_in_the_page() -> None:
    report = ComparisonReport("t", build_report(HOSTILE, "b", "c").models, HOSTILE, HOSTILE)
    page = report.page()
    assert "<script" not in page
    assert "onload='x'" not in page.replace("onload=&#x27;x&#x27;", "")
    assert page.count("<svg") == 2
    assert "default-src 'none'" in page
    json.dumps(report.to_dict())
    assert report.markdown().startswith("# t\n")


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
