"""The command as users call it, at a size that is done in a moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from regard.bench import recurrent
from regard.bench.peers import peer
from regard.bench.peers.torch import StepByStep
from regard.bench.programme import fast_format
from regard.bench.settings import BenchConfig
from regard.cli import run
from regard.engine.library import absence
from regard.errors import ConfigError
from regard.models import build
from tests.scale import HANG_GUARD

ROOT = Path(__file__).parent.parent.parent
FAST = fast_format()  # of torch on this machine


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-m", "regard", "bench", *arguments]
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=HANG_GUARD)


def test_a_tiny_run_gives_rows_a_file_and_a_picture(tmp_path: Path) -> None:
    flags = "--quick --size tiny --only training --repeats 2 --threads 1 --peers torch --json".split()
    done = bench(*flags, "--out", str(tmp_path / "made"))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    trained = {row["peer"]: row for row in rows if row["bench"] == "training tiny"}
    assert set(trained) == {f"regard {FAST}", f"torch {FAST}"}
    for row in trained.values():
        assert row["unit"] == "target tokens/s"
        assert row["value"] > 0
        assert row["low"] <= row["ratio"] <= row["high"]
        assert 0 < row["peak"] < 1
        assert row["memory"] > 10**7
        assert row["against"] == f"torch {FAST}"
        assert 1 <= len(row["rounds"]) <= 2  # a quick run ends early where time is short
    assert trained[f"torch {FAST}"]["ratio"] == 1
    assert [row["unit"] for row in rows if row["bench"].startswith("matrix product")] == ["GFLOP/s"] * (
        2 if FAST == "bf16" else 1
    )
    written = json.loads((tmp_path / "made" / "bench.json").read_text())
    assert written["rows"] == rows
    assert written["machine"]["threads"] == 1
    picture = ElementTree.parse(tmp_path / "made" / "bench.svg").getroot()
    shown = " ".join(element.text or "" for element in picture.iter())
    assert f"regard {FAST}" in shown
    assert f"torch {FAST}" in shown


def test_the_recurrence_is_the_peers_own_model(tmp_path: Path) -> None:
    """Both have the same weights to learn, so that their speeds can be compared."""
    shape = recurrent.SHAPES["tiny"]
    theirs = sum(part.numel() for part in StepByStep(shape, at_once=True).parameters())
    ours = build(shape.config(recurrent.FEEDING["fed"])).parameter_count()
    assert abs(ours - theirs) < 0.05 * theirs
    flags = "--quick --size tiny --only recurrent --repeats 1 --threads 1 --peers torch --json".split()
    done = bench(*flags, "--out", str(tmp_path / "made"))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["bench"] for row in rows} == {"recurrent tiny fed", "recurrent tiny following"}
    assert {row["library"] for row in rows} == {"regard", "torch"}
    assert all(row["value"] > 0 for row in rows)


def test_a_peer_tells_the_setting_that_it_chose(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    flags = "--quick --size tiny --only latency --repeats 1 --threads 2 --peers transformers --json".split()
    done = bench(*flags, "--out", str(tmp_path / "made"))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["setting"] for row in rows if row.get("library") == "transformers"} <= {"1 thread", "2 threads"}
    assert {row["bench"] for row in rows if row["unit"] == "ms/sentence"} == {
        "latency tiny greedy",
        "latency tiny beam 4",
    }


@pytest.mark.parametrize(
    ("name", "trainers"),
    [
        ("masked", {FAST}),
        ("fine-tuning", {FAST, f"{FAST} by length"}),
        ("encoding", set()),
    ],
)
def test_encoders_learn_and_read_beside_transformers(name: str, trainers: set[str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    flags = f"--quick --size tiny --only {name} --repeats 1 --threads 1 --peers transformers,trainer --json".split()
    done = bench(*flags, "--out", str(tmp_path / "made"))
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout) if row["bench"] == f"{name} tiny"]
    beside = {f"trainer {one}" for one in trainers} if peer("trainer")[1].present() else set()
    ours = "bf16" if name == "encoding" and not absence() else FAST  # the engine has a bf16 of its own
    assert {row["peer"] for row in rows} == {f"regard {ours}", f"transformers {FAST}", *beside}
    assert all(row["value"] > 0 and row["peak"] > 0 for row in rows)


def test_lone_texts_are_read_beside_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    flags = "--size tiny --only encoding --repeats 1 --threads 1 --peers transformers --json".split()
    done = bench(*flags, "--out", str(tmp_path / "made"))
    assert done.returncode == 0, done.stderr
    for tokens in (16, 128):
        rows = [row for row in json.loads(done.stdout) if row["bench"] == f"latency tiny {tokens} tokens"]
        assert {row["library"] for row in rows} == {"regard", "transformers"}
        assert all(row["unit"] == "ms/text" and row["value"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--only", "trainig"], "only must name some of training"),
        (["--only", "trainig"], "(did you mean training?)"),
        (["--peers", "torch,jonmt"], "(did you mean joeynmt?)"),
        (["--repeats", "-1"], "--repeats"),
        (["--size", "huge"], "--size"),
    ],
)
def test_a_mistake_is_one_message(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *flags]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert "Traceback" not in message


def test_a_file_is_no_place_for_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("mine")
    assert run(["bench", "--quick", "--out", str(tmp_path / "taken")]) == 2
    assert "is a file: choose a folder for --out" in capsys.readouterr().err


def test_settings_choose_what_is_run() -> None:
    usual = ["training", "recurrent", "masked", "fine-tuning", "translation", "latency", "encoding", "growth"]
    assert BenchConfig().benches() == usual
    assert BenchConfig(only="growth, training").benches() == ["training", "growth"]
    assert [size.name for size in BenchConfig().sizes()] == ["small", "base"]
    assert BenchConfig(quick=True).rounds == 3
    assert BenchConfig(quick=True, repeats=7).rounds == 7
    assert BenchConfig(peers="eole,torch").libraries() == ["torch", "eole"]
    with pytest.raises(ConfigError, match="nothing"):
        BenchConfig(peers="nothing")
