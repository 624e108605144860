"""Power loss on a modelled disk: unconfirmed writes may vanish, be truncated or be out of order.

Every write of a small run is recorded as a list of disk operations. For every prefix of the list we build many disks
that a power loss at that moment could leave; on each one the run must recover with everything that it promised. Then
each fsync is removed from the list in turn, and the same check must fail.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from regard.checkpoint import atomic
from regard.checkpoint.disk import Disk
from regard.checkpoint.run_dir import RunDirectory
from regard.errors import RegardError

ROOT = 0
STATES_PER_OPERATION = 25


class RecordedFile:
    """File that records its writes."""

    def __init__(self, file: BinaryIO, disk: RecordingDisk, inode: int) -> None:
        self.file = file
        self.disk = disk
        self.inode = inode

    def write(self, data: bytes) -> int:
        self.disk.operations.append(("write", self.inode, bytes(data)))
        return self.file.write(data)

    def __enter__(self) -> RecordedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class RecordingDisk(Disk):
    """Disk that records its operations; files and folders are identified by inode, not by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[tuple[Any, ...]] = []
        self.inodes = {root: ROOT}
        self.count = itertools.count(1)

    def _entry(self, path: Path) -> tuple[int, str]:
        return self.inodes[path.parent], path.name

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self.inodes[path] = next(self.count)
        self.operations.append(("enter", *self._entry(path), self.inodes[path], "folder"))

    def create(self, path: Path) -> BinaryIO:
        self.inodes[path] = next(self.count)
        self.operations.append(("enter", *self._entry(path), self.inodes[path], "file"))
        return RecordedFile(super().create(path), self, self.inodes[path])  # type: ignore[return-value]

    def append(self, path: Path) -> BinaryIO:
        if path not in self.inodes:
            return self.create(path)
        return RecordedFile(super().append(path), self, self.inodes[path])  # type: ignore[return-value]

    def sync(self, file: BinaryIO) -> None:
        self.operations.append(("sync", file.inode))  # type: ignore[attr-defined]
        file.file.flush()  # type: ignore[attr-defined]

    def sync_folder(self, path: Path) -> None:
        self.operations.append(("sync", self.inodes[path]))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.operations.append(("rename", *self._entry(old), new.name))
        assert old.parent == new.parent, "a rename across folders is not atomic on every disk"
        for path in [path for path in self.inodes if path == new or new in path.parents]:
            del self.inodes[path]
        for path in [path for path in self.inodes if path == old or old in path.parents]:
            self.inodes[new / path.relative_to(old)] = self.inodes.pop(path)

    def link(self, old: Path, new: Path) -> None:
        super().link(old, new)
        self.inodes[new] = self.inodes[old]
        self.operations.append(("enter", *self._entry(new), self.inodes[new], "again"))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.operations.append(("leave", *self._entry(path)))
        del self.inodes[path]

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)
        self.operations.append(("leave", *self._entry(path)))
        del self.inodes[path]


@dataclass
class Folder:
    """Folder on the modelled disk: confirmed entries, and operations since."""

    durable: dict[str, int] = field(default_factory=dict)
    pending: list[tuple[Any, ...]] = field(default_factory=list)

    def after(self, operations: list[tuple[Any, ...]]) -> dict[str, int]:
        entries = dict(self.durable)
        for action, *arguments in operations:
            if action == "enter":
                name, inode = arguments
                entries[name] = inode
            elif action == "leave":
                entries.pop(arguments[0], None)
            else:
                old, new, inode = arguments
                if entries.get(old) == inode:
                    del entries[old]
                entries[new] = inode
        return entries


@dataclass
class File:
    """File on the modelled disk: its bytes, and the number of confirmed ones."""

    data: bytearray = field(default_factory=bytearray)
    confirmed: int = 0


