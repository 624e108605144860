"""Power loss on a modelled disk: what was not confirmed may vanish, be cut short or be out of order.

Every write of a small run is recorded as a list of disk operations. For every prefix of the list many disks are made
that a power loss at that moment could leave; on each one the run must come back with all that it had promised. Then
each kind of fsync is taken out of the list in turn, and the same check must fail.
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
STATES_PER_PLACE = 25


class Written:
    """A file being written, whose writes are recorded."""

    def __init__(self, file: BinaryIO, disk: Recording, inode: int) -> None:
        self.file, self.disk, self.inode = file, disk, inode

    def write(self, data: bytes) -> int:
        self.disk.operations.append(("write", self.inode, bytes(data)))
        return self.file.write(data)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class Recording(Disk):
    """A disk that does what it is told and records it; files and folders are told apart by number, not by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[tuple[Any, ...]] = []
        self.inodes = {root: ROOT}
        self.count = itertools.count(1)

    def _place(self, path: Path) -> tuple[int, str]:
        return self.inodes[path.parent], path.name

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self.inodes[path] = next(self.count)
        self.operations.append(("enter", *self._place(path), self.inodes[path], "folder"))

    def create(self, path: Path) -> BinaryIO:
        self.inodes[path] = next(self.count)
        self.operations.append(("enter", *self._place(path), self.inodes[path], "file"))
        return Written(super().create(path), self, self.inodes[path])  # type: ignore[return-value]

    def append(self, path: Path) -> BinaryIO:
        if path not in self.inodes:
            return self.create(path)
        return Written(super().append(path), self, self.inodes[path])  # type: ignore[return-value]

    def sync(self, file: BinaryIO) -> None:
        self.operations.append(("sync", file.inode))  # type: ignore[attr-defined]
        file.file.flush()  # type: ignore[attr-defined]

    def sync_folder(self, path: Path) -> None:
        self.operations.append(("sync", self.inodes[path]))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.operations.append(("rename", *self._place(old), new.name))
        assert old.parent == new.parent, "a rename across folders is not atomic on every disk"
        for path in [path for path in self.inodes if path == new or new in path.parents]:
            del self.inodes[path]
        for path in [path for path in self.inodes if path == old or old in path.parents]:
            self.inodes[new / path.relative_to(old)] = self.inodes.pop(path)

    def link(self, old: Path, new: Path) -> None:
        super().link(old, new)
        self.inodes[new] = self.inodes[old]
        self.operations.append(("enter", *self._place(new), self.inodes[new], "again"))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.operations.append(("leave", *self._place(path)))
        del self.inodes[path]

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)
        self.operations.append(("leave", *self._place(path)))
        del self.inodes[path]


@dataclass
class Folder:
    """A folder on the modelled disk: what is confirmed, and what was done since."""

    durable: dict[str, int] = field(default_factory=dict)
    pending: list[tuple[Any, ...]] = field(default_factory=list)

    def after(self, chosen: list[tuple[Any, ...]]) -> dict[str, int]:
        entries = dict(self.durable)
        for what, *rest in chosen:
            if what == "enter":
                name, inode = rest
                entries[name] = inode
            elif what == "leave":
                entries.pop(rest[0], None)
            else:
                old, new, inode = rest
                if entries.get(old) == inode:
                    del entries[old]
                entries[new] = inode
        return entries


@dataclass
class File:
    """A file on the modelled disk: its bytes, and how many of them are confirmed."""

    data: bytearray = field(default_factory=bytearray)
    confirmed: int = 0


