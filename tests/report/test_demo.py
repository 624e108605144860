"""The demo on a small scale: everything it shows, though not how good it gets."""

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
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PAIRS", {"train": 500, "valid": 11})
    monkeypatch.setattr(demo, "UNSEEN", 43)


@pytest.mark.usefixtures("small")
def test_the_demo_shows_figures_alignment_and_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--out", str(tmp_path), "--seconds", "2"]) == 0
    out, _ = capfd.readouterr()
    lines = out.splitlines()
    assert any(re.fullmatch(r"exact match: \d+\.\d %", line) for line in lines[-8:])
    assert "┌─viernes," in out
    assert f"--out {tmp_path.with_name(tmp_path.name + '-longer')}" in out  # two seconds are too few
    page = (tmp_path / demo.PAGE).read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    records = [Record.from_dict(one) for one in json.loads(found[1])["records"]]
    assert records[0].texts["source"].text == demo.SHOWN
    assert len(records) > 5
    assert records[0].made["model"] == "dates"

    assert run(["demo", "--out", str(tmp_path), "--seconds", "2", "--json"]) == 0  # again: only shown
    out, _ = capfd.readouterr()
    facts = json.loads(out.splitlines()[-1])
    assert sum(one["of"] for one in facts["by_language"].values()) == 43
    right = sum(one["right"] for one in facts["by_language"].values())
    assert facts["exact_match"] == pytest.approx(100 * right / 43)


@pytest.mark.usefixtures("small")
def test_a_demo_that_ran_out_of_time_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--out", str(tmp_path / "short"), "--seconds", "1"]) == 0
    out, _ = capfd.readouterr()
    assert "try next" not in out
    assert f", which is wrong: {demo.SHOWN} is 2017-03-03:" in out
    *_, verdict, failure, remedy = out.splitlines()
    assert verdict.startswith(("learned nothing: ", "more time is needed: "))
    assert failure.startswith("not good enough: ")
    assert "the time limit of 1 s was too short" in failure
    assert remedy.endswith(f"regard demo --seconds 300 --out {tmp_path / 'short-longer'}")

    assert run(["demo", "--out", str(tmp_path / "short"), "--seconds", "1", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert facts["goal_reached"] is False
    assert facts["verdict"]["status"] in ("learned_nothing", "needs_more_time")
    assert facts["shown"]["right"] is False


def test_a_demo_ends_when_validation_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "PAIRS", {"train": 20, "valid": 20})
    monkeypatch.setattr(demo, "UNSEEN", 20)
    monkeypatch.setattr(demo, "GOAL", 0.0)
    monkeypatch.setattr(demo, "STOP_AT", 1.0)
    monkeypatch.setattr(demo, "EVALUATE_EVERY", 5)
    assert run(["demo", "--out", str(tmp_path), "--minutes", "600"]) == 0
    assert "try next:" in capfd.readouterr().out
    record = json.loads((tmp_path / "model/run.json").read_text())
    assert record["config"]["training"]["stop_at"] == 1.0
    assert record["finished"]["step"] % 5 == 0


@pytest.mark.usefixtures("small")
def test_without_an_engine_the_demo_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "FILE", Path("nowhere/regard_engine.so"))
    library._found.cache_clear()
    try:
        assert run(["demo", "--out", str(tmp_path), "--seconds", "1"]) == 0
    finally:
        library._found.cache_clear()
    assert (
        "the engine is absent, so torch translates: it was not built: install a C++ compiler" in capfd.readouterr().err
    )


def test_no_unseen_date_is_in_the_training_data_in_any_language() -> None:
    seen = {row.target for row in demo.generate_rows("dates", 3000, split="train")}
    assert not seen & {row.target for row in demo.generate_rows("dates", demo.UNSEEN, split="test")}


def test_a_time_is_given_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--seconds", "3", "--minutes", "1"]) == 2
    assert "both given" in capfd.readouterr().err
