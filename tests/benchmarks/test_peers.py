"""The benchmark command: tiny runs beside other libraries, their rows and files, mistakes in options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.peers.__main__ import run
from benchmarks.peers.config import BenchmarkConfig
from benchmarks.peers.libraries import load_library
from benchmarks.peers.libraries.torch import StepwiseRNN
from benchmarks.peers.schedule import fast_torch_precision
from benchmarks.peers.tasks import INPUT_FEEDING, RECURRENT_SIZES
from regard.engine.library import unavailable_reason
from regard.errors import ConfigError
from regard.models import build_model
from tests.scale import HANG_GUARD

ROOT = Path(__file__).parent.parent.parent
FAST_PRECISION = fast_torch_precision()


def run_peers(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "benchmarks.peers", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANG_GUARD)


def test_a_tiny_run_prints_rows_and_writes_a_file_and_a_plot(tmp_path: Path) -> None:
    flags = "--quick --size tiny --only training --repeats 2 --threads 1 --peers torch --json".split()
    completed = run_peers(*flags, "--out", str(tmp_path / "results"))
    assert completed.returncode == 0, completed.stderr
    rows = json.loads(completed.stdout)
    training_rows = {row["peer"]: row for row in rows if row["bench"] == "training tiny"}
    assert set(training_rows) == {f"regard {FAST_PRECISION}", f"torch {FAST_PRECISION}"}
    for row in training_rows.values():
        assert row["unit"] == "target tokens/s"
        assert row["value"] > 0
        assert row["low"] <= row["ratio"] <= row["high"]
        assert 0 < row["peak"] < 1
        assert row["memory"] > 10**7
        assert row["against"] == f"torch {FAST_PRECISION}"
        assert 1 <= len(row["rounds"]) <= 2  # a quick run ends early where time is short
    assert training_rows[f"torch {FAST_PRECISION}"]["ratio"] == 1
    num_peaks = 2 if FAST_PRECISION == "bf16" else 1
    assert [row["unit"] for row in rows if row["bench"].startswith("matrix product")] == ["GFLOP/s"] * num_peaks
    report = json.loads((tmp_path / "results" / "bench.json").read_text())
    assert report["rows"] == rows
    assert report["machine"]["threads"] == 1
    plot = ElementTree.parse(tmp_path / "results" / "bench.svg").getroot()
    plot_text = " ".join(element.text or "" for element in plot.iter())
    assert f"regard {FAST_PRECISION}" in plot_text
    assert f"torch {FAST_PRECISION}" in plot_text


@pytest.mark.slow
def test_the_rnn_with_input_feeding_has_the_size_of_the_peer(tmp_path: Path) -> None:
    """Speeds can be compared because both have nearly as many weights."""
    size = RECURRENT_SIZES["tiny"]
    peer_weights = sum(weight.numel() for weight in StepwiseRNN(size, output_after_loop=True).parameters())
    regard_weights = build_model(size.config(INPUT_FEEDING["fed"])).num_parameters()
    assert abs(regard_weights - peer_weights) < 0.05 * peer_weights
    flags = "--quick --size tiny --only recurrent --repeats 1 --threads 1 --peers torch --json".split()
    completed = run_peers(*flags, "--out", str(tmp_path / "results"))
    assert completed.returncode == 0, completed.stderr
    rows = json.loads(completed.stdout)
    assert {row["bench"] for row in rows} == {"recurrent tiny fed", "recurrent tiny following"}
    assert {row["library"] for row in rows} == {"regard", "torch"}
    assert all(row["value"] > 0 for row in rows)


@pytest.mark.slow
def test_a_peer_reports_its_best_setting(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    flags = "--quick --size tiny --only latency --repeats 1 --threads 2 --peers transformers --json".split()
    completed = run_peers(*flags, "--out", str(tmp_path / "results"))
    assert completed.returncode == 0, completed.stderr
    rows = json.loads(completed.stdout)
    assert {row["setting"] for row in rows if row.get("library") == "transformers"} <= {"1 thread", "2 threads"}
    assert {row["bench"] for row in rows if row["unit"] == "ms/sentence"} == {
        "latency tiny greedy",
        "latency tiny beam 4",
    }


@pytest.mark.parametrize(
    ("name", "trainer_variants"),
    [
        pytest.param("masked", {FAST_PRECISION}, marks=pytest.mark.slow),
        pytest.param("fine-tuning", {FAST_PRECISION, f"{FAST_PRECISION} by length"}, marks=pytest.mark.slow),
        ("encoding", set()),
    ],
)
def test_encoders_are_trained_and_used_beside_transformers(
    name: str, trainer_variants: set[str], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    flags = f"--quick --size tiny --only {name} --repeats 1 --threads 1 --peers transformers,trainer --json".split()
    completed = run_peers(*flags, "--out", str(tmp_path / "results"))
    assert completed.returncode == 0, completed.stderr
    rows = [row for row in json.loads(completed.stdout) if row["bench"] == f"{name} tiny"]
    trainers = {f"trainer {variant}" for variant in trainer_variants}
    if not load_library("trainer")[1].is_installed():
        trainers = set()
    precision = (
        "bf16" if name == "encoding" and not unavailable_reason() else FAST_PRECISION
    )  # the engine has a bf16 of its own
    assert {row["peer"] for row in rows} == {f"regard {precision}", f"transformers {FAST_PRECISION}", *trainers}
    assert all(row["value"] > 0 and row["peak"] > 0 for row in rows)


@pytest.mark.slow
def test_the_latency_of_single_texts_is_measured_beside_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    flags = "--size tiny --only encoding --repeats 1 --threads 1 --peers transformers --json".split()
    completed = run_peers(*flags, "--out", str(tmp_path / "results"))
    assert completed.returncode == 0, completed.stderr
    for tokens in (16, 128):
        rows = [row for row in json.loads(completed.stdout) if row["bench"] == f"latency tiny {tokens} tokens"]
        assert {row["library"] for row in rows} == {"regard", "transformers"}
        assert all(row["unit"] == "ms/text" and row["value"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "trainig"], "only must name some of training"),
        (["--only", "trainig"], "(did you mean training?)"),
        (["--peers", "torch,jonmt"], "(did you mean joeynmt?)"),
        (["--repeats", "-1"], "--repeats"),
        (["--size", "huge"], "--size"),
    ],
)
def test_a_mistake_in_an_option_is_one_message(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(flags) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_file_is_refused_as_the_folder_of_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("a file")
    assert run(["--quick", "--out", str(tmp_path / "taken")]) == 2
    assert "is a file: choose a folder for --out" in capsys.readouterr().err


def test_options_select_benchmarks_sizes_and_libraries() -> None:
    all_benchmarks = ["training", "recurrent", "masked", "fine-tuning", "translation", "latency", "encoding", "growth"]
    assert BenchmarkConfig().benchmarks() == all_benchmarks
    assert BenchmarkConfig(only="growth, training").benchmarks() == ["training", "growth"]
    assert [size.name for size in BenchmarkConfig().translator_sizes()] == ["small", "base"]
    assert BenchmarkConfig(quick=True).rounds == 3
    assert BenchmarkConfig(quick=True, repeats=7).rounds == 7
    assert BenchmarkConfig(peers="eole,torch").libraries() == ["torch", "eole"]
    with pytest.raises(ConfigError, match="nothing"):
        BenchmarkConfig(peers="nothing")
