"""The report on reach: what the page, the table and the summary say about curves."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from regard import cli
from regard.errors import UsageError
from regard.interpret.reach import ReachSample, distance_bins, reach_curve
from regard.report.reach import ReachReport, measure_reach


def sample(*, forgets: bool, recalls: bool = True) -> ReachSample:
    """Twelve predictions at each of the distances 0 to 4; a model that forgets is right at distance 0 alone."""
    distances = np.repeat(np.arange(5), 12)
    is_correct = distances == 0 if forgets else np.ones(60, dtype=bool)
    return ReachSample(
        prediction=np.arange(60),
        distance=distances,
        gradient=1.0 / (1 + distances),
        occlusion=is_correct.astype(float),
        is_recalled=np.full(60, recalls),
        recalled_distance=distances,
        is_correct=is_correct,
    )


def report(*samples: ReachSample) -> ReachReport:
    names = ("<rnn>", "transformer")
    curves = [reach_curve(row, distance_bins(4, 5), model=name) for row, name in zip(samples, names, strict=False)]
    return ReachReport("recall.tsv", 2.0, tuple(curves))


def test_the_page_has_a_line_for_each_model_and_no_markup_from_names() -> None:
    both = report(sample(forgets=True), sample(forgets=False))
    charts = both.charts()
    assert list(charts)[:2] == ["Influence of the token to recall: gradient", "Exact match"]
    assert all("transformer" in chart for chart in charts.values())
    page = both.page()
    assert "<rnn>" not in page
    assert page.count("<figure>") == len(charts) == 5
    assert "<script" not in page


def test_the_summary_states_the_rank_correlations() -> None:
    summary = report(sample(forgets=True), sample(forgets=False)).summary()
    forgetting = next(line for line in summary if line.startswith("<rnn>"))
    assert "over 5 ranges: gradient –, occlusion +1.00" in forgetting  # each row has one token: its share is constant
    assert "no ranks" in summary[-1]
    assert any(line.startswith("all models together") for line in summary)
    alone = report(sample(forgets=True)).summary()
    assert not any(line.startswith("all models together") for line in alone)


def test_without_tokens_to_recall_influence_alone_is_shown() -> None:
    plain = report(sample(forgets=True, recalls=False))
    assert list(plain.charts()) == ["Influence of any token: gradient", "Influence of any token: occlusion"]
    header, *rows = plain.table()
    assert "exact match %" not in header
    assert len(rows) == 5
    assert "exactly once" in plain.summary()[-1]


def test_the_table_has_a_row_for_each_model_and_range() -> None:
    both = report(sample(forgets=True), sample(forgets=False))
    header, *rows = both.table()
    column = header.index("exact match %")
    assert [row[column] for row in rows] == ["100.0", "0.0", "0.0", "0.0", "0.0", *["100.0"] * 5]
    assert [line.split("\t") for line in both.tsv()] == both.table()
    exact = [point["exact_match"] for point in both.to_dict()["models"][0]["points"]]
    assert exact == [100.0, 0.0, 0.0, 0.0, 0.0]
    assert not any(isinstance(value, float) and math.isnan(value) for value in both.to_dict()["models"][0]["points"])


def test_wrong_requests_are_refused_before_a_model_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="at least 3"):
        measure_reach(["nowhere"], ["nothing.tsv"], bins=2)
    file = tmp_path / "pairs.tsv"
    file.write_text("a\tb\n")
    for arguments, message in (
        ([str(file)], "a folder of a model is missing"),
        (["nowhere"], "a file with texts is missing"),
        (["nowhere", str(file), "--out", "reach.pdf"], ".html, .json, .tsv"),
        (["nowhere", str(file), "--bins", "2"], "--bins"),
    ):
        assert cli.run(["reach", *arguments]) == 2
        assert message in capsys.readouterr().err
