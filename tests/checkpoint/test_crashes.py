"""Saves that are killed or run out of disk, at every system call and at random moments, in real processes."""

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
WRITING = ("openat", "mkdir", "write", "fsync", "rename", "unlink", "rmdir")


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"words.weight": torch.full((31, 7), float(step))}


def save(run: RunDirectory, step: int) -> None:
    run.append_log({"step": step})
    run.save_checkpoint(step, weights(step), weights(-step), {"step": step})


def begun(path: Path) -> None:
    """Make a run with two checkpoints, so that the next save removes one."""
    with RunDirectory(path).lock() as run:
        save(run, 1)
        save(run, 2)


def check(path: Path, allowed: set[int]) -> int:
    """Return the run's newest step after checking that it is one of those allowed, whole, and nothing else is left."""
    told: list[str] = []
    with RunDirectory(path, notify=told.append).lock() as run:
        newest = run.latest_checkpoint()
        assert newest is not None
        assert newest.step in allowed
        assert torch.equal(newest.weights["words.weight"], weights(newest.step)["words.weight"])
        assert not told
        assert len(run.steps()) >= 2
        assert not [inner for inner in path.rglob("*") if atomic.is_temporary(inner)]
        return newest.step


class Child:
    """A forked process that waits for a word before it does something."""

    def __init__(self, work: Callable[[int], int]) -> None:
        ready, self._go = os.pipe()
        self.said, says = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            with contextlib.suppress(BaseException):
                os.close(self._go)
                os.read(ready, 1)
                code = work(says)
            os._exit(code)
        os.close(ready)
        os.close(says)

    def go(self) -> None:
        os.write(self._go, b"!")

    def ended(self) -> tuple[int, str]:
        """Return the exit code (negative: the signal that ended it) and what it said."""
        _, status = os.waitpid(self.pid, 0)
        said = b"".join(iter(lambda: os.read(self.said, 65536), b"")).decode()
        os.close(self._go)
        os.close(self.said)
        return os.waitstatus_to_exitcode(status), said


def saving(path: Path) -> Callable[[int], int]:
    """Return work that saves step 3, and once more if the disk was full."""

    def work(says: int) -> int:
        with RunDirectory(path).lock() as run:
            try:
                save(run, 3)
            except DiskError as error:
                os.write(says, str(error).encode())
                save(run, 4)
                return 7
        return 0

    return work


def traced(path: Path, *options: str, record: Path | None = None) -> tuple[int, str]:
    """Run the saving process under strace and return how it ended."""
    assert STRACE
    child = Child(saving(path))
    trace = ["-e", f"trace={','.join(WRITING)}", "-o", str(record or os.devnull), *options]
    tracer = subprocess.Popen([STRACE, *trace, "-p", str(child.pid)], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr
    line = tracer.stderr.readline()
    if "attached" not in line:
        child.go()
        child.ended()
        tracer.wait()
        pytest.skip(f"strace cannot attach to a process here: {line.strip()}")
    child.go()
    result = child.ended()
    tracer.wait()
    tracer.stderr.close()
    return result


@pytest.fixture
def calls(tmp_path: Path) -> dict[str, int]:
    """How often a save makes each system call."""
    if not STRACE:
        pytest.skip("strace is not installed")
    begun(tmp_path / "counted")
    code, _ = traced(tmp_path / "counted", record=tmp_path / "trace")
    assert code == 0
    found = re.findall(r"^(?:\d+ +)?(\w+)\(", (tmp_path / "trace").read_text(), re.MULTILINE)
    return {name: found.count(name) for name in WRITING}


def places(calls: dict[str, int], names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    return ((name, number) for name in names for number in range(1, calls[name] + 1))


def test_killed_at_every_system_call(calls: dict[str, int], tmp_path: Path) -> None:
    assert sum(calls.values()) >= 30, calls
    for name, number in places(calls, WRITING):
        path = tmp_path / f"{name}-{number}"
        begun(path)
        code, _ = traced(path, "-e", f"inject={name}:signal=KILL:when={number}")
        assert code == -signal.SIGKILL
        check(path, {2, 3})


def test_disk_full_at_every_system_call(calls: dict[str, int], tmp_path: Path) -> None:
    for name, number in places(calls, ("mkdir", "write", "fsync", "rename")):
        path = tmp_path / f"{name}-{number}"
        begun(path)
        code, said = traced(path, "-e", f"inject={name}:error=ENOSPC:when={number}")
        if code == 0:  # not a call of the save itself: the record in the lock
            check(path, {3})
            continue
        assert (code, said[:1] != "") == (7, True), (name, number, said)
        assert all(word in said for word in ("free", "needed", str(path))), said
        check(path, {4})


def test_killed_at_random_moments(tmp_path: Path) -> None:
    path, chance = tmp_path / "run", random.Random(7)
    began = time.perf_counter()
    begun(path)
    span = 3 * (time.perf_counter() - began)  # of about six saves
    promised = 2

    def work(says: int) -> int:
        with RunDirectory(path).lock() as run:
            newest = run.latest_checkpoint()
            assert newest is not None
            run.truncate_log(newest.step)
            for step in range(newest.step + 1, newest.step + 1000):
                save(run, step)
                os.write(says, f"{step}\n".encode())
        return 0

    rounds = 0
    while rounds < 30 or promised <= 10:  # a slow disk needs more rounds, and longer ones
        rounds += 1
        child = Child(work)
        child.go()
        time.sleep(chance.uniform(0.0, span * (1 + rounds // 30)))
        os.kill(child.pid, signal.SIGKILL)
        code, said = child.ended()
        assert code == -signal.SIGKILL
        promised = max([promised, *map(int, said.split())])
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
        pytest.skip("no right to mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class Blind(Disk):
    """A disk that does not know how full it is."""

    def free(self, folder: Path) -> int:
        return 1 << 40


@pytest.mark.parametrize("disk", [atomic.DISK, Blind()])
def test_full_disk(small_disk: Path, disk: Disk) -> None:
    path = small_disk / "run"
    begun(path)
    (small_disk / "ballast").write_bytes(bytes(900_000))
    large = {"words.weight": torch.zeros(100_000)}
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


def test_of_many_trainers_one_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for _ in range(12):
        held, done = os.pipe()

        def work(says: int, held: int = held) -> int:
            try:
                with RunDirectory(path).lock():
                    os.write(says, b"won")
                    os.read(held, 1)  # until all have tried
                    return 0
            except UsageError as error:
                os.write(says, str(error).encode())
                return 2

        children = [Child(work) for _ in range(5)]
        for child in children:
            child.go()
        said = [os.read(child.said, 4096).decode() for child in children]
        os.write(done, b"!" * len(children))
        assert sorted(child.ended()[0] for child in children) == [0, 2, 2, 2, 2]
        assert sorted("in use" in words for words in said) == [False, True, True, True, True]
        assert "won" in said
        os.close(held)
        os.close(done)
