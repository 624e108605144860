"""Distributed training: the same bits after a kill, shards of any size, one clear message at the end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, ProcessFailure

from regard import cli
from regard.checkpoint.run_dir import RunDirectory
from regard.config.runs import RunConfig, build_run
from regard.data.synthetic import generate_pairs
from regard.errors import DataError, TrainingError, UsageError
from regard.training.distributed import ENVIRONMENT_VARIABLES, Distributed, LostRankError
from regard.training.launcher import RankGroup, run_ranks
from regard.training.run import train_run
from tests.scale import HANG_GUARD
from tests.training.killing import ATTEMPTS, is_finished
from tests.training.listener import Listener
from tests.training.logs import log_without_throughput

COMMON = ["--preset", "micro", "--tokenizer", "characters", "--batch-tokens", "128", "--threads", "1"]
COMMON += ["--precision", "float32", "--save-every", "5", "--evaluate-every", "20"]
SETTINGS = {  # the same as `COMMON`, for the Python interface
    "preset": "micro",
    "tokenizer.kind": "characters",
    "training.batch_tokens": 128,
    "training.threads": 1,
    "training.precision": "float32",
    "training.save_every": 5,
    "training.evaluate_every": 20,
}


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="what a process started is read from /proc"
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in generate_pairs("reverse", 150)), "utf-8")
    return path


def command(pairs: Path, out: Path, *options: str) -> list[str]:
    arguments = ["-m", "regard", "train", "translate", str(pairs), "--steps", "30", "--out", str(out)]
    return [sys.executable, *arguments, *COMMON, *options]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=HANG_GUARD)


def load_checkpoint(out: Path, step: int) -> dict[str, np.ndarray]:
    """Weights and optimizer state of a step."""
    folder = out / "checkpoints" / f"step-{step}"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def have_same_checkpoint(first: Path, second: Path, step: int = 30) -> bool:
    checkpoint = load_checkpoint(first, step)
    other = load_checkpoint(second, step)
    return checkpoint.keys() == other.keys() and all(np.array_equal(checkpoint[key], other[key]) for key in other)


@pytest.fixture(scope="module")
def uninterrupted(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directory of an uninterrupted run by two ranks."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    process = run(command(pairs, out, "--workers", "2"))
    assert process.returncode == 0, process.stderr
    assert "2 processes, each float32 with 1 thread" in process.stderr
    return out


def config(pairs: Path, **overrides: Any) -> RunConfig:
    """Config of `command` with two workers."""
    settings = {"data.train": (str(pairs),), "training.steps": 30, "training.workers": 2, **SETTINGS, **overrides}
    return build_run("translate", settings)


def start(pairs: Path, out: Path) -> subprocess.Popen[str]:
    """Start a run by two ranks."""
    return subprocess.Popen(
        command(pairs, out, "--workers", "2"), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def wait_for(checkpoint: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a run has written a checkpoint."""
    while not checkpoint.exists():
        if process.poll() is not None and not checkpoint.exists():
            error = process.stderr.read() if process.stderr is not None else ""
            raise AssertionError(f"the training ended without {checkpoint}: {error}")
        time.sleep(0.01)


