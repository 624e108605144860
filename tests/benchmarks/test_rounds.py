"""Rounds of benchmarks: runners as processes, failures, training loops of libraries, libraries not installed."""

from __future__ import annotations

import io
import json
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks.peers import schedule
from benchmarks.peers.config import LIBRARIES, BenchmarkConfig
from benchmarks.peers.libraries import Library, load_library
from benchmarks.peers.rounds import Deadline, run_rounds
from benchmarks.peers.runner import RunnerSpec
from benchmarks.peers.statistics import Metric
from benchmarks.peers.worker import BestSetting, Channel, Job, LoopPacer, Sample

FAKE_LIBRARY = """
import time

def run_steady(job, channel):
    channel.serve({"go": lambda: float(job.settings["value"]), "on": lambda: 2.0})

def run_broken(job, channel):
    raise ValueError("no such thing\\nmore")

def run_tired(job, channel):
    print("libraries print what they like")
    values = [2.0, 1.0]

    def measure():
        if not values:
            raise RuntimeError("no more\\nand no less")
        return values.pop()

    channel.serve({"go": measure, "on": measure})

def run_gone(job, channel):
    import os, sys
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(3)
"""


@pytest.fixture
def fake_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a module of runners without torch to the package of the worker processes."""
    import benchmarks.peers

    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "fake_library.py").write_text(FAKE_LIBRARY)
    (folder / "sitecustomize.py").write_text(
        textwrap.dedent(
            f"""
            import sys
            import benchmarks.peers
            benchmarks.peers.__path__.append({str(folder)!r})
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert benchmarks.peers.__path__


def spec(benchmark: str, library: str, **settings: object) -> RunnerSpec:
    return RunnerSpec(library, Job("fake_library", benchmark, "", 1, dict(settings)))


@pytest.mark.usefixtures("fake_library")
def test_a_failing_runner_is_reported_and_the_others_continue() -> None:
    specs = [
        spec("steady", "regard", value=6),
        spec("broken", "broken"),
        spec("steady", "other", value=3),
        spec("tired", "tired"),
        spec("gone", "gone"),
    ]
    messages: list[str] = []
    metrics = [Metric("go", "race", "laps/s"), Metric("on", "walk", "laps/s")]
    outcome = run_rounds(specs, metrics, 3, deadline=Deadline(), log=messages.append)
    race = {measurement.runner: measurement.values for measurement in outcome.measurements["go"]}
    walk = {measurement.runner: measurement.values for measurement in outcome.measurements["on"]}
    assert race == {"regard": (6.0,) * 3, "other": (3.0,) * 3}
    assert walk == {"regard": (2.0,) * 3, "other": (2.0,) * 3}
    assert all(measurement.peak_memory > 1_000_000 for measurement in outcome.measurements["go"])
    assert sorted(outcome.missing) == [
        "failed: broken: broken: ValueError: no such thing",
        "failed: gone: gone: its process ended: out of memory",
        "failed: race: tired: RuntimeError: no more",
    ]
    assert messages[:2] == ["race: warm-up", "race: round 1 of 3"]


@pytest.mark.usefixtures("fake_library")
def test_one_round_is_run_even_past_the_deadline() -> None:
    specs = [spec("steady", "regard", value=6)]
    metrics = [Metric("go", "race", "laps/s")]
    outcome = run_rounds(specs, metrics, 3, deadline=Deadline.after(0), log=print)
    assert [measurement.values for measurement in outcome.measurements["go"]] == [(6.0,)]


def test_a_library_with_its_own_training_loop_is_paused_between_measurements() -> None:
    answers = io.StringIO()
    pacer = LoopPacer(Channel(io.StringIO("training\ntraining\n"), answers), "training")
    pacer.report(5)  # warm-up
    pacer.report(300, 2.0)
    with pytest.raises(SystemExit):
        pacer.report(100, 4.0)
    ready, first, second = (json.loads(line) for line in answers.getvalue().splitlines())
    assert ready == {"metrics": ["training"]}
    assert first["value"] == 150.0
    assert second["value"] == 25.0


def test_the_best_setting_is_selected_once() -> None:
    batch_sizes: list[int] = []

    def measure_batch(batch_size: int) -> float:
        batch_sizes.append(batch_size)
        return float(abs(batch_size - 20))

    measure = BestSetting(measure_batch, {"batch 8": 8, "batch 16": 16, "batch 64": 64}, lower_is_better=True)
    assert measure() == Sample(4.0, "batch 16")
    assert batch_sizes == [8, 8, 16, 64]  # the first run is the warm-up
    assert measure() == Sample(4.0, "batch 16")
    assert batch_sizes == [8, 8, 16, 64, 16]


def test_a_library_that_is_not_installed_is_skipped_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Library("joeynmt", {"no_such_module": "joeynmt"}, {"training": ("float32",)})
    monkeypatch.setattr(schedule, "load_library", lambda name: ("libraries.joeynmt", absent))
    missing: list[str] = []
    specs = schedule.schedule_runners("training", BenchmarkConfig(peers="joeynmt"), {}, missing)
    assert {spec.library for spec in specs} == {"regard"}
    assert missing == ["skipped: joeynmt is not installed (pip install joeynmt)"]


def test_eole_may_be_installed_in_another_python(tmp_path: Path) -> None:
    missing: list[str] = []
    config = BenchmarkConfig(peers="eole", eole_python=str(tmp_path / "none"))
    schedule.schedule_runners("training", config, {}, missing)
    assert missing[0].startswith(f"skipped: eole: {tmp_path / 'none'} cannot be run")
    if not Library("eole", {"eole": "eole"}, {}).is_installed():
        config = BenchmarkConfig(peers="eole", eole_python=sys.executable)
        schedule.schedule_runners("training", config, {}, missing)
        assert missing[1] == f"skipped: eole is not installed in {sys.executable} (pip install eole)"


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_library_has_a_file_that_describes_its_benchmarks(name: str) -> None:
    module_name, library = load_library(name)
    module = sys.modules[f"benchmarks.peers.{module_name}"]
    assert library.name == name
    assert library.benchmarks
    assert all(callable(getattr(module, f"run_{benchmark}")) for benchmark in library.benchmarks)
    for benchmark, variants in library.quick.items():
        assert set(variants) <= set(library.benchmarks[benchmark])
