"""Threads and precision by measurement: stored for runs that must be repeatable, adapted to the load for others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from regard import cli, hardware
from regard.config.models import GptConfig, StackConfig
from regard.config.training import TrainingConfig
from regard.models import build_model
from regard.training import throughput
from regard.training.run import train_run
from regard.training.throughput import (
    Setup,
    ThreadTuner,
    Throughput,
    choose_throughput,
    default_threads,
    fastest_setup,
    thread_counts,
)
from tests.training.listener import Listener
from tests.training.test_run import config, data

__all__ = ["data"]  # a fixture

ONE = Setup("float32", 1)
TWO = Setup("float32", 2)


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def spin_count(code: str, **environment: str) -> list[str]:
    """Run code in a new interpreter; return the spin count and whether spinning is limited, as text."""
    cleared = {name: value for name, value in os.environ.items() if name not in hardware.WAIT_VARIABLES}
    show = "import os; print(os.environ.get('GOMP_SPINCOUNT'), regard.hardware.SPINNING_IS_LIMITED)"
    command = [sys.executable, "-c", f"{code}; {show}"]
    process = subprocess.run(command, capture_output=True, text=True, env={**cleared, **environment}, check=True)
    return process.stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libgomp's setting is for Linux")
def test_spinning_is_limited_before_torch_is_imported_unless_the_user_sets_it() -> None:
    assert spin_count("import regard, torch") == ["2000", "True"]
    assert spin_count("import regard", OMP_WAIT_POLICY="ACTIVE") == ["None", "True"]
    assert spin_count("import regard", GOMP_SPINCOUNT="7") == ["7", "True"]
    assert spin_count("import torch, regard") == ["None", "False"]


def test_a_requested_thread_count_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(throughput, "available_cores", lambda: 8)
    assert thread_counts(TrainingConfig(), 1) == [1, 8]
    assert thread_counts(TrainingConfig(threads=3), 1) == [3]
    assert thread_counts(TrainingConfig(), 2) == [4]
    monkeypatch.setenv("OMP_NUM_THREADS", "5,1")
    assert thread_counts(TrainingConfig(), 1) == [5]
    assert default_threads(TrainingConfig(threads=3), 1) == 3


def test_the_fastest_setup_is_chosen_in_spite_of_a_burst() -> None:
    calls = dict.fromkeys((ONE, TWO), 0)

    def time_update(setup: Setup) -> float:
        assert torch.get_num_threads() == setup.threads
        calls[setup] += 1
        burst = 9.0 if setup == TWO and calls[setup] == 2 else 0.0
        return (1.0 if setup == ONE else 0.8) + burst

    choice = fastest_setup([ONE, TWO], time_update, limit=600.0)
    assert (choice.threads, choice.update_seconds) == (2, 0.8)
    assert calls == {ONE: 6, TWO: 6}


def test_more_threads_must_be_worthwhile_and_a_hopeless_setup_is_timed_twice() -> None:
    choice = fastest_setup([ONE, TWO], lambda setup: 1.0 if setup == ONE else 0.97, limit=60.0)
    assert choice.threads == 1
    calls: list[Setup] = []

    def time_update(setup: Setup) -> float:
        calls.append(setup)
        return float(setup.threads)

    fastest_setup([ONE, TWO], time_update, limit=60.0)
    assert calls.count(TWO) == 3  # once to prepare, twice timed


def record_updates(tuner: ThreadTuner, updates: int, seconds: dict[int, float]) -> None:
    """Record updates of 100 tokens, with the duration of the present thread count."""
    for _ in range(updates):
        tuner.record(100, seconds[torch.get_num_threads()])


def test_a_run_with_a_time_budget_switches_threads_with_the_load_and_back() -> None:
    notes: list[str] = []
    torch.set_num_threads(2)
    tuner = ThreadTuner([1, 2], 2, may_switch=True, notify=notes.append)
    quiet = {1: 0.9, 2: 0.5}
    busy = {1: 1.0, 2: 4.0}
    record_updates(tuner, 12, quiet)
    assert (tuner.threads, notes) == (2, [])
    record_updates(tuner, 20, busy)
    assert tuner.threads == torch.get_num_threads() == 1
    assert notes == ["switched from 2 threads to 1 thread (4.0 times as fast): other programs use the cores"]
    record_updates(tuner, 90, quiet)
    assert tuner.threads == torch.get_num_threads() == 2
    assert notes[1].endswith("more cores are free")


def test_a_repeatable_run_never_switches_but_reports_the_load() -> None:
    notes: list[str] = []
    torch.set_num_threads(2)
    tuner = ThreadTuner([1, 2], 2, may_switch=False, notify=notes.append)
    record_updates(tuner, 12, {2: 0.5})
    record_updates(tuner, 40, {2: 4.0})
    assert torch.get_num_threads() == tuner.threads == 2
    assert len(notes) == 1 and "other programs slow this run down" in notes[0]


def test_a_run_that_starts_under_load_detects_it_by_the_stored_measurement() -> None:
    notes: list[str] = []
    tuner = ThreadTuner([2], 2, may_switch=False, notify=notes.append, expected_seconds=0.1)
    for _ in range(12):
        tuner.record(100, 1.0)
    assert len(notes) == 1


def read_settings(folder: Path) -> dict[str, object]:
    """Settings that a run has chosen by measurement."""
    settings: dict[str, object] = json.loads((folder / "run.json").read_text("utf-8"))["resolved"]
    return settings


def test_the_choice_is_stored_and_used_only_by_runs_of_fixed_length(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(throughput, "available_cores", lambda: 2)
    settings = {"training.threads": "auto", "training.steps": 2}
    listener = Listener()
    train_run(config(data, **settings), tmp_path / "first", listeners=[listener])
    assert any("fastest in a short measurement" in line for line in listener.of("plan")[0]["lines"])
    (stored,) = (tmp_path / "cache/throughput").iterdir()
    fields = json.loads(stored.read_text("utf-8"))
    other_threads = 3 - fields["threads"]
    stored.write_text(json.dumps({**fields, "threads": other_threads}), "utf-8")  # as if measured on another day
    train_run(config(data, **settings), tmp_path / "second")
    assert read_settings(tmp_path / "second")["threads"] == other_threads
    assert "stored for this machine and model" in str(read_settings(tmp_path / "second")["throughput"])
    train_run(config(data, **settings, **{"training.minutes": 9}), tmp_path / "third")
    assert "fastest in a short measurement" in str(read_settings(tmp_path / "third")["throughput"])
    assert json.loads(stored.read_text("utf-8"))["threads"] == other_threads
    stored.write_text("{", "utf-8")  # damaged: measured again
    train_run(config(data, **settings), tmp_path / "fourth")
    assert "fastest in a short measurement" in str(read_settings(tmp_path / "fourth")["throughput"])


@pytest.mark.parametrize("minutes", [0, 5])
def test_runs_of_fixed_length_that_measure_at_the_same_time_make_one_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    model = build_model(GptConfig(vocab_size=19, hidden_size=8, stack=StackConfig(num_heads=2), max_positions=24))
    steps = TrainingConfig(steps=2, threads=1)
    budget = TrainingConfig(minutes=minutes, threads=1)
    float32 = Throughput("float32", 1, {"float32 with 1 thread": 0.1, "bf16 with 1 thread": 0.2})
    bf16 = Throughput("bf16", 1, {"float32 with 1 thread": 0.2, "bf16 with 1 thread": 0.1})

    def measure_slowly(counts: Sequence[int]) -> Throughput:
        assert choose_throughput(model, steps, 1, lambda _: float32).precision == "float32"  # the other run
        return bf16

    chosen = choose_throughput(model, budget if minutes else steps, 1, measure_slowly)
    assert chosen.precision == ("bf16" if minutes else "float32")
    assert choose_throughput(model, steps, 1, lambda _: bf16).precision == "float32"


def test_two_runs_of_one_command_have_the_same_weights_and_info_shows_the_choice(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    settings = {"training.threads": "auto", "training.precision": "auto", "training.steps": 2}
    weights = []
    for name in ("first", "second"):
        train_run(config(data, **settings), tmp_path / name)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    resolved = read_settings(tmp_path / "second")
    assert cli.run(["info", str(tmp_path / "second")]) == 0
    assert f"computed in: {resolved['precision']} with " in capsys.readouterr().out


def test_a_choice_is_described_with_its_reason() -> None:
    seconds = {str(ONE): 0.25, str(TWO): 0.125}
    assert Throughput("float32", 2, seconds, stored=True).text() == (
        "float32 with 2 threads (stored for this machine and model: float32 with 1 thread 250 ms, "
        "float32 with 2 threads 125 ms per update)"
    )


def test_a_notebook_that_imported_torch_first_gets_one_note(data: Path, tmp_path: Path) -> None:
    code = f"""
import torch
from tests.training.listener import Listener
from tests.training.test_run import config
from regard.training.run import train_run
from pathlib import Path
listener = Listener()
for name in ("first", "second"):
    settings = {{"training.steps": 1, "training.threads": "auto"}}
    train_run(config(Path({str(data)!r}), **settings), Path({str(tmp_path)!r}) / name, listeners=[listener])
print(sum("torch was imported before regard" in note["text"] for note in listener.of("note")))
"""
    root = Path(__file__).parents[2]
    environment = {name: value for name, value in os.environ.items() if name not in hardware.WAIT_VARIABLES}
    environment["PYTHONPATH"] = f"{root / 'src'}{os.pathsep}{root}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert process.stdout.strip() == ("1" if sys.platform.startswith("linux") else "0"), process.stderr