def test_two_ranks_train_one_model_and_survive_a_kill(pairs: Path, uninterrupted: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    single = tmp_path / "single"
    for _ in range(ATTEMPTS):  # until the kill comes before the end
        shutil.rmtree(killed, ignore_errors=True)
        launcher = subprocess.Popen(
            command(pairs, killed, "--workers", "2"), stderr=subprocess.DEVNULL, start_new_session=True, text=True
        )
        wait_for(killed / "checkpoints" / "step-10", launcher)
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
        if not is_finished(killed):
            break
    assert not is_finished(killed)
    resumed = run(command(pairs, killed, "--workers", "2"))
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(r"the previous run was interrupted at step [1-9]\d*; resuming\n", resumed.stderr)
    assert "resuming from step" in resumed.stderr
    assert log_without_throughput(uninterrupted) == log_without_throughput(killed)
    assert have_same_checkpoint(uninterrupted, killed)
    # the same batches and updates as in a single process; only the dropout masks differ
    assert cli.run(command(pairs, single)[3:]) == 0
    losses = [
        [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines() if '"step"' in line]
        for out in (uninterrupted, single)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


def test_torchrun_can_start_the_ranks(pairs: Path, uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "torchrun"
    python, *arguments = command(pairs, out)
    process = run([python, "-m", "torch.distributed.run", "--nproc-per-node", "2", *arguments])
    assert process.returncode == 0, process.stderr
    assert have_same_checkpoint(uninterrupted, out)


def find_children(pid: int) -> list[int]:
    """Ids of the processes that any thread of a process has started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for file in files for child in file.read_text().split())


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants of any process group."""
    children = find_children(pid)
    os.kill(pid, signal.SIGKILL)
    for child in children:
        kill_tree(child)


def find_free_port() -> int:
    """Find a port below the range of outgoing connections, so that none of them takes it in between."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@needs_proc
def test_machines_without_a_shared_disk_train_one_model_and_survive_a_kill(
    pairs: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    machines = [tmp_path / name for name in ("one", "two")]
    for folder in machines:
        folder.mkdir()
        (folder / "pairs.tsv").write_bytes(pairs.read_bytes())

    def start_machines() -> list[subprocess.Popen[str]]:
        python, *arguments = command(Path("pairs.tsv"), Path("out"))
        port = str(find_free_port())
        options = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
        return [
            subprocess.Popen(
                [python, "-m", "torch.distributed.run", *options, "--node-rank", str(node_rank), *arguments],
                cwd=folder,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            for node_rank, folder in enumerate(machines)
        ]

    for _ in range(ATTEMPTS):  # until the kill comes before the end
        for folder in machines:
            shutil.rmtree(folder / "out", ignore_errors=True)
        processes = start_machines()
        wait_for(machines[0] / "out/checkpoints/step-5", processes[0])
        for process in processes:
            kill_tree(process.pid)
            process.communicate()
        if not is_finished(machines[0] / "out"):
            break
    assert not is_finished(machines[0] / "out")
    processes = start_machines()
    outputs = [process.communicate(timeout=HANG_GUARD) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert have_same_checkpoint(uninterrupted, machines[0] / "out")
    assert sorted(path.name for path in (machines[1] / "out").iterdir()) == ["run.json", "tokenizers"]
    (_, first_stderr), (second_stdout, second_stderr) = outputs
    assert "resuming from step" in first_stderr
    assert "training with rank 0" in second_stderr
    assert not second_stdout


def test_bad_input_ends_all_ranks_with_one_message(tmp_path: Path) -> None:
    process = run(command(tmp_path / "missing.tsv", tmp_path / "out", "--workers", "2"))
    assert process.returncode == 2
    assert process.stderr.count("missing.tsv") == 1
    assert process.stderr.count("\n") == 1
    assert "Traceback" not in process.stderr
    assert not process.stdout


@needs_proc
def test_a_killed_rank_ends_the_run_with_one_message_and_the_same_command_resumes(
    pairs: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    for _ in range(ATTEMPTS):  # until the kill comes before the end
        shutil.rmtree(out, ignore_errors=True)
        launcher = start(pairs, out)
        wait_for(out / "checkpoints" / "step-10", launcher)
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(find_children(launcher.pid)[-1], signal.SIGKILL)
        stderr = launcher.communicate(timeout=HANG_GUARD)[1]
        if not is_finished(out):
            break
    assert launcher.returncode == 1
    messages = [line for line in stderr.splitlines() if line.startswith("regard: ")]
    assert messages == [stderr.splitlines()[-1]]
    assert "was ended by SIGKILL" in messages[0]
    assert "Traceback" not in stderr
    resumed = run(command(pairs, out, "--workers", "2"))
    assert resumed.returncode == 0, resumed.stderr
    assert have_same_checkpoint(uninterrupted, out)


@pytest.mark.parametrize("stop_signal", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_stops_all_ranks_with_a_checkpoint(
    pairs: Path, uninterrupted: Path, tmp_path: Path, stop_signal: signal.Signals
) -> None:
    out = tmp_path / "run"
    for _ in range(ATTEMPTS):  # until the signal comes before the end
        shutil.rmtree(out, ignore_errors=True)
        launcher = start(pairs, out)
        wait_for(out / "checkpoints" / "step-5", launcher)
        launcher.send_signal(stop_signal)
        stderr = launcher.communicate(timeout=HANG_GUARD)[1]
        if not is_finished(out):
            break
    assert launcher.returncode == 0, stderr
    stopped = re.search(rf"stopped at step (\d+) \({stop_signal.name}\); checkpoint saved", stderr)
    assert stopped
    assert load_checkpoint(out, int(stopped[1]))
    resumed = run(command(pairs, out, "--workers", "2"))
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming from step {stopped[1]}" in resumed.stderr
    assert have_same_checkpoint(uninterrupted, out)


def test_listeners_and_the_caller_receive_the_events_and_the_result_of_rank_zero(
    pairs: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    listener = Listener()
    result = train_run(config(pairs), tmp_path / "run", listeners=[listener])
    assert (result.folder, result.step, result.reason, result.is_rank_zero) == (tmp_path / "run", 30, "plan done", True)
    assert result.verdict is not None
    assert result.metrics == json.loads((tmp_path / "run" / "run.json").read_text())["result"]["metrics"]
    assert [event["step"] for event in listener.of("save")] == [5, 10, 15, 20, 25, 30]
    assert [event["step"] for event in listener.of("evaluate")] == [20, 30]
    assert len(listener.of("plan")) == len(listener.of("done")) == 1
    assert have_same_checkpoint(uninterrupted, tmp_path / "run")


def test_an_error_of_a_listener_ends_all_ranks(pairs: Path, tmp_path: Path) -> None:
    class FailingListener:
        def on_event(self, event: str, data: dict[str, Any]) -> None:
            if event == "save":
                raise OverflowError("enough")

    with pytest.raises(OverflowError, match="enough"):
        train_run(config(pairs, **{"training.steps": 100_000}), tmp_path / "run", listeners=[FailingListener()])
    assert not is_finished(tmp_path / "run")
    with RunDirectory(tmp_path / "run").lock():  # no rank holds the lock any more
        pass


def test_every_rank_has_the_same_sum(tmp_path: Path) -> None:
    script = """
import sys, torch
from pathlib import Path
from regard.training.distributed import Distributed
with Distributed.from_environment() as distributed:
    for size in (1, 5, 200_003):
        tensor = torch.randn(size, generator=torch.Generator().manual_seed(distributed.rank))
        distributed.all_reduce(tensor)
        torch.save(tensor, Path(sys.argv[1], f"{size}-{distributed.rank}.pt"))
    assert distributed.all_reduce_values([1.0, distributed.rank]) == [3.0, 3.0]
    assert distributed.broadcast([5.0 + distributed.rank]) == [5.0]
    assert distributed.broadcast_json({"rank": distributed.rank}) == {"rank": 0}
    assert distributed.broadcast_bytes(bytes([distributed.rank]) * 70) == bytes(70)
    assert distributed.broadcast_bytes(b"" if distributed.is_rank_zero else b"other") == b""
    received = distributed.broadcast_tensors({"a": torch.full((2, 3), distributed.rank, dtype=torch.bfloat16)})
    assert received["a"].dtype == torch.bfloat16 and torch.equal(received["a"].float(), torch.zeros(2, 3))
    assert (distributed.local_world_size, distributed.is_multi_node) == (3, False)
    assert distributed.is_local_rank_zero == distributed.is_rank_zero == (distributed.rank == 0)
"""
    run_ranks(3, ["-c", script, str(tmp_path)])
    for size in (1, 5, 200_003):
        sums = [torch.load(tmp_path / f"{size}-{rank}.pt") for rank in range(3)]
        addends = [torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
        assert torch.equal(sums[0], sums[1]) and torch.equal(sums[0], sums[2])
        torch.testing.assert_close(sums[0], addends[0] + addends[1] + addends[2])


def test_a_rank_that_ends_without_an_error_is_named_with_its_exit_code() -> None:
    with pytest.raises(TrainingError, match="rank 1 ended with code 7"):
        run_ranks(2, ["-c", "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(600)"])


@pytest.mark.parametrize(
    ("first", "second", "expected", "message"),
    [
        (UsageError("no such file"), LostRankError("lost"), UsageError, "^no such file$"),
        (LostRankError("lost"), UsageError("no such file"), UsageError, "^no such file$"),
        (DataError("no tab", location="a:7", advice="two"), None, DataError, "^a:7: no tab — two$"),
        (LostRankError("lost"), LostRankError("lost"), TrainingError, "^lost$"),
        (LostRankError("lost"), ZeroDivisionError("x / 0"), RuntimeError, "^rank 1: ZeroDivisionError: x / 0\n"),
    ],
)
def test_the_cause_is_raised_and_not_its_consequences(
    first: Exception,
    second: Exception | None,
    expected: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = RankGroup(2, [], str(tmp_path))
    for rank, error in enumerate([first, second]):
        path = tmp_path / f"{rank}.json"
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
        if error is not None:
            ErrorHandler().record_exception(error)
        exit_code = -signal.SIGTERM if error is None else 1
        group.failures[rank] = ProcessFailure(local_rank=rank, pid=1, exitcode=exit_code, error_file=str(path))
    with pytest.raises(expected, match=message):
        raise group.cause()


def test_shards_cover_a_batch_of_any_size() -> None:
    for world_size in (1, 2, 3, 5):
        for size in range(7):
            ranks = [Distributed(rank, world_size) for rank in range(world_size)]
            shards = [distributed.shard(np.arange(size)) for distributed in ranks]
            assert sorted(np.concatenate(shards).tolist()) == [*range(size)]
            slices = [range(size)[distributed.shard_slice(size)] for distributed in ranks]
            assert [index for indices in slices for index in indices] == [*range(size)]


def test_an_incomplete_environment_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert Distributed.from_environment().world_size == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="RANK, MASTER_ADDR, MASTER_PORT is not set"):
        Distributed.from_environment()
