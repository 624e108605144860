"""The demo on a small scale: its output, but not the quality of its model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from regard.cli import run
from regard.engine import library
from regard.report import demo
from regard.view.record.record import Record


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "NUM_PAIRS", {"train": 500, "valid": 11})
    monkeypatch.setattr(demo, "NUM_TEST_DATES", 43)


@pytest.mark.usefixtures("small_demo")
def test_the_demo_shows_scores_attention_and_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--out", str(tmp_path), "--seconds", "2"]) == 0
    out, _ = capfd.readouterr()
    lines = out.splitlines()
    assert any(re.fullmatch(r"exact match: \d+\.\d %", line) for line in lines[-8:])
    assert "┌─viernes," in out
    assert f"--out {tmp_path.with_name(tmp_path.name + '-longer')}" in out  # two seconds are too short
    page = (tmp_path / demo.PAGE).read_text(encoding="utf-8")
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    records = [Record.from_dict(fields) for fields in json.loads(match[1])["records"]]
    assert records[0].texts["source"].text == demo.EXAMPLE_SOURCE
    assert len(records) > 5
    assert records[0].provenance["model"] == "dates"

    assert run(["demo", "--out", str(tmp_path), "--seconds", "2", "--json"]) == 0  # again: no training
    out, _ = capfd.readouterr()
    result = json.loads(out.splitlines()[-1])
    assert sum(language["total"] for language in result["by_language"].values()) == 43
    correct = sum(language["correct"] for language in result["by_language"].values())
    assert result["exact_match"] == pytest.approx(100 * correct / 43)


@pytest.mark.usefixtures("small_demo")
def test_a_demo_that_runs_out_of_time_reports_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--out", str(tmp_path / "short"), "--seconds", "1"]) == 0
    out, _ = capfd.readouterr()
    assert "try next" not in out
    assert f", which is wrong: {demo.EXAMPLE_SOURCE} is 2017-03-03:" in out
    *_, verdict, failure, remedy = out.splitlines()
    assert verdict.startswith(("learned nothing: ", "more time is needed: "))
    assert failure.startswith("not good enough: ")
    assert "the time limit of 1 s was too short" in failure
    assert remedy.endswith(f"regard demo --seconds 300 --out {tmp_path / 'short-longer'}")

    assert run(["demo", "--out", str(tmp_path / "short"), "--seconds", "1", "--json"]) == 0
    result = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert result["goal_reached"] is False
    assert result["verdict"]["status"] in ("learned_nothing", "needs_more_time")
    assert result["example"]["correct"] is False


def test_a_demo_stops_when_validation_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "NUM_PAIRS", {"train": 20, "valid": 20})
    monkeypatch.setattr(demo, "NUM_TEST_DATES", 20)
    monkeypatch.setattr(demo, "GOAL", 0.0)
    monkeypatch.setattr(demo, "STOP_AT", 1.0)
    monkeypatch.setattr(demo, "EVALUATE_EVERY", 5)
    assert run(["demo", "--out", str(tmp_path), "--minutes", "600"]) == 0
    assert "try next:" in capfd.readouterr().out
    run_json = json.loads((tmp_path / "model/run.json").read_text())
    assert run_json["config"]["training"]["stop_at"] == 1.0
    assert run_json["result"]["step"] % 5 == 0


@pytest.mark.usefixtures("small_demo")
def test_without_the_engine_the_demo_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "FILE", Path("nowhere/regard_engine.so"))
    library._load_library_or_reason.cache_clear()
    try:
        assert run(["demo", "--out", str(tmp_path), "--seconds", "1"]) == 0
    finally:
        library._load_library_or_reason.cache_clear()
    assert (
        "the engine is unavailable, torch translates: it was not built: install a C++ compiler"
        in capfd.readouterr().err
    )


def test_no_test_date_is_in_the_training_data_in_any_language() -> None:
    trained = {pair.target for pair in demo.generate_rows("dates", 3000, split="train")}
    tested = {pair.target for pair in demo.generate_rows("dates", demo.NUM_TEST_DATES, split="test")}
    assert not trained & tested


def test_minutes_and_seconds_exclude_each_other(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--seconds", "3", "--minutes", "1"]) == 2
    assert "both given" in capfd.readouterr().err