class Model:
    """The disk after some operations."""

    def __init__(self) -> None:
        self.inodes: dict[int, Folder | File] = {ROOT: Folder()}

    def do(self, operation: tuple[Any, ...]) -> None:
        what, *rest = operation
        if what == "enter":
            parent, name, inode, kind = rest
            if kind != "again":
                self.inodes[inode] = Folder() if kind == "folder" else File()
            self.folder(parent).pending.append(("enter", name, inode))
        elif what == "leave":
            self.folder(rest[0]).pending.append(("leave", rest[1]))
        elif what == "rename":
            folder = self.folder(rest[0])
            folder.pending.append(("rename", rest[1], rest[2], folder.after(folder.pending)[rest[1]]))
        elif what == "write":
            self.file(rest[0]).data += rest[1]
        elif what == "sync":
            inode = self.inodes[rest[0]]
            if isinstance(inode, Folder):
                inode.durable, inode.pending = inode.after(inode.pending), []
            else:
                inode.confirmed = len(inode.data)

    def folder(self, inode: int) -> Folder:
        found = self.inodes[inode]
        assert isinstance(found, Folder)
        return found

    def file(self, inode: int) -> File:
        found = self.inodes[inode]
        assert isinstance(found, File)
        return found

    def crash(self, chance: random.Random, survival: float) -> dict[str, bytes | None]:
        """Return one disk that a power loss could leave: path → content, None for a folder."""
        kept: dict[int, bytes] = {}
        disk: dict[str, bytes | None] = {}

        def content(inode: int) -> bytes:
            if inode not in kept:
                file = self.file(inode)
                data, rest = bytes(file.data[: file.confirmed]), bytes(file.data[file.confirmed :])
                if rest and chance.random() >= survival:
                    cut = chance.randrange(len(rest))
                    rest = rest[:cut] if chance.random() < 0.7 else rest[:cut] + bytes(len(rest) - cut)
                kept[inode] = data + rest
            return kept[inode]

        def walk(inode: int, path: str) -> None:
            folder = self.folder(inode)
            entries = folder.after([one for one in folder.pending if chance.random() < survival])
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
    """The real disk without the waiting, to look at what came back."""

    def sync(self, file: BinaryIO) -> None: ...

    def sync_folder(self, path: Path) -> None: ...


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"words.weight": torch.full((3, 2), float(step)), "output_bias": torch.arange(5) * float(step)}


def report(step: int) -> dict[str, float]:
    return {"step": step, "loss": step / 7}


def published_set(number: int) -> dict[str, atomic.Content]:
    others = {"target_tokenizer.json": b"t"} if number == 1 else {}
    return {"config.json": b"config %d" % number, "model.safetensors": b"weights %d" % number * 9, **others}


