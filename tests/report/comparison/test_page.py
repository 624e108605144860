"""The report as table, Markdown and page: every number, texts as texts, no scripts, and a page that opens."""

from __future__ import annotations

import json
from pathlib import Path

from regard.report.comparison.evaluation import TrainingHistory
from regard.report.comparison.page import charts, markdown, page, report_table, write_report
from regard.report.comparison.report import ComparisonReport, build_report
from tests.report.comparison.models import COUNT, model

HOSTILE = "<script>alert(1)</script>\" onload='x' |"


def build(name: str = "worse") -> ComparisonReport:
    models = [model(name, [40, 42]), model("best", [90, 91], has_attention=True), model("counts", [88])]
    return build_report(
        models,
        [5] * 60 + [15] * 40,
        task="classify",
        metric="accuracy",
        title="three",
        seeds=(1, 2),
        text=HOSTILE,
        reference=HOSTILE,
        details={"test examples": COUNT},
    )


def test_the_table_has_a_row_for_each_model() -> None:
    header, worse, best, counts = report_table(build())
    quality = ["model", "accuracy", "95 %", "± seeds", "to best", "p", "macro-F1"]
    assert header == [*quality, "parameters", "minutes", "training texts/s", "inference texts/s"]
    cells = dict(zip(header, worse, strict=True))
    assert cells["accuracy"] == "41.00 %"
    assert cells["± seeds"] == "1.41"
    assert cells["to best"] == "−49.5 *"
    assert cells["p"] == "< 0.001"
    assert cells["parameters"] == "1.2 K"
    assert cells["training texts/s"] == "10"
    assert dict(zip(header, best, strict=True))["to best"] == "best"
    assert dict(zip(header, counts, strict=True))["± seeds"] == "–"


def test_speeds_in_different_units_name_them() -> None:
    words = TrainingHistory(rate=2000.0, unit="words", minutes=1.0)
    models = [model("tagger", [40], history=words), model("classifier", [90])]
    report = build_report(models, [5] * COUNT, task="classify", metric="accuracy", title="t")
    header, tagger, classifier = report_table(report)
    column = header.index("training per second")
    assert (tagger[column], classifier[column]) == ("2,000 words", "10 texts")


def test_the_charts_show_intervals_lengths_and_learning_curves() -> None:
    assert list(charts(build())) == [
        "Accuracy with 95 % intervals",
        "Accuracy by length of the text",
        "Accuracy during training, first seed",
        "Loss during training, first seed",
    ]


def test_a_curve_on_training_data_says_so() -> None:
    drawn = charts(build())
    assert "(train)" in drawn["Loss during training, first seed"]
    assert "(train)" not in drawn["Accuracy during training, first seed"]


def test_texts_are_escaped_in_the_page() -> None:
    report = build(HOSTILE)
    text = page(report)
    assert "<script" not in text
    assert "onload='x'" not in text.replace("onload=&#x27;x&#x27;", "")
    assert "default-src 'none'" in text
    assert text.count("<svg") == 4 + 1  # charts, and the attention of one model
    assert "no attention to show" in text
    assert markdown(report).startswith("# three\n")
    assert r"\|" in markdown(report)


def test_the_three_files_of_a_report_say_the_same(tmp_path: Path) -> None:
    report = build()
    files = write_report(report, tmp_path / "report")
    assert [file.name for file in files] == ["report.html", "report.json", "report.md"]
    values = json.loads(files[1].read_text("utf-8"))
    assert values["conclusion"] in files[2].read_text("utf-8")
    assert values["conclusion"] in files[0].read_text("utf-8")
    assert [entry["name"] for entry in values["models"]] == ["worse", "best", "counts"]
