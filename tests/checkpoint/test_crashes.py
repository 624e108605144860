"""Saves in real processes that are killed or run out of disk, at every system call and at random moments."""

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
    """Create a run with two checkpoints, so that the next save removes one."""
    with RunDirectory(path).lock() as run:
        save(run, 1)
        save(run, 2)


def check(path: Path, allowed: set[int]) -> int:
    """Latest step of a run, after checking that it is allowed and intact and that no temporary files are left."""
    messages: list[str] = []
    with RunDirectory(path, notify=messages.append).lock() as run:
        newest = run.latest_checkpoint()
        assert newest is not None
        assert newest.step in allowed
        assert torch.equal(newest.weights["token_embedding.weight"], weights(newest.step)["token_embedding.weight"])
        assert not messages
        assert len(run.steps()) >= 2
        assert not [inner for inner in path.rglob("*") if atomic.is_temporary(inner)]
        return newest.step


class Child:
    """Forked process that waits for a signal before it starts its work."""

    def __init__(self, work: Callable[[int], int]) -> None:
        ready, self._go = os.pipe()
        self.output_fd, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            with contextlib.suppress(BaseException):
                os.close(self._go)
                os.read(ready, 1)
                code = work(write_end)
            os._exit(code)
        os.close(ready)
        os.close(write_end)

    def go(self) -> None:
        os.write(self._go, b"!")

    def wait(self) -> tuple[int, str]:
        """Exit code (negative: the signal that ended it) and the text that the process wrote."""
        _, status = os.waitpid(self.pid, 0)
        text = b"".join(iter(lambda: os.read(self.output_fd, 65536), b"")).decode()
        os.close(self._go)
        os.close(self.output_fd)
        return os.waitstatus_to_exitcode(status), text


def save_step_3(path: Path) -> Callable[[int], int]:
    """Work that saves step 3, and step 4 if the disk was full."""

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


def run_traced(path: Path, *options: str, record: Path | None = None) -> tuple[int, str]:
    """Run the saving process under strace; return exit code and text."""
    assert STRACE
    child = Child(save_step_3(path))
    trace = ["-e", f"trace={','.join(SYSTEM_CALLS)}", "-o", str(record or os.devnull), *options]
    tracer = subprocess.Popen([STRACE, *trace, "-p", str(child.pid)], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr
    line = tracer.stderr.readline()
    if "attached" not in line:
        child.go()
        child.wait()
        tracer.wait()
        pytest.skip(f"strace cannot attach to a process: {line.strip()}")
    child.go()
    result = child.wait()
    tracer.wait()
    tracer.stderr.close()
    return result


@pytest.fixture
def calls(tmp_path: Path) -> dict[str, int]:
    """Number of each system call in one save."""
    if not STRACE:
        pytest.skip("strace is not installed")
    start_run(tmp_path / "counted")
    code, _ = run_traced(tmp_path / "counted", record=tmp_path / "trace")
    assert code == 0
    names = re.findall(r"^(?:\d+ +)?(\w+)\(", (tmp_path / "trace").read_text(), re.MULTILINE)
    return {name: names.count(name) for name in SYSTEM_CALLS}


def iterate_calls(calls: dict[str, int], names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    return ((name, index) for name in names for index in range(1, calls[name] + 1))


def test_killed_at_every_system_call(calls: dict[str, int], tmp_path: Path) -> None:
    assert sum(calls.values()) >= 30, calls
    for name, index in iterate_calls(calls, SYSTEM_CALLS):
        path = tmp_path / f"{name}-{index}"
        start_run(path)
        code, _ = run_traced(path, "-e", f"inject={name}:signal=KILL:when={index}")
        assert code == -signal.SIGKILL
        check(path, {2, 3})


def test_disk_full_at_every_system_call(calls: dict[str, int], tmp_path: Path) -> None:
    for name, index in iterate_calls(calls, ("mkdir", "write", "fsync", "rename")):
        path = tmp_path / f"{name}-{index}"
        start_run(path)
        code, text = run_traced(path, "-e", f"inject={name}:error=ENOSPC:when={index}")
        if code == 0:  # not a call of the save itself, but of the record in the lock
            check(path, {3})
            continue
        assert (code, text[:1] != "") == (7, True), (name, index, text)
        assert all(word in text for word in ("free", "needed", str(path))), text
        check(path, {4})


def test_killed_at_random_moments(tmp_path: Path) -> None:
    path = tmp_path / "run"
    rng = random.Random(7)
    start_time = time.perf_counter()
    start_run(path)
    max_delay = 3 * (time.perf_counter() - start_time)  # about six saves
    promised = 2

    def work(report_fd: int) -> int:
        with RunDirectory(path).lock() as run:
            newest = run.latest_checkpoint()
            assert newest is not None
            run.truncate_log(newest.step)
            for step in range(newest.step + 1, newest.step + 1000):
                save(run, step)
                os.write(report_fd, f"{step}\n".encode())
        return 0

    rounds = 0
    while rounds < 30 or promised <= 10:  # a slow disk needs more rounds, and longer ones
        rounds += 1
        child = Child(work)
        child.go()
        time.sleep(rng.uniform(0.0, max_delay * (1 + rounds // 30)))
        os.kill(child.pid, signal.SIGKILL)
        code, text = child.wait()
        assert code == -signal.SIGKILL
        promised = max([promised, *map(int, text.split())])
        promised = check(path, {promised, promised + 1})
    with RunDirectory(path).lock() as run:
        run.truncate_log(promised)
        assert [line["step"] for line in run.read_log()][-1] == promised


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no permission to mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class BlindDisk(Disk):
    """Disk that always reports enough free space."""

    def free(self, folder: Path) -> int:
        return 1 << 40


@pytest.mark.parametrize("disk", [atomic.DISK, BlindDisk()])
def test_full_disk(small_disk: Path, disk: Disk) -> None:
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
        assert not [inner for inner in path.rglob("*") if atomic.is_temporary(inner)]
        (small_disk / "ballast").unlink()
        run.save_checkpoint(3, large, {}, {})
        assert run.steps() == [2, 3]


def test_of_many_trainers_one_acquires_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for _ in range(12):
        release_fd, wake_fd = os.pipe()

        def work(report_fd: int, release_fd: int = release_fd) -> int:
            try:
                with RunDirectory(path).lock():
                    os.write(report_fd, b"won")
                    os.read(release_fd, 1)  # until all have tried to lock
                    return 0
            except UsageError as error:
                os.write(report_fd, str(error).encode())
                return 2

        children = [Child(work) for _ in range(5)]
        for child in children:
            child.go()
        texts = [os.read(child.output_fd, 4096).decode() for child in children]
        os.write(wake_fd, b"!" * len(children))
        assert sorted(child.wait()[0] for child in children) == [0, 2, 2, 2, 2]
        assert sorted("in use" in text for text in texts) == [False, True, True, True, True]
        assert "won" in texts
        os.close(release_fd)
        os.close(wake_fd)
