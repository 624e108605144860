"""Checkpoints saved by processes that are killed or run out of disk space, at every system call or a random moment."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from regard.checkpoint import atomic
from regard.checkpoint.disk import Disk
from regard.checkpoint.run_dir import RunDirectory
from regard.errors import DiskError, UsageError

STRACE = shutil.which("strace")
SYSTEM_CALLS = ("openat", "mkdir", "write", "fsync", "rename", "unlink", "rmdir")


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"token_embedding.weight": torch.full((31, 7), float(step))}


def save(run: RunDirectory, step: int) -> None:
    run.append_log({"step": step})
    run.save_checkpoint(step, weights(step), weights(-step), {"step": step})


def start_run(path: Path) -> None:
    """Create a run with two checkpoints, so that the next save removes the first."""
    with RunDirectory(path).lock() as run:
        save(run, 1)
        save(run, 2)


def check_run(path: Path, allowed: set[int]) -> int:
    """Assert that the latest checkpoint is allowed and intact and that no temporary file is left; return its step."""
    messages: list[str] = []
    with RunDirectory(path, notify=messages.append).lock() as run:
        newest = run.latest_checkpoint()
        assert newest is not None
        assert newest.step in allowed
        assert torch.equal(newest.weights["token_embedding.weight"], weights(newest.step)["token_embedding.weight"])
        assert not messages
        assert len(run.steps()) >= 2
        assert not list_temporary(path)
        return newest.step


def list_temporary(folder: Path) -> list[Path]:
    """Temporary files and folders below a folder."""
    return [path for path in folder.rglob("*") if atomic.is_temporary(path)]


class ForkedProcess:
    """Forked process that does its work after `start`; it reports to the file descriptor that the work receives."""

    def __init__(self, work: Callable[[int], int]) -> None:
        start_read_fd, self._start_fd = os.pipe()
        self.report_fd, report_write_fd = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            exit_code = 70
            with contextlib.suppress(BaseException):
                os.close(self._start_fd)
                os.read(start_read_fd, 1)
                exit_code = work(report_write_fd)
            os._exit(exit_code)
        os.close(start_read_fd)
        os.close(report_write_fd)

    def start(self) -> None:
        os.write(self._start_fd, b"!")

    def wait(self) -> tuple[int, str]:
        """Exit code (negative: the signal that ended the process) and everything that it reported."""
        _, status = os.waitpid(self.pid, 0)
        with open(self.report_fd, encoding="utf-8") as reports:
            text = reports.read()
        os.close(self._start_fd)
        return os.waitstatus_to_exitcode(status), text


def save_step_3(path: Path) -> Callable[[int], int]:
    """Work of a process: save step 3; if the disk is full, report it and save step 4."""

    def work(report_fd: int) -> int:
        with RunDirectory(path).lock() as run:
            try:
                save(run, 3)
            except DiskError as error:
                os.write(report_fd, str(error).encode())
                save(run, 4)
                return 7
        return 0

    return work


def run_traced(path: Path, *options: str, trace_file: Path | None = None) -> tuple[int, str]:
    """Run the saving process under strace; return its exit code and what it reported."""
    assert STRACE
    process = ForkedProcess(save_step_3(path))
    flags = ["-e", f"trace={','.join(SYSTEM_CALLS)}", "-o", str(trace_file or os.devnull), *options]
    tracer = subprocess.Popen([STRACE, *flags, "-p", str(process.pid)], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr
    first_line = tracer.stderr.readline()
    process.start()
    exit_code, report = process.wait()
    tracer.wait()
    tracer.stderr.close()
    if "attached" not in first_line:
        pytest.skip(f"strace cannot attach to a process: {first_line.strip()}")
    return exit_code, report


@pytest.fixture
def call_counts(tmp_path: Path) -> dict[str, int]:
    """Number of each system call in one save."""
    if not STRACE:
        pytest.skip("strace is not installed")
    start_run(tmp_path / "counted")
    exit_code, _ = run_traced(tmp_path / "counted", trace_file=tmp_path / "trace")
    assert exit_code == 0
    names = re.findall(r"^(?:\d+ +)?(\w+)\(", (tmp_path / "trace").read_text(), re.MULTILINE)
    return {name: names.count(name) for name in SYSTEM_CALLS}


def iterate_calls(call_counts: dict[str, int], names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield name and number of every system call; strace counts from 1."""
    for name in names:
        for number in range(1, call_counts[name] + 1):
            yield name, number