def small_run(root: Path) -> Recording:
    """Record a run that saves, logs, publishes and is continued, with its calls and promises."""
    disk = Recording(root)

    def call(name: str, function: Callable[..., object], *arguments: object, promise: int = 0, **named: object) -> None:
        disk.operations.append(("call", name))
        function(*arguments, **named)
        if promise:
            disk.operations.append(("promise", name, promise))

    run = RunDirectory(root / "run", disk=disk)
    call("lock", run.lock)
    for step in range(1, 8):
        call("write_run", run.write_run, {"version": step}, promise=step)
        if step == 5:  # an interrupted run goes on: what it logged beyond its last save is cut off
            call("append_log", run.append_log, {"step": 5, "loss": "lost"})
            call("truncate_log", run.truncate_log, 4)
        if step > 1:  # the log begins when there is a checkpoint already
            call("append_log", run.append_log, report(step))
        saved = (step, weights(step), weights(-step), {"position": [1, step]})
        call("save_checkpoint", run.save_checkpoint, *saved, promise=step)
        if step in (2, 4, 6):
            call("publish", atomic.publish, root / "run", published_set(step // 2), disk=disk, promise=step // 2)
    run.release()
    return disk


State = tuple[dict[str, int], dict[str, bytes | None]]


def states(operations: list[tuple[Any, ...]], per_place: int, begin: int) -> Iterator[State]:
    """Yield what was promised so far and a disk after a power loss, for every prefix of the operations from one on."""
    model, promised = Model(), dict[str, int]()
    for place, operation in enumerate(operations):
        if operation[0] == "promise":
            promised[operation[1]] = operation[2]
        elif operation[0] != "call":
            model.do(operation)
        for number in range(per_place if place >= begin else 0):
            chance = random.Random(f"{place} {number}")
            yield dict(promised), model.crash(chance, (0.0, 1.0, 0.5, 0.8, 0.2)[number % 5])


def lay_out(disk: dict[str, bytes | None], root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, data in disk.items():
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)


def check(promised: dict[str, int], root: Path) -> None:
    """Assert that a run comes back from a disk with all that it promised."""
    told: list[str] = []
    with RunDirectory(root / "run", notify=told.append, disk=QuietDisk()).lock() as run:
        newest = run.latest_checkpoint()
        step = newest.step if newest else 0
        assert step >= promised.get("save_checkpoint", 0)
        if newest:
            assert all(torch.equal(tensor, newest.weights[name]) for name, tensor in weights(step).items())
            assert all(torch.equal(tensor, newest.optimizer[name]) for name, tensor in weights(-step).items())
            assert newest.counters == {"position": [1, step]}
        assert run.read_run().get("version", 0) >= promised.get("write_run", 0)
        run.truncate_log(step)
        assert run.read_log() == [report(logged) for logged in range(2, step + 1)]
        assert not told, told
        folder = atomic.published_path(root / "run")
        if "publish" in promised or (folder / atomic.MANIFEST).exists():
            assert set(atomic.verify_folder(folder)) in (set(published_set(1)), set(published_set(2)))
            number = int((folder / "config.json").read_bytes()[-1:])
            assert number >= promised.get("publish", 0)
            assert all((folder / name).read_bytes() == data for name, data in published_set(number).items())
            assert set(published_set(number)) <= {path.name for path in folder.iterdir()}
        run.save_checkpoint(step + 1, weights(step + 1), {}, {})
        assert len(run.steps()) <= 3
        assert not [
            path for path in (root / "run").rglob("*") if atomic.is_temporary(path) or path.name == atomic.STAGING
        ]


def failures(operations: list[tuple[Any, ...]], root: Path, per_place: int, begin: int = 0) -> Iterator[bool]:
    """Yield for each different disk whether something is lost on it."""
    seen: set[str] = set()
    for promised, disk in states(operations, per_place, begin):
        told = {path: data.hex() if data else data is None for path, data in sorted(disk.items())}
        key = json.dumps([promised, told])
        digest = hashlib.sha256(key.encode()).hexdigest()
        if digest in seen:
            continue
        seen.add(digest)
        lay_out(disk, root)
        try:
            check(promised, root)
            yield False
        except (AssertionError, RegardError):
            yield True


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return small_run(tmp_path_factory.mktemp("recorded")).operations


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A place for the disks that is quick where the system has one in memory."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder) / "disk"


def test_no_power_loss_loses_what_was_promised(recorded: list[tuple[Any, ...]], room: Path) -> None:
    lost = list(failures(recorded, room, STATES_PER_PLACE))
    assert not any(lost)
    assert len(recorded) * STATES_PER_PLACE >= 5000
    assert len(lost) >= 1000  # different ones


def kinds_of_sync(operations: list[tuple[Any, ...]]) -> dict[tuple[str, str, int], list[int]]:
    """Return where each kind of fsync stands: in which call, of what, the how-many-eth of that in the call."""
    names: dict[int, str] = {ROOT: ""}
    kinds: dict[tuple[str, str, int], list[int]] = {}
    call, count = "", dict[str, int]()
    for place, operation in enumerate(operations):
        if operation[0] == "call":
            call, count = operation[1], {}
        elif operation[0] == "enter":
            names[operation[3]] = f"{names[operation[1]]}/{operation[2]}"
        elif operation[0] == "sync":
            name = re.sub(r"[.]tmp-[^/]*|\d", "", names[operation[1]])
            count[name] = count.get(name, 0) + 1
            kinds.setdefault((call, name, count[name]), []).append(place)
    return kinds


def test_each_fsync_is_needed(recorded: list[tuple[Any, ...]], room: Path) -> None:
    kinds = kinds_of_sync(recorded)
    assert len(kinds) >= 20
    unneeded = []
    for kind, places in kinds.items():
        without = [operation for place, operation in enumerate(recorded) if place not in places]
        if not any(failures(without, room, 10, begin=places[0])):
            unneeded.append(kind)
    assert not unneeded
