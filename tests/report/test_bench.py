"""`regard bench MODEL`: every family is measured in the setups that it supports; others are skipped with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.cli import run
from regard.engine.library import unavailable_reason
from regard.errors import UsageError
from regard.report.bench import BenchmarkSetup, Effort, SetupResult, benchmark_model, list_setups, synthetic_texts
from tests.checkpoint.test_every_family import FAMILIES, save_memory_model

TINY = Effort(texts=3, single_texts=2, rounds=2)
GENERATIVE = ("translator", "recurrent", "gpt")
ENGINE = ("translator", "plain", "label", "token", "span", "gpt")  # families that the engine runs
needs_engine = pytest.mark.skipif(bool(unavailable_reason()), reason="the engine is not built")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_measured_in_torch(family: str, tmp_path: Path) -> None:
    FAMILIES[family](tmp_path / "model")
    report = benchmark_model(
        tmp_path / "model", backends=["torch"], precisions=["float32"], threads=[1, 2], effort=TINY
    )
    assert [result.setup for result in report.results] == [
        BenchmarkSetup("torch", "float32", 1),
        BenchmarkSetup("torch", "float32", 2),
    ]
    assert report.unit == ("tokens/s" if family in GENERATIVE else "texts/s")
    assert report.skipped == ()
    for result in report.results:
        assert len(result.throughputs) == TINY.rounds
        assert len(result.latencies) == TINY.rounds * TINY.single_texts
        assert min(*result.throughputs, *result.latencies) > 0


@needs_engine
@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_is_measured_where_it_runs_the_family(family: str, tmp_path: Path) -> None:
    FAMILIES[family](tmp_path / "model")
    if family not in ENGINE:
        with pytest.raises(UsageError, match="cannot be measured: engine float32, 1 thread: .*engine"):
            benchmark_model(tmp_path / "model", backends=["engine"], threads=[1], effort=TINY)
        return
    report = benchmark_model(tmp_path / "model", backends=["engine"], threads=[1], effort=TINY)
    assert [result.setup.precision for result in report.results] == ["float32", "bf16", "int8"]


@needs_engine
def test_setups_that_an_engine_folder_cannot_run_are_skipped_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FAMILIES["translator"](tmp_path / "model")
    assert run(["convert", str(tmp_path / "model"), str(tmp_path / "int8"), "--precision", "int8"]) == 0
    capsys.readouterr()
    flags = "--quick --rounds 1 --count 2 --threads 1 --precision float32,int8 --json".split()
    assert run(["bench", str(tmp_path / "int8"), *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(result["backend"], result["precision"]) for result in report["results"]] == [("engine", "int8")]
    assert len(report["skipped"]) == 2
    assert all("holds int8 weights" in reason for reason in report["skipped"])


def test_texts_of_a_file_are_measured_and_shown_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FAMILIES["label"](tmp_path / "model")
    texts = tmp_path / "texts.txt"
    texts.write_text("mary went home\n\njohn slept\nmary slept\n", encoding="utf-8")
    flags = ["--texts", str(texts), "--quick", "--backend", "torch", "--precision", "float32", "--threads", "1"]
    assert run(["bench", str(tmp_path / "model"), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["backend", "precision", "threads", "texts/s", "range", "ms", "p50", "ms", "p95"]
    assert lines[1].split()[:3] == ["torch", "float32", "1"]
    assert lines[3] == "3 texts, median and range of 3 rounds; milliseconds of single texts"


def test_figures_are_medians_ranges_and_percentiles() -> None:
    setup = BenchmarkSetup("engine", "int8", 2)
    result = SetupResult(setup, throughputs=(10.0, 40.0, 20.0), latencies=tuple(float(ms) for ms in range(101)))
    assert result.to_dict() == {
        "backend": "engine",
        "precision": "int8",
        "threads": 2,
        "throughput": 20.0,
        "throughput_range": [10.0, 40.0],
        "latency_p50_ms": 50.0,
        "latency_p95_ms": 95.0,
    }
    assert result.cells() == ["engine", "int8", "2", "20", "10–40", "50", "95"]


def test_setups_are_all_combinations_that_exist() -> None:
    setups = list_setups([], [], [1])
    assert [(setup.backend, setup.precision) for setup in setups] == [
        ("engine", "float32"),
        ("engine", "bf16"),
        ("engine", "int8"),
        ("torch", "float32"),
        ("torch", "bf16"),
    ]


def test_synthetic_texts_are_a_function_of_the_seed() -> None:
    assert synthetic_texts(8) == synthetic_texts(8)
    assert synthetic_texts(8) != synthetic_texts(8, seed=2)
    assert len(set(synthetic_texts(8))) == 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--backend", "engin"], "backend must be one of engine, torch, not 'engin' (did you mean engine?)"),
        (["--precision", "bf61"], "(did you mean bf16?)"),
        (["--threads", "two"], "--threads takes numbers separated by commas, not 'two'"),
        (["--threads", "0"], "threads (0) must be at least 1"),
        (["--backend", "torch", "--precision", "int8"], "torch has no int8"),
        (["--rounds", "0"], "--rounds"),
    ],
)
def test_an_error_is_one_message(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FAMILIES["label"](tmp_path / "model")
    assert run(["bench", str(tmp_path / "model"), *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_file_without_texts_and_a_missing_model_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FAMILIES["label"](tmp_path / "model")
    (tmp_path / "empty.txt").write_text("\n\n", encoding="utf-8")
    assert run(["bench", str(tmp_path / "model"), "--texts", str(tmp_path / "empty.txt")]) == 2
    assert "has no texts" in capsys.readouterr().err
    assert run(["bench", str(tmp_path / "nothing")]) == 2
    assert str(tmp_path / "nothing") in capsys.readouterr().err


def test_a_memory_network_is_refused(tmp_path: Path) -> None:
    save_memory_model(tmp_path / "model")
    with pytest.raises(UsageError, match="this model reads stories, not texts"):
        benchmark_model(tmp_path / "model", backends=["torch"], precisions=["float32"], effort=TINY)