def test_a_process_killed_at_any_system_call_leaves_the_old_or_the_new_checkpoint(
    call_counts: dict[str, int], tmp_path: Path
) -> None:
    assert sum(call_counts.values()) >= 30, call_counts
    for name, number in iterate_calls(call_counts, SYSTEM_CALLS):
        path = tmp_path / f"{name}-{number}"
        start_run(path)
        exit_code, _ = run_traced(path, "-e", f"inject={name}:signal=KILL:when={number}")
        assert exit_code == -signal.SIGKILL
        check_run(path, {2, 3})


def test_a_disk_full_at_any_system_call_is_reported_and_the_next_save_succeeds(
    call_counts: dict[str, int], tmp_path: Path
) -> None:
    num_failed_saves = 0
    for name, number in iterate_calls(call_counts, ("mkdir", "write", "fsync", "rename")):
        path = tmp_path / f"{name}-{number}"
        start_run(path)
        exit_code, report = run_traced(path, "-e", f"inject={name}:error=ENOSPC:when={number}")
        if exit_code == 0:  # the call does not belong to the save: it writes the holder into the lock file
            check_run(path, {3})
            continue
        assert exit_code == 7, (name, number, report)
        assert "free" in report
        assert "needed" in report
        assert str(path) in report
        check_run(path, {4})
        num_failed_saves += 1
    assert num_failed_saves >= 10


def test_a_process_killed_at_a_random_moment_loses_no_reported_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run"
    rng = random.Random(7)
    start_time = time.perf_counter()
    start_run(path)
    max_delay = 3 * (time.perf_counter() - start_time)  # about six saves
    latest_step = 2

    def work(report_fd: int) -> int:
        with RunDirectory(path).lock() as run:
            checkpoint = run.latest_checkpoint()
            assert checkpoint is not None
            run.truncate_log(checkpoint.step)
            for step in range(checkpoint.step + 1, checkpoint.step + 1000):
                save(run, step)
                os.write(report_fd, f"{step}\n".encode())
        return 0

    rounds = 0
    while rounds < 30 or latest_step <= 10:  # a slow disk needs more rounds, and longer ones
        rounds += 1
        process = ForkedProcess(work)
        process.start()
        time.sleep(rng.uniform(0.0, max_delay * (1 + rounds // 30)))
        os.kill(process.pid, signal.SIGKILL)
        exit_code, report = process.wait()
        assert exit_code == -signal.SIGKILL
        reported_steps = [int(step) for step in report.split()]
        latest_step = max([latest_step, *reported_steps])
        latest_step = check_run(path, {latest_step, latest_step + 1})
    with RunDirectory(path).lock() as run:
        run.truncate_log(latest_step)
        assert run.read_log()[-1]["step"] == latest_step


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mount = subprocess.run(command, capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("no permission to mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class BlindDisk(Disk):
    """Disk that always reports enough free space."""

    def free(self, folder: Path) -> int:
        return 1 << 40


@pytest.mark.parametrize("disk", [atomic.DISK, BlindDisk()])
def test_a_full_disk_is_reported_and_a_later_save_succeeds(small_disk: Path, disk: Disk) -> None:
    path = small_disk / "run"
    start_run(path)
    (small_disk / "ballast").write_bytes(bytes(900_000))
    large = {"token_embedding.weight": torch.zeros(100_000)}
    with RunDirectory(path, disk=disk).lock() as run:
        with pytest.raises(DiskError, match=r"(?s)free.*needed|needed.*free") as caught:
            run.save_checkpoint(3, large, {}, {})
        assert str(path) in str(caught.value)
        newest = run.latest_checkpoint()
        assert newest is not None
        assert newest.step == 2
        assert not list_temporary(path)
        (small_disk / "ballast").unlink()
        run.save_checkpoint(3, large, {}, {})
        assert run.steps() == [2, 3]


def test_of_many_trainers_one_acquires_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for _ in range(12):
        release_read_fd, release_fd = os.pipe()

        def work(report_fd: int, release_read_fd: int = release_read_fd) -> int:
            try:
                with RunDirectory(path).lock():
                    os.write(report_fd, b"locked")
                    os.read(release_read_fd, 1)  # until all have tried to lock
                    return 0
            except UsageError as error:
                os.write(report_fd, str(error).encode())
                return 2

        processes = [ForkedProcess(work) for _ in range(5)]
        for process in processes:
            process.start()
        reports = [os.read(process.report_fd, 4096).decode() for process in processes]
        os.write(release_fd, b"!" * len(processes))
        exit_codes = [process.wait()[0] for process in processes]
        assert sorted(exit_codes) == [0, 2, 2, 2, 2]
        assert sorted("in use" in report for report in reports) == [False, True, True, True, True]
        assert "locked" in reports
        os.close(release_read_fd)
        os.close(release_fd)
