"""A run as a folder: one trainer at a time, checkpoints that are verified, a log that is cut back on resume.

RUN/                     a model folder in Hugging Face layout (see `model_folder`)
  run.lock               who trains here now
  run.json               the whole configuration, recorded choices, versions, data digests
  log.jsonl              one line a report
  checkpoints/step-N/    model.safetensors  optimizer.safetensors  counters.json  MANIFEST.json
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from filelock import FileLock, Timeout
from torch import Tensor

from regard.checkpoint import atomic, weights
from regard.checkpoint.disk import DISK, Disk, translate_os_errors
from regard.errors import CheckpointError, UsageError

_LOCK = "run.lock"
_STEP = re.compile(r"step-(\d{1,15})")
_WEIGHTS, _OPTIMIZER, _COUNTERS = "model.safetensors", "optimizer.safetensors", "counters.json"


@dataclass(frozen=True)
class Checkpoint:
    """All that training needs to go on from a step."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    counters: dict[str, Any]


class RunDirectory:
    """The folder of a run; whoever writes to it takes its lock first.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder, RunDirectory(Path(folder, "run")).lock() as run:
    ...     run.save_checkpoint(7, {"words.weight": torch.ones(2, 3)}, {}, {"epoch": 1})
    ...     run.latest_checkpoint().counters
    {'epoch': 1}
    """

    def __init__(
        self,
        path: str | Path,
        *,
        notify: Callable[[str], object] = lambda message: None,
        keep: int = 2,
        disk: Disk = DISK,
    ) -> None:
        self.path = Path(path)
        self.notify, self.max_checkpoints, self.disk = notify, max(2, keep), disk
        self._lock = FileLock(self.path / _LOCK, blocking=False, thread_local=False, on_acquired=_write_holder)

    def lock(self) -> Self:
        """Make the folder, take its lock and clear what dead writers left; a second trainer is refused."""
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path} is a file: choose another name for the run's folder")
        atomic.make_folder(self.path, disk=self.disk)
        self._acquire_lock()
        for folder in (self.path, self._checkpoints):
            atomic.recover(folder, disk=self.disk)
        atomic.complete_publish(self.path, disk=self.disk)
        return self

    def release(self) -> None:
        """Release the lock; the system does so too when the process ends, however it ends. The lock file stays."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                os.truncate(self.path / _LOCK, 0)
            self._lock.release(force=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def save_checkpoint(
        self, step: int, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], counters: Mapping[str, Any]
    ) -> None:
        """Write a checkpoint whole, verify it, then remove those beyond the newest few."""
        self._check_locked()
        if self._log.exists():
            atomic.sync_file(self._log, disk=self.disk)
        folder = self._checkpoints / f"step-{step}"
        contents: dict[str, atomic.Content] = {
            _WEIGHTS: weights.serialize_tensors(model),
            _OPTIMIZER: weights.serialize_tensors(optimizer),
            _COUNTERS: atomic.json_bytes(counters),
        }
        atomic.write_folder(
            folder, contents, size=weights.tensor_bytes(model) + weights.tensor_bytes(optimizer), disk=self.disk
        )
        atomic.verify_folder(folder)
        for old in [old for old in self.steps() if old < step][: -(self.max_checkpoints - 1)]:
            atomic.remove_folder_atomically(self._checkpoints / f"step-{old}", disk=self.disk)

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint folder, in order; it is not checked here."""
        names = [path.name for path in self._checkpoints.iterdir()] if self._checkpoints.is_dir() else []
        return sorted(int(found[1]) for found in map(_STEP.fullmatch, names) if found)

    def latest_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint of the highest step that verifies; damaged ones are told of and moved aside."""
        for step in reversed(self.steps()):
            folder = self._checkpoints / f"step-{step}"
            try:
                atomic.verify_folder(folder)
                counters = atomic.read_json(folder / _COUNTERS)
                return Checkpoint(
                    step, weights.read_tensors(folder / _WEIGHTS), weights.read_tensors(folder / _OPTIMIZER), counters
                )
            except CheckpointError as error:
                self.notify(f"{error}; the checkpoint before it is used")
                if self._lock.is_locked:
                    atomic.move_aside(folder, ".bad", disk=self.disk)
        return None

    def append_log(self, record: Mapping[str, Any]) -> None:
        """Add one report to the log; a report of training has a `step`."""
        atomic.append_lines(self._log, [json.dumps(record, ensure_ascii=False)], disk=self.disk)

    def truncate_log(self, step: int) -> None:
        """Cut the log back to its state at a step: from the first report of a later step on, lines go.

        A last line that was only half written goes too.
        """
        self._check_locked()
        if not self._log.exists():
            return
        data = self._log.read_bytes()
        end = 0
        for line in data.splitlines(keepends=True):
            record = _record(line)
            if record is None or record.get("step", 0) > step:
                break
            end += len(line)
        if end < len(data):
            atomic.write_file(self._log, data[:end], disk=self.disk)

    def read_log(self) -> list[dict[str, Any]]:
        """Return the reports of the log; a half-written last line is left out."""
        lines = self._log.read_bytes().splitlines(keepends=True) if self._log.exists() else []
        return [record for record in map(_record, lines) if record is not None]

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Write `run.json`."""
        atomic.write_file(self.path / "run.json", atomic.json_bytes(run), disk=self.disk)

    def read_run(self) -> dict[str, Any]:
        """Return what `run.json` holds; nothing when there is none."""
        path = self.path / "run.json"
        return atomic.read_json(path) if path.exists() else {}

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def _log(self) -> Path:
        return self.path / "log.jsonl"

    def _acquire_lock(self) -> None:
        """Acquire the lock, or raise `UsageError` that names the process holding it."""
        path = self.path / _LOCK
        with translate_os_errors(path, 0, DISK):
            try:
                self._lock.acquire()
            except Timeout:
                raise UsageError(
                    f"{self.path} is in use by another training{_read_holder(path)}: wait for it, stop it, "
                    "or choose another --out"
                ) from None
            except OSError as error:
                if error.filename is not None:  # the file cannot be opened
                    raise
                raise UsageError(f"{path} cannot be locked: {error.strerror or error}") from None

    def _check_locked(self) -> None:
        if not self._lock.is_locked:
            raise RuntimeError("take the run's lock before writing to it")


def folder_kind(path: str | Path) -> Literal["none", "run", "model", "other"]:
    """Say what a folder holds: nothing yet, a run, a model from elsewhere, or other files.

    >>> folder_kind("no such folder")
    'none'
    """
    path = Path(path)
    if not path.exists():
        return "none"
    if not path.is_dir():
        return "other"
    if (path / "run.json").exists() or (path / _LOCK).exists():  # a run may end before it wrote anything else
        return "run"
    if (path / "config.json").exists():
        return "model"
    return "other" if any(not atomic.is_temporary(inner) for inner in path.iterdir()) else "none"


def _write_holder(descriptor: int) -> None:
    """Record this process in the lock file, for the message that a second one gets."""
    holder = {"pid": os.getpid(), "host": socket.gethostname()}
    with contextlib.suppress(OSError):  # the lock itself is held
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)


def _read_holder(path: Path) -> str:
    """The process in a lock file as part of a message; nothing where it is not recorded."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        holder = json.loads(path.read_bytes())
        return f" (process {holder['pid']} on {holder['host']})"
    return ""


def _record(line: bytes) -> dict[str, Any] | None:
    """Return a log line's report; nothing for one that was not wholly written."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