class ModelledDisk:
    """State of the disk after a prefix of the operations."""

    def __init__(self) -> None:
        self.inodes: dict[int, Folder | File] = {ROOT: Folder()}

    def do(self, operation: tuple[Any, ...]) -> None:
        action, *arguments = operation
        if action == "enter":
            parent, name, inode, kind = arguments
            if kind != "again":
                self.inodes[inode] = Folder() if kind == "folder" else File()
            self.folder(parent).pending.append(("enter", name, inode))
        elif action == "leave":
            self.folder(arguments[0]).pending.append(("leave", arguments[1]))
        elif action == "rename":
            folder = self.folder(arguments[0])
            folder.pending.append(("rename", arguments[1], arguments[2], folder.after(folder.pending)[arguments[1]]))
        elif action == "write":
            self.file(arguments[0]).data += arguments[1]
        elif action == "sync":
            inode = self.inodes[arguments[0]]
            if isinstance(inode, Folder):
                inode.durable = inode.after(inode.pending)
                inode.pending = []
            else:
                inode.confirmed = len(inode.data)

    def folder(self, inode: int) -> Folder:
        entry = self.inodes[inode]
        assert isinstance(entry, Folder)
        return entry

    def file(self, inode: int) -> File:
        entry = self.inodes[inode]
        assert isinstance(entry, File)
        return entry

    def crash(self, rng: random.Random, survival: float) -> dict[str, bytes | None]:
        """One disk that a power loss could leave: path → content, None for a folder."""
        contents: dict[int, bytes] = {}
        disk: dict[str, bytes | None] = {}

        def content(inode: int) -> bytes:
            if inode not in contents:
                file = self.file(inode)
                data = bytes(file.data[: file.confirmed])
                rest = bytes(file.data[file.confirmed :])
                if rest and rng.random() >= survival:
                    cut = rng.randrange(len(rest))
                    rest = rest[:cut] if rng.random() < 0.7 else rest[:cut] + bytes(len(rest) - cut)
                contents[inode] = data + rest
            return contents[inode]

        def walk(inode: int, path: str) -> None:
            folder = self.folder(inode)
            entries = folder.after([operation for operation in folder.pending if rng.random() < survival])
            for name, inner in entries.items():
                below = f"{path}/{name}".lstrip("/")
                if isinstance(self.inodes[inner], Folder):
                    disk[below] = None
                    walk(inner, below)
                else:
                    disk[below] = content(inner)

        walk(ROOT, "")
        return disk


class QuietDisk(Disk):
    """The real disk without syncs, for reading what survived."""

    def sync(self, file: BinaryIO) -> None: ...

    def sync_folder(self, path: Path) -> None: ...


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"token_embedding.weight": torch.full((3, 2), float(step)), "output_bias": torch.arange(5) * float(step)}


def report(step: int) -> dict[str, float]:
    return {"step": step, "loss": step / 7}


def published_set(version: int) -> dict[str, atomic.Content]:
    extra_files = {"target_tokenizer.json": b"t"} if version == 1 else {}
    return {"config.json": b"config %d" % version, "model.safetensors": b"weights %d" % version * 9, **extra_files}


