"""Several processes that train one model: the same bits after a kill, shares of any size, clear ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from regard.data.made import make
from regard.errors import UsageError
from regard.training.processes import NAMES, Processes
from tests.scale import HANG_GUARD

COMMON = ["--preset", "micro", "--tokenizer", "characters", "--batch-tokens", "128", "--threads", "1"]
COMMON += ["--precision", "float32", "--save-every", "5", "--evaluate-every", "20"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in make("reverse", 150)), "utf-8")
    return path


def command(pairs: Path, out: Path, *more: str, steps: int = 30) -> list[str]:
    words = ["-m", "regard", "train", "translate", str(pairs), "--steps", str(steps), "--out", str(out)]
    return [sys.executable, *words, *COMMON, *more]


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=HANG_GUARD)


def checkpoint(out: Path, step: int) -> dict[str, np.ndarray]:
    folder = out / "checkpoints" / f"step-{step}"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def same(some: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> bool:
    return some.keys() == others.keys() and all(np.array_equal(some[name], others[name]) for name in some)


def test_two_processes_train_one_model_and_survive_a_kill(pairs: Path, tmp_path: Path) -> None:
    whole, broken, alone = tmp_path / "whole", tmp_path / "broken", tmp_path / "alone"
    done = run(command(pairs, whole, "--workers", "2"))
    assert done.returncode == 0, done.stderr
    assert "2 processes of 1 threads" in done.stderr
    started = subprocess.Popen(
        command(pairs, broken, "--workers", "2", steps=30), stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not (broken / "checkpoints" / "step-10").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    again = run(command(pairs, broken, "--workers", "2"))
    assert again.returncode == 0, again.stderr
    assert same(checkpoint(whole, 30), checkpoint(broken, 30))
    # the same batches and updates as one process has; only dropout's places differ
    assert run(command(pairs, alone)).returncode == 0
    losses = [
        [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines() if '"step"' in line]
        for out in (whole, alone)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


def test_torchrun_starts_the_processes_too(pairs: Path, tmp_path: Path) -> None:
    by_us, by_torch = tmp_path / "us", tmp_path / "torch"
    assert run(command(pairs, by_us, "--workers", "2", steps=6)).returncode == 0
    words = command(pairs, by_torch, steps=6)
    done = run([words[0], "-m", "torch.distributed.run", "--nproc-per-node", "2", *words[1:]])
    assert done.returncode == 0, done.stderr
    assert same(checkpoint(by_us, 6), checkpoint(by_torch, 6))


def killed_with_children(process: int) -> None:
    """Kill a process and all that it started, whatever group they are of."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    os.kill(process, signal.SIGKILL)
    for child in children:
        killed_with_children(int(child))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="what a process started is read from /proc")
def test_machines_without_files_in_common_train_one_model_and_survive_a_kill(pairs: Path, tmp_path: Path) -> None:
    together = tmp_path / "together"
    assert run(command(pairs, together, "--workers", "2", steps=12)).returncode == 0
    machines = [tmp_path / name for name in ("one", "two")]
    for folder in machines:
        folder.mkdir()
        (folder / "pairs.tsv").write_bytes(pairs.read_bytes())

    def started() -> list[subprocess.Popen[str]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        words = command(Path("pairs.tsv"), Path("out"), steps=12)
        here = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
        return [
            subprocess.Popen(
                [words[0], "-m", "torch.distributed.run", *here, "--node-rank", str(number), *words[1:]],
                cwd=folder,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            for number, folder in enumerate(machines)
        ]

    broken = started()
    deadline = time.monotonic() + 120
    while not (machines[0] / "out/checkpoints/step-5").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in broken:
        killed_with_children(process.pid)
        process.communicate()
    assert "finished" not in json.loads((machines[0] / "out/run.json").read_text())
    told = [(process.communicate(timeout=HANG_GUARD), process.returncode) for process in started()]
    assert [code for _, code in told] == [0, 0], told
    assert same(checkpoint(together, 12), checkpoint(machines[0] / "out", 12))
    assert sorted(path.name for path in (machines[1] / "out").iterdir()) == ["run.json", "tokenizers"]
    assert "going on from step" in told[0][0][1]
    assert "the first machine reports" in told[1][0][1]
    assert not told[1][0][0]


def test_a_bad_input_ends_all_processes_with_one_message(tmp_path: Path) -> None:
    done = run(command(tmp_path / "missing.tsv", tmp_path / "out", "--workers", "2"))
    assert done.returncode == 2
    assert done.stderr.count("missing.tsv") == 1
    assert "Traceback" not in done.stderr


def test_a_batch_is_dealt_out_whole_whatever_its_size() -> None:
    for count in (1, 2, 3, 5):
        for size in range(7):
            dealt = [Processes(rank, count).share(np.arange(size)) for rank in range(count)]
            assert sorted(np.concatenate(dealt).tolist()) == [*range(size)]
            pieces = [Processes(rank, count).slice(size) for rank in range(count)]
            assert [one for piece in pieces for one in range(size)[piece]] == [*range(size)]


def test_a_half_set_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    assert Processes.started().count == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="RANK, MASTER_ADDR, MASTER_PORT is not set"):
        Processes.started()
