"""A comparison as a report: its verdict, its table, and nothing that could run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from regard.view.chart import lines, matrix
from regard.view.report import Compared, Report

HOSTILE = "<script>alert(1)</script>\" onload='x'"


def model(name: str, bleu: float, chance: float | None, long: float) -> Compared:
    scores = {"bleu": bleu - 1, "bleu_lowercase": bleu, "chrf": 50.0, "ter": 40.0, "exact_match": 7.0}
    scores["bleu_lowercase_signature"] = "case:lc"
    groups = [{"words": "1–10", "sentences": 3, "bleu": bleu}, {"words": "11–20", "sentences": 1, "bleu": bleu}]
    groups.append({"words": "over 40", "sentences": 2, "bleu": long})
    losses = [(1.0, 5.0), (2.0, 3.0)]
    known = (name, "a model", 1000, scores, bleu - 2, bleu + 2, chance, groups, 10.0)
    return Compared(*known, apart=(bleu, long), training=99.0, minutes=1.5, losses=losses, said="Hund")


def report(*names: str) -> Report:
    best, worse, close = names
    models = [model(worse, 10.0, 0.001, 2.0), model(best, 30.0, None, 27.0), model(close, 29.5, 0.4, 20.0)]
    return Report("three", models, "a dog", "ein Hund")


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
    other = Compared("b", "", 1, one.scores, 0, 0, None, one.by_length[:2], 1.0)
    assert other.kept is None
    head, first, second = Report("t", [one, other], "", "").table()
    assert first[head.index("kept")] == "25 %"
    assert second[head.index("kept")] == ""
    assert "kept" not in Report("t", [other], "", "").table()[0]


def test_texts_enter_the_page_as_text() -> None:
    made = Report("t", report(HOSTILE, "b", "c").models, HOSTILE, HOSTILE)
    page = made.page()
    assert "<script" not in page
    assert "onload='x'" not in page.replace("onload=&#x27;x&#x27;", "")
    assert page.count("<svg") == 2
    assert "default-src 'none'" in page
    json.dumps(made.to_dict())
    assert made.markdown().startswith("# t\n")


def test_charts_hold_every_point_and_label() -> None:
    drawn = lines({"a": [(0, 1), (1, 2)], HOSTILE: [(0, 2), (1, 1)]}, title=HOSTILE, across="x", up="y")
    assert drawn.count("<polyline") == 2
    assert "<script" not in drawn
    assert lines({}, title="t", across="x", up="y") == ""
    shaded = matrix(np.array([[0.5, 0.0], [0.25, 0.75]]), ["ein", HOSTILE], ["a", "dog"], title="t")
    assert shaded.count("<rect") == 3
    assert 'fill-opacity="0.75"' in shaded
    assert "<script" not in shaded
