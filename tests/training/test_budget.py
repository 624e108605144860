"""A time budget covers everything from start to finished model, by a clock that the test moves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regard.tasks.translation import TranslationObjective
from regard.training import run, trainer
from regard.training.experiments import translation
from regard.training.experiments.translation import TranslationEvaluator
from regard.training.run import RunResult, train_run
from tests.training.listener import Listener
from tests.training.test_run import config, data

__all__ = ["data"]  # a fixture

START, UPDATE, EVALUATION, BEAM = 1000.0, 0.5, 2.0, 3.0  # seconds


class Clock:
    """A clock that moves only when work is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START
        for module in (run, trainer, translation):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self._charge(monkeypatch, TranslationObjective, "loss", UPDATE)
        self._charge(monkeypatch, TranslationEvaluator, "compute_metrics", EVALUATION)
        self._charge(monkeypatch, TranslationEvaluator, "translations", BEAM, only_beams=True)
        self.charged: list[str] = []

    def _charge(
        self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, seconds: float, only_beams: bool = False
    ) -> None:
        work = getattr(owner, name)

        def charged(this: Any, *given: Any, **named: Any) -> Any:
            if not only_beams or given[1].beam > 1:
                self.now += seconds
                self.charged.append(name)
            return work(this, *given, **named)

        monkeypatch.setattr(owner, name, charged)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def trained(data: Path, out: Path, minutes: float, started: float, *watchers: Listener) -> RunResult:
    return train_run(config(data, **{"training.minutes": minutes}), out, listeners=watchers, started=started)


def test_everything_fits_into_the_minutes(clock: Clock, data: Path, tmp_path: Path) -> None:
    started = START - 7  # seconds of imports
    listener = Listener()
    report = trained(data, tmp_path / "run", 2, started, listener)
    assert report.reason == "plan done"
    assert 100 < clock.now - started <= 120
    evaluations = clock.charged.count("compute_metrics")
    assert evaluations >= 2 and (evaluations - 1) * EVALUATION <= 0.1 * 120
    assert any(line.startswith("time: ") for line in listener.of("plan")[0]["lines"])


def test_the_search_is_tuned_only_while_there_is_time(clock: Clock, data: Path, tmp_path: Path) -> None:
    listener = Listener()
    trained(data, tmp_path / "run", 0.6, START, listener)
    assert clock.now - START <= 36
    assert any("length penalties were tried" in note["text"] for note in listener.of("note"))


def test_a_resumed_run_has_the_time_that_was_left(
    clock: Clock, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged, updates = TranslationObjective.loss, 0

    def interrupted(this: Any, *given: Any, **named: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates == 60:
            raise KeyboardInterrupt
        return charged(this, *given, **named)

    monkeypatch.setattr(TranslationObjective, "loss", interrupted)
    settings = config(data, **{"training.minutes": 2, "training.save_every": 10})
    with pytest.raises(KeyboardInterrupt):
        train_run(settings, tmp_path / "run", started=clock.now)
    lost = clock.now
    listener = Listener()
    train_run(settings, tmp_path / "run", listeners=[listener], started=clock.now)
    assert listener.of("resume")
    assert 70 < clock.now - lost < 120


def test_a_run_whose_time_is_over_still_evaluates_and_saves(clock: Clock, data: Path, tmp_path: Path) -> None:
    report = trained(data, tmp_path / "run", 0.5, START - 60)
    assert (report.step, report.reason) == (0, "plan done")
    assert (tmp_path / "run/model.safetensors").exists()
    assert "valid_bleu" in report.metrics