def small_run(root: Path) -> RecordingDisk:
    """Record a run that saves, logs, publishes and resumes, with its calls and promises."""
    disk = RecordingDisk(root)

    def call(name: str, function: Callable[..., object], *arguments: object, promise: int = 0, **named: object) -> None:
        disk.operations.append(("call", name))
        function(*arguments, **named)
        if promise:
            disk.operations.append(("promise", name, promise))

    run = RunDirectory(root / "run", disk=disk)
    call("lock", run.lock)
    for step in range(1, 8):
        call("write_run", run.write_run, {"revision": step}, promise=step)
        if step == 5:  # an interrupted run resumes: its log beyond the last checkpoint is truncated
            call("append_log", run.append_log, {"step": 5, "loss": "lost"})
            call("truncate_log", run.truncate_log, 4)
        if step > 1:  # the log starts after the first checkpoint
            call("append_log", run.append_log, report(step))
        checkpoint = (step, weights(step), weights(-step), {"position": [1, step]})
        call("save_checkpoint", run.save_checkpoint, *checkpoint, promise=step)
        if step in (2, 4, 6):
            call("publish", atomic.publish, root / "run", published_set(step // 2), disk=disk, promise=step // 2)
    run.release()
    return disk


State = tuple[dict[str, int], dict[str, bytes | None]]


def iterate_states(operations: list[tuple[Any, ...]], per_operation: int, start: int) -> Iterator[State]:
    """Yield the promises so far and disks after a power loss, for every prefix of more than `start` operations."""
    model = ModelledDisk()
    promised: dict[str, int] = {}
    for index, operation in enumerate(operations):
        if operation[0] == "promise":
            promised[operation[1]] = operation[2]
        elif operation[0] != "call":
            model.do(operation)
        for attempt in range(per_operation if index >= start else 0):
            rng = random.Random(f"{index} {attempt}")
            yield dict(promised), model.crash(rng, (0.0, 1.0, 0.5, 0.8, 0.2)[attempt % 5])


def lay_out(disk: dict[str, bytes | None], root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, data in disk.items():
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)


def check(promised: dict[str, int], root: Path) -> None:
    """Assert that a run recovers from a disk with everything that it promised."""
    messages: list[str] = []
    with RunDirectory(root / "run", notify=messages.append, disk=QuietDisk()).lock() as run:
        latest = run.latest_checkpoint()
        step = latest.step if latest else 0
        assert step >= promised.get("save_checkpoint", 0)
        if latest:
            assert all(torch.equal(tensor, latest.weights[name]) for name, tensor in weights(step).items())
            assert all(torch.equal(tensor, latest.optimizer[name]) for name, tensor in weights(-step).items())
            assert latest.counters == {"position": [1, step]}
        assert run.read_run().get("revision", 0) >= promised.get("write_run", 0)
        run.truncate_log(step)
        assert run.read_log() == [report(logged) for logged in range(2, step + 1)]
        assert not messages, messages
        folder = atomic.published_path(root / "run")
        if "publish" in promised or (folder / atomic.MANIFEST).exists():
            assert set(atomic.verify_folder(folder)) in (set(published_set(1)), set(published_set(2)))
            version = int((folder / "config.json").read_bytes()[-1:])
            assert version >= promised.get("publish", 0)
            assert all((folder / name).read_bytes() == data for name, data in published_set(version).items())
            assert set(published_set(version)) <= {path.name for path in folder.iterdir()}
        run.save_checkpoint(step + 1, weights(step + 1), {}, {})
        assert len(run.steps()) <= 3
        assert not [
            path for path in (root / "run").rglob("*") if atomic.is_temporary(path) or path.name == atomic.STAGING
        ]


def iterate_failures(
    operations: list[tuple[Any, ...]], root: Path, per_operation: int, start: int = 0
) -> Iterator[bool]:
    """Yield for each distinct disk whether something is lost on it."""
    visited: set[str] = set()
    for promised, disk in iterate_states(operations, per_operation, start):
        readable = {path: data.hex() if data else data is None for path, data in sorted(disk.items())}
        key = json.dumps([promised, readable])
        digest = hashlib.sha256(key.encode()).hexdigest()
        if digest in visited:
            continue
        visited.add(digest)
        lay_out(disk, root)
        try:
            check(promised, root)
            yield False
        except (AssertionError, RegardError):
            yield True


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return small_run(tmp_path_factory.mktemp("recorded")).operations


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """Folder for the disks, in memory where the system has such a file system."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder) / "disk"


def test_no_power_loss_loses_what_a_call_promised(operations: list[tuple[Any, ...]], room: Path) -> None:
    lost = list(iterate_failures(operations, room, STATES_PER_OPERATION))
    assert not any(lost)
    assert len(operations) * STATES_PER_OPERATION >= 5000
    assert len(lost) >= 1000  # distinct ones


def find_syncs(operations: list[tuple[Any, ...]]) -> dict[tuple[str, str, int], list[int]]:
    """Indices of each fsync in the operations, by call, synced path and its count within the call."""
    names: dict[int, str] = {ROOT: ""}
    kinds: dict[tuple[str, str, int], list[int]] = {}
    call = ""
    count: dict[str, int] = {}
    for index, operation in enumerate(operations):
        if operation[0] == "call":
            call = operation[1]
            count = {}
        elif operation[0] == "enter":
            names[operation[3]] = f"{names[operation[1]]}/{operation[2]}"
        elif operation[0] == "sync":
            name = re.sub(r"[.]tmp-[^/]*|\d", "", names[operation[1]])
            count[name] = count.get(name, 0) + 1
            kinds.setdefault((call, name, count[name]), []).append(index)
    return kinds


def test_each_fsync_is_needed(operations: list[tuple[Any, ...]], room: Path) -> None:
    kinds = find_syncs(operations)
    assert len(kinds) >= 20
    unneeded = []
    for kind, indices in kinds.items():
        without = [operation for index, operation in enumerate(operations) if index not in indices]
        if not any(iterate_failures(without, room, 10, start=indices[0])):
            unneeded.append(kind)
    assert not unneeded
