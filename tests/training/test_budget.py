"""A time budget covers everything from start to finished model, by a clock that the test moves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regard.tasks.translation import TranslationObjective
from regard.training import batch_procedure, run, trainer
from regard.training.experiments import translation
from regard.training.experiments.translation import TranslationEvaluator
from regard.training.run import RunResult, train_run
from tests.training.listener import Listener
from tests.training.test_run import config, data

__all__ = ["data"]  # a fixture

START = 1000.0  # seconds
UPDATE = 0.5
EVALUATION = 2.0
BEAM_SEARCH = 3.0


class Clock:
    """A clock that advances only with updates, evaluations and beam searches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START
        for module in (run, batch_procedure, trainer, translation):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self._charge(monkeypatch, TranslationObjective, "loss", UPDATE)
        self._charge(monkeypatch, TranslationEvaluator, "predict", EVALUATION)
        self._charge(monkeypatch, TranslationEvaluator, "translations", BEAM_SEARCH, only_beam_search=True)
        self.charged: list[str] = []

    def _charge(
        self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, seconds: float, only_beam_search: bool = False
    ) -> None:
        """Let every call of a method take some seconds of this clock."""
        method = getattr(owner, name)

        def charged_method(this: Any, *arguments: Any, **keywords: Any) -> Any:
            if not only_beam_search or arguments[1].beam > 1:
                self.now += seconds
                self.charged.append(name)
            return method(this, *arguments, **keywords)

        monkeypatch.setattr(owner, name, charged_method)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def train(data: Path, out: Path, minutes: float, started: float, *listeners: Listener) -> RunResult:
    return train_run(config(data, **{"training.minutes": minutes}), out, listeners=listeners, started=started)


def test_everything_fits_into_the_minutes(clock: Clock, data: Path, tmp_path: Path) -> None:
    started = START - 7  # seconds of imports
    listener = Listener()
    result = train(data, tmp_path / "run", 2, started, listener)
    assert result.reason == "plan done"
    assert 100 < clock.now - started <= 120
    evaluations = clock.charged.count("predict")
    assert evaluations >= 2 and (evaluations - 1) * EVALUATION <= 0.1 * 120
    assert any(line.startswith("time: ") for line in listener.of("plan")[0]["lines"])


def test_the_length_penalty_is_tuned_only_while_there_is_time(clock: Clock, data: Path, tmp_path: Path) -> None:
    listener = Listener()
    train(data, tmp_path / "run", 0.6, START, listener)
    assert clock.now - START <= 36
    assert any("length penalties were tried" in note["text"] for note in listener.of("note"))


def test_a_resumed_run_has_the_remaining_time(
    clock: Clock, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged_loss = TranslationObjective.loss
    updates = 0

    def interrupted_loss(this: Any, *arguments: Any, **keywords: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates == 60:
            raise KeyboardInterrupt
        return charged_loss(this, *arguments, **keywords)

    monkeypatch.setattr(TranslationObjective, "loss", interrupted_loss)
    settings = config(data, **{"training.minutes": 2, "training.save_every": 10})
    with pytest.raises(KeyboardInterrupt):
        train_run(settings, tmp_path / "run", started=clock.now)
    interrupted_at = clock.now
    listener = Listener()
    train_run(settings, tmp_path / "run", listeners=[listener], started=clock.now)
    assert listener.of("resume")
    assert 70 < clock.now - interrupted_at < 120


def test_a_run_whose_time_is_over_still_evaluates_and_saves(clock: Clock, data: Path, tmp_path: Path) -> None:
    result = train(data, tmp_path / "run", 0.5, START - 60)
    assert (result.step, result.reason) == (0, "plan done")
    assert (tmp_path / "run/model.safetensors").exists()
    assert "valid_bleu" in result.metrics
