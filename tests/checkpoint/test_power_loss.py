"""Power loss on a modelled disk: writes without fsync may vanish, be truncated or be reordered.

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
from regard.checkpoint.tokenizer_files import TARGET_TOKENIZER
from regard.errors import RegardError

Operation = tuple[Any, ...]  # an action and its arguments

ROOT = 0  # inode of the root folder
DISKS_PER_OPERATION = 25
SURVIVAL_RATES = (0.0, 1.0, 0.5, 0.8, 0.2)  # of writes without fsync


class RecordingFile:
    """File that records its writes."""

    def __init__(self, file: BinaryIO, disk: RecordingDisk, inode: int) -> None:
        self.file = file
        self.disk = disk
        self.inode = inode

    def write(self, data: bytes) -> int:
        self.disk.operations.append(("write", self.inode, bytes(data)))
        return self.file.write(data)

    def __enter__(self) -> RecordingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class RecordingDisk(Disk):
    """Disk that records its operations; files and folders are identified by inode, not by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self.inodes = {root: ROOT}
        self.next_inode = itertools.count(1)

    def _entry(self, path: Path) -> tuple[int, str]:
        """Inode of the folder that holds a path, and the path's name in it."""
        return self.inodes[path.parent], path.name

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self.inodes[path] = next(self.next_inode)
        self.operations.append(("enter", *self._entry(path), self.inodes[path], "folder"))

    def create(self, path: Path) -> BinaryIO:
        self.inodes[path] = next(self.next_inode)
        self.operations.append(("enter", *self._entry(path), self.inodes[path], "file"))
        return RecordingFile(super().create(path), self, self.inodes[path])  # type: ignore[return-value]

    def append(self, path: Path) -> BinaryIO:
        if path not in self.inodes:
            return self.create(path)
        return RecordingFile(super().append(path), self, self.inodes[path])  # type: ignore[return-value]

    def sync(self, file: BinaryIO) -> None:
        self.operations.append(("sync", file.inode))  # type: ignore[attr-defined]
        file.file.flush()  # type: ignore[attr-defined]

    def sync_folder(self, path: Path) -> None:
        self.operations.append(("sync", self.inodes[path]))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.operations.append(("rename", *self._entry(old), new.name))
        assert old.parent == new.parent, "a rename across folders is not atomic on every disk"
        replaced = [path for path in self.inodes if path.is_relative_to(new)]
        for path in replaced:
            del self.inodes[path]
        renamed = [path for path in self.inodes if path.is_relative_to(old)]
        for path in renamed:
            self.inodes[new / path.relative_to(old)] = self.inodes.pop(path)

    def link(self, old: Path, new: Path) -> None:
        super().link(old, new)
        self.inodes[new] = self.inodes[old]
        self.operations.append(("enter", *self._entry(new), self.inodes[new], "link"))

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
    """Folder on the modelled disk: durable entries (name → inode), and operations since the last fsync."""

    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Operation] = field(default_factory=list)

    def entries_after(self, operations: list[Operation]) -> dict[str, int]:
        """Entries after some of the pending operations."""
        entries = dict(self.durable)
        for action, *arguments in operations:
            if action == "enter":
                name, inode = arguments
                entries[name] = inode
            elif action == "leave":
                (name,) = arguments
                entries.pop(name, None)
            else:
                old, new, inode = arguments
                if entries.get(old) == inode:
                    del entries[old]
                entries[new] = inode
        return entries


@dataclass
class File:
    """File on the modelled disk: its bytes, and how many of them are durable."""

    data: bytearray = field(default_factory=bytearray)
    num_durable: int = 0


