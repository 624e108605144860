"""Eight ways for one of two workers to die: the run ends with a message, and the same command resumes to the same bits.

All processes are real. The fault is caused inside the process that dies (`faults/sitecustomize.py`).
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from regard.errors import TrainingError
from regard.training.distributed import LostRankError
from regard.training.heartbeat import FrozenRankError
from regard.training.launcher import run_ranks
from tests.scale import HANG_GUARD
from tests.training.deaths import (
    DEATHS,
    INTERRUPTED,
    LAUNCHER_KILLED,
    STEPS,
    WORKERS,
    find_processes,
    train,
    training_command,
    write_pairs,
)
from tests.training.killing import is_finished
from tests.training.logs import log_without_throughput
from tests.training.test_distributed import have_same_checkpoint

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and signals of Linux")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    write_pairs(path)
    return path


@pytest.fixture(scope="module")
def undisturbed(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    process = train([*training_command(pairs, out), *WORKERS])
    assert process.returncode == 0, process.stderr
    return out


def check_same_run(undisturbed: Path, resumed: Path) -> None:
    assert have_same_checkpoint(undisturbed, resumed, STEPS)
    assert log_without_throughput(undisturbed) == log_without_throughput(resumed)
    assert (undisturbed / "model.safetensors").read_bytes() == (resumed / "model.safetensors").read_bytes()


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS)
def test_a_death_ends_the_run_and_the_same_command_resumes(
    pairs: Path, undisturbed: Path, tmp_path: Path, death: str
) -> None:
    fault, message = DEATHS[death]
    arguments = [*training_command(pairs, tmp_path / "run"), *WORKERS]
    process = train(arguments, fault)
    assert process.returncode == 1, process.stderr
    assert message in process.stderr
    assert process.stderr.count("regard: ") == 1 and "Traceback" not in process.stderr
    assert not (tmp_path / "run/run.json").exists() or not is_finished(tmp_path / "run")
    assert find_processes(tmp_path) == []
    resumed = train(arguments)
    assert resumed.returncode == 0, resumed.stderr
    check_same_run(undisturbed, tmp_path / "run")


@needs_linux
@pytest.mark.slow
def test_the_next_start_reports_that_the_launcher_and_all_ranks_were_killed(
    pairs: Path, undisturbed: Path, tmp_path: Path
) -> None:
    arguments = [*training_command(pairs, tmp_path / "run"), *WORKERS]
    process = train(arguments, LAUNCHER_KILLED)
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + HANG_GUARD
    while find_processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert find_processes(tmp_path) == []
    resumed = train(arguments)
    assert resumed.returncode == 0, resumed.stderr
    assert INTERRUPTED in resumed.stderr
    check_same_run(undisturbed, tmp_path / "run")


@needs_linux
@pytest.mark.slow
def test_a_death_ends_a_run_that_torchrun_started(pairs: Path, undisturbed: Path, tmp_path: Path) -> None:
    torchrun = ["torch.distributed.run", "--nproc_per_node", "2", "-m"]
    arguments = [*torchrun, *training_command(pairs, tmp_path / "run")]
    process = train(arguments, "1 regard.training.trainer Trainer.step 13 kill")
    assert process.returncode != 0
    assert "regard: another rank ended" in process.stderr or "Signal 9 (SIGKILL)" in process.stderr
    resumed = train(arguments)
    assert resumed.returncode == 0, resumed.stderr
    check_same_run(undisturbed, tmp_path / "run")


def test_a_worker_that_dies_before_it_joins_is_shown_with_its_last_output() -> None:
    script = "import os, sys, time; print('no port'); sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(600)"
    with pytest.raises(TrainingError, match="rank 1 ended with code 7: .*\nIts last output:\n  no port$"):
        run_ranks(2, ["-c", script])


def test_a_rank_that_never_joins_ends_the_others_after_the_time_limit() -> None:
    script = """
import os, time
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1":
        time.sleep(600)
    from regard.training import distributed
    distributed.JOIN_SECONDS = 2
    with distributed.Distributed.from_environment():
        pass
main()
"""
    with pytest.raises(LostRankError, match="^not all 2 processes joined within 2 s .*: look for the message"):
        run_ranks(2, ["-c", script])


@needs_linux
@pytest.mark.parametrize("frozen_rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_frozen_rank_ends_the_others(frozen_rank: int) -> None:
    script = """
import os, signal, sys
from regard.training.distributed import Distributed
with Distributed.from_environment(worker_timeout=2) as distributed:
    distributed.barrier()
    if distributed.rank == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGSTOP)
    distributed.barrier()
"""
    recorded = f"""
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    exec({script!r})
main()
"""
    with pytest.raises(
        FrozenRankError, match=rf"^rank {frozen_rank} has not responded for 2 s \(--training\.worker_timeout\)"
    ):
        run_ranks(2, ["-c", recorded, str(frozen_rank)])
