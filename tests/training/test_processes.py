"""Several processes that train one model: the same bits after a kill, shares of any size, clear ends."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from regard import cli
from regard.data.made import make
from regard.errors import UsageError
from regard.training.processes import NAMES, Processes
from tests.scale import HANG_GUARD
from tests.training.killing import ATTEMPTS, is_finished

COMMON = ["--preset", "micro", "--tokenizer", "characters", "--batch-tokens", "128", "--threads", "1"]
COMMON += ["--precision", "float32", "--save-every", "5", "--evaluate-every", "20"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in make("reverse", 150)), "utf-8")
    return path


def command(pairs: Path, out: Path, *more: str) -> list[str]:
    words = ["-m", "regard", "train", "translate", str(pairs), "--steps", "30", "--out", str(out)]
    return [sys.executable, *words, *COMMON, *more]


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=HANG_GUARD)


def checkpoint(out: Path, step: int) -> dict[str, np.ndarray]:
    folder = out / "checkpoints" / f"step-{step}"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def same(some: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> bool:
    return some.keys() == others.keys() and all(np.array_equal(some[name], others[name]) for name in some)


@pytest.fixture(scope="module")
def whole(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by two processes that nothing interrupts."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done = run(command(pairs, out, "--workers", "2"))
    assert done.returncode == 0, done.stderr
    assert "2 processes, each float32 with 1 thread" in done.stderr
    return out


def wait_for(checkpoint: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a training has written a checkpoint."""
    while not checkpoint.exists():
        assert process.poll() is None or checkpoint.exists(), f"the training ended without {checkpoint}"
        time.sleep(0.01)


def test_two_processes_train_one_model_and_survive_a_kill(pairs: Path, whole: Path, tmp_path: Path) -> None:
    broken, alone = tmp_path / "broken", tmp_path / "alone"
    for _ in range(ATTEMPTS):  # until the kill comes before the end
        shutil.rmtree(broken, ignore_errors=True)
        started = subprocess.Popen(
            command(pairs, broken, "--workers", "2"), stderr=subprocess.DEVNULL, start_new_session=True, text=True
        )
        wait_for(broken / "checkpoints" / "step-10", started)
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        if not is_finished(broken):
            break
    assert not is_finished(broken)
    again = run(command(pairs, broken, "--workers", "2"))
    assert again.returncode == 0, again.stderr
    assert same(checkpoint(whole, 30), checkpoint(broken, 30))
    # the same batches and updates as one process has; only dropout's places differ
    assert cli.run(command(pairs, alone)[3:]) == 0
    losses = [
        [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines() if '"step"' in line]
        for out in (whole, alone)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


def test_torchrun_starts_the_processes_too(pairs: Path, whole: Path, tmp_path: Path) -> None:
    by_torch = tmp_path / "torch"
    words = command(pairs, by_torch)
    done = run([words[0], "-m", "torch.distributed.run", "--nproc-per-node", "2", *words[1:]])
    assert done.returncode == 0, done.stderr
    assert same(checkpoint(whole, 30), checkpoint(by_torch, 30))


def killed_with_children(process: int) -> None:
    """Kill a process and all that it started, whatever group they are of."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    os.kill(process, signal.SIGKILL)
    for child in children:
        killed_with_children(int(child))


def free_port() -> int:
    """Find a port below those that systems give to outgoing connections, so that none takes it in between."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="what a process started is read from /proc")
def test_machines_without_files_in_common_train_one_model_and_survive_a_kill(
    pairs: Path, whole: Path, tmp_path: Path
) -> None:
    machines = [tmp_path / name for name in ("one", "two")]
    for folder in machines:
        folder.mkdir()
        (folder / "pairs.tsv").write_bytes(pairs.read_bytes())

    def started() -> list[subprocess.Popen[str]]:
        words = command(Path("pairs.tsv"), Path("out"))
        port = str(free_port())
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

    for _ in range(ATTEMPTS):  # until the kill comes before the end
        for folder in machines:
            shutil.rmtree(folder / "out", ignore_errors=True)
        broken = started()
        wait_for(machines[0] / "out/checkpoints/step-5", broken[0])
        for process in broken:
            killed_with_children(process.pid)
            process.communicate()
        if not is_finished(machines[0] / "out"):
            break
    assert not is_finished(machines[0] / "out")
    told = [(process.communicate(timeout=HANG_GUARD), process.returncode) for process in started()]
    assert [code for _, code in told] == [0, 0], told
    assert same(checkpoint(whole, 30), checkpoint(machines[0] / "out", 30))
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