class ModelledDisk:
    """State of the disk after a prefix of the operations."""

    def __init__(self) -> None:
        self.inodes: dict[int, Folder | File] = {ROOT: Folder()}

    def apply(self, operation: Operation) -> None:
        action, *arguments = operation
        if action == "enter":
            parent, name, inode, kind = arguments
            if kind != "link":
                self.inodes[inode] = Folder() if kind == "folder" else File()
            self.folder(parent).pending.append(("enter", name, inode))
        elif action == "leave":
            parent, name = arguments
            self.folder(parent).pending.append(("leave", name))
        elif action == "rename":
            parent, old, new = arguments
            folder = self.folder(parent)
            inode = folder.entries_after(folder.pending)[old]
            folder.pending.append(("rename", old, new, inode))
        elif action == "write":
            inode, data = arguments
            self.file(inode).data += data
        elif action == "sync":
            (inode,) = arguments
            self.sync(inode)

    def sync(self, inode: int) -> None:
        """Make the data of a file, or the entries of a folder, durable."""
        synced = self.inodes[inode]
        if isinstance(synced, Folder):
            synced.durable = synced.entries_after(synced.pending)
            synced.pending = []
        else:
            synced.num_durable = len(synced.data)

    def folder(self, inode: int) -> Folder:
        folder = self.inodes[inode]
        assert isinstance(folder, Folder)
        return folder

    def file(self, inode: int) -> File:
        file = self.inodes[inode]
        assert isinstance(file, File)
        return file

    def crash(self, rng: random.Random, survival_rate: float) -> dict[str, bytes | None]:
        """Sample a disk that a power loss could leave: path → content, None for a folder."""
        contents: dict[int, bytes] = {}  # by inode: all links to a file have the same content
        disk: dict[str, bytes | None] = {}

        def surviving_content(inode: int) -> bytes:
            if inode not in contents:
                file = self.file(inode)
                durable = bytes(file.data[: file.num_durable])
                pending = bytes(file.data[file.num_durable :])
                if pending and rng.random() >= survival_rate:
                    cut = rng.randrange(len(pending))
                    is_truncated = rng.random() < 0.7
                    padding = b"" if is_truncated else bytes(len(pending) - cut)  # zeros: size written, data lost
                    pending = pending[:cut] + padding
                contents[inode] = durable + pending
            return contents[inode]

        def walk(inode: int, path: str) -> None:
            folder = self.folder(inode)
            surviving = [operation for operation in folder.pending if rng.random() < survival_rate]
            for name, child in folder.entries_after(surviving).items():
                child_path = f"{path}/{name}".lstrip("/")
                if isinstance(self.inodes[child], Folder):
                    disk[child_path] = None
                    walk(child, child_path)
                else:
                    disk[child_path] = surviving_content(child)

        walk(ROOT, "")
        return disk


class DiskWithoutSync(Disk):
    """The real disk without fsync, which a check of surviving files does not need."""

    def sync(self, file: BinaryIO) -> None: ...

    def sync_folder(self, path: Path) -> None: ...


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"token_embedding.weight": torch.full((3, 2), float(step)), "output_bias": torch.arange(5) * float(step)}


def run_state(revision: int) -> dict[str, Any]:
    """Content of run.json, with all of its parts."""
    objects: dict[str, Any] = {name: {} for name in ("config", "data_digests", "files", "resolved", "environment")}
    return {**objects, "unit": "step", "revision": revision}


def log_line(step: int) -> dict[str, float]:
    return {"step": step, "loss": step / 7}


def published_set(version: int) -> dict[str, atomic.Content]:
    """Files of a published model; only the first version has a target tokenizer."""
    extra_files = {TARGET_TOKENIZER: b"t"} if version == 1 else {}
    return {"config.json": b"config %d" % version, "model.safetensors": b"weights %d" % version * 9, **extra_files}


def record_run(root: Path) -> list[Operation]:
    """Disk operations of a run that saves, logs, publishes and resumes, with its calls and promises."""
    disk = RecordingDisk(root)

    def call(function: Callable[..., object], *arguments: object, promise: int = 0, **keywords: object) -> None:
        disk.operations.append(("call", function.__name__))
        function(*arguments, **keywords)
        if promise:
            disk.operations.append(("promise", function.__name__, promise))

    run = RunDirectory(root / "run", disk=disk)
    call(run.lock)
    for step in range(1, 8):
        call(run.write_run, run_state(step), promise=step)
        if step == 5:  # an interrupted run resumes: its log beyond the last checkpoint is truncated
            call(run.append_log, {"step": 5, "loss": "lost"})
            call(run.truncate_log, 4)
        if step > 1:  # the log starts after the first checkpoint
            call(run.append_log, log_line(step))
        call(run.save_checkpoint, step, weights(step), weights(-step), {"position": [1, step]}, promise=step)
        if step in (2, 4, 6):
            version = step // 2
            call(atomic.publish, root / "run", published_set(version), disk=disk, promise=version)
    run.release()
    return disk.operations


@dataclass(frozen=True)
class Crash:
    """A disk after a power loss, with the promises made before it."""

    promised: dict[str, int]  # by name of the call: step or version
    disk: dict[str, bytes | None]  # path → content, None for a folder

    def digest(self) -> str:
        contents = {path: data if data is None else data.hex() for path, data in sorted(self.disk.items())}
        return hashlib.sha256(json.dumps([self.promised, contents]).encode()).hexdigest()


def sample_crashes(operations: list[Operation], per_operation: int, start: int) -> Iterator[Crash]:
    """Sample power losses after every prefix of more than `start` operations."""
    model = ModelledDisk()
    promised: dict[str, int] = {}
    for index, (action, *arguments) in enumerate(operations):
        if action == "promise":
            call, value = arguments
            promised[call] = value
        elif action != "call":
            model.apply((action, *arguments))
        if index < start:
            continue
        for attempt in range(per_operation):
            rng = random.Random(f"{index} {attempt}")
            survival_rate = SURVIVAL_RATES[attempt % len(SURVIVAL_RATES)]
            yield Crash(dict(promised), model.crash(rng, survival_rate))


def write_disk(disk: dict[str, bytes | None], root: Path) -> None:
    """Write a modelled disk to a folder."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, data in disk.items():
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)


def check_recovery(promised: dict[str, int], root: Path) -> None:
    """Assert that a run recovers from a disk with everything that it promised."""
    messages: list[str] = []
    with RunDirectory(root / "run", notify=messages.append, disk=DiskWithoutSync()).lock() as run:
        latest = run.latest_checkpoint()
        step = latest.step if latest else 0
        assert step >= promised.get("save_checkpoint", 0)
        if latest:
            assert all(torch.equal(tensor, latest.weights[name]) for name, tensor in weights(step).items())
            assert all(torch.equal(tensor, latest.optimizer[name]) for name, tensor in weights(-step).items())
            assert latest.counters == {"position": [1, step]}
        assert run.read_run().get("revision", 0) >= promised.get("write_run", 0)
        run.truncate_log(step)
        assert run.read_log() == [log_line(logged) for logged in range(2, step + 1)]
        assert not messages, messages
        folder = atomic.published_path(root / "run")
        if "publish" in promised or (folder / atomic.MANIFEST).exists():
            names = set(atomic.verify_folder(folder))
            version = int((folder / "config.json").read_bytes()[-1:])
            assert version >= promised.get("publish", 0)
            assert names == set(published_set(version))
            assert all((folder / name).read_bytes() == data for name, data in published_set(version).items())
            assert (folder / TARGET_TOKENIZER).exists() == (TARGET_TOKENIZER in names)  # none of an earlier version
        run.save_checkpoint(step + 1, weights(step + 1), {}, {})
        assert len(run.steps()) <= 3
        assert not [path for path in (root / "run").rglob("*") if atomic.is_temporary(path)]
        assert not [path for path in (root / "run").rglob("*") if path.name == atomic.STAGING]


def iterate_losses(operations: list[Operation], root: Path, per_operation: int, start: int = 0) -> Iterator[bool]:
    """Yield for each distinct crash whether a promise is broken after it."""
    digests: set[str] = set()
    for crash in sample_crashes(operations, per_operation, start):
        digest = crash.digest()
        if digest in digests:
            continue
        digests.add(digest)
        write_disk(crash.disk, root)
        try:
            check_recovery(crash.promised, root)
            yield False
        except (AssertionError, RegardError):
            yield True


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> list[Operation]:
    return record_run(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def disk_root(tmp_path: Path) -> Iterator[Path]:
    """Folder for the disks, in memory where the system has such a file system."""
    shared_memory = Path("/dev/shm")
    parent = shared_memory if os.access(shared_memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield Path(folder) / "disk"


def test_no_power_loss_loses_what_a_call_promised(operations: list[Operation], disk_root: Path) -> None:
    losses = list(iterate_losses(operations, disk_root, DISKS_PER_OPERATION))
    assert not any(losses)
    assert len(operations) * DISKS_PER_OPERATION >= 5000
    assert len(losses) >= 1000  # distinct crashes


def find_syncs(operations: list[Operation]) -> dict[tuple[str, str, int], list[int]]:
    """Indices of each fsync in the operations, by call, synced path and its count within the call."""
    paths: dict[int, str] = {ROOT: ""}  # by inode
    syncs: dict[tuple[str, str, int], list[int]] = {}
    call = ""
    counts: dict[str, int] = {}  # within the call, by synced path
    for index, (action, *arguments) in enumerate(operations):
        if action == "call":
            (call,) = arguments
            counts = {}
        elif action == "enter":
            parent, name, inode, _ = arguments
            paths[inode] = f"{paths[parent]}/{name}"
        elif action == "sync":
            (inode,) = arguments
            path = re.sub(r"[.]tmp-[^/]*|\d", "", paths[inode])
            counts[path] = counts.get(path, 0) + 1
            syncs.setdefault((call, path, counts[path]), []).append(index)
    return syncs


def test_each_fsync_is_needed(operations: list[Operation], disk_root: Path) -> None:
    syncs = find_syncs(operations)
    assert len(syncs) >= 20
    unneeded = []
    for sync, indices in syncs.items():
        remaining = [operation for index, operation in enumerate(operations) if index not in indices]
        if not any(iterate_losses(remaining, disk_root, 10, start=indices[0])):
            unneeded.append(sync)
    assert not unneeded
