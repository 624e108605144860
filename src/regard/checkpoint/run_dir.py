"""Run directory: one trainer at a time, verified checkpoints, and a log that is truncated on resume.

RUN/                     a model folder in Hugging Face layout (see `model_dir`)
  run.lock               process that trains now
  run.json               settings, data digests, resolved settings, environment, result
  log.jsonl              one report per line
  checkpoints/step-N/    model.safetensors  optimizer.safetensors  counters.json  MANIFEST.json
"""

from __future__ import annotations

import contextlib
import hashlib
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

VERSION = 3  # of run.json; the first one had no number
_LOCK = "run.lock"
_RUN = "run.json"
_MAX_RUN_BYTES = 8 << 20
_MAX_LOG_BYTES = 1 << 30
_PARTS = {  # of run.json, from the first step on
    "config": dict,
    "data_digests": dict,
    "files": dict,
    "unit": str,
    "resolved": dict,
    "environment": dict,
}
_RESULT_PARTS = {"step": int, "seconds": int | float, "metric": str, "metrics": dict}
_TYPE_NAMES = {dict: "an object", str: "a text", int: "a whole number", int | float: "a number"}
_RESTORE = "restore it, or start anew with another --out"
INPUT_FOLDERS = ("tokenizers", "features")
_STEP = re.compile(r"step-(\d{1,15})")
_WEIGHTS = "model.safetensors"
_OPTIMIZER = "optimizer.safetensors"
_COUNTERS = "counters.json"


@dataclass(frozen=True)
class Checkpoint:
    """Everything that training needs to resume from a step."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    counters: dict[str, Any]


class RunDirectory:
    """Folder of a training run; a writer must hold its lock.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder, RunDirectory(Path(folder, "run")).lock() as run:
    ...     run.save_checkpoint(7, {"token_embedding.weight": torch.ones(2, 3)}, {}, {"epoch": 1})
    ...     run.latest_checkpoint().counters
    {'epoch': 1}
    """

    def __init__(
        self,
        path: str | Path,
        *,
        notify: Callable[[str], object] = lambda message: None,
        max_checkpoints: int = 2,
        disk: Disk = DISK,
    ) -> None:
        self.path = Path(path)
        self.notify = notify
        self.max_checkpoints = max(2, max_checkpoints)
        self.disk = disk
        self.was_interrupted = False  # whether the last process that held the lock was killed; known once it is locked
        self._lock = FileLock(self.path / _LOCK, blocking=False, thread_local=False, on_acquired=self._record_holder)

    def lock(self) -> Self:
        """Create the folder, acquire its lock and recover from interrupted writes; reject a second trainer."""
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path} is a file: choose another name for the run directory")
        atomic.make_folder(self.path, disk=self.disk)
        self._acquire_lock()
        for folder in (self.path, self._checkpoints):
            atomic.recover(folder, disk=self.disk)
        atomic.complete_publish(self.path, disk=self.disk)
        return self

    def release(self) -> None:
        """Release the lock, as the system does when the process ends. The lock file stays."""
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
        """Write a checkpoint atomically, verify it, then remove all but the latest `max_checkpoints`."""
        self._check_locked()
        if self._log.exists():
            atomic.sync_file(self._log, disk=self.disk)
        folder = self._checkpoints / f"step-{step}"
        contents: dict[str, atomic.Content] = {
            _WEIGHTS: weights.serialize_tensors(model),
            _OPTIMIZER: weights.serialize_tensors(optimizer),
            _COUNTERS: atomic.json_bytes(counters),
        }
        size = weights.tensor_bytes(model) + weights.tensor_bytes(optimizer)
        atomic.write_folder(folder, contents, size=size, disk=self.disk)
        atomic.verify_folder(folder)
        earlier_steps = [earlier for earlier in self.steps() if earlier < step]
        for obsolete in earlier_steps[: -(self.max_checkpoints - 1)]:
            atomic.remove_folder_atomically(self._checkpoints / f"step-{obsolete}", disk=self.disk)

    def steps(self) -> list[int]:
        """Steps that have a checkpoint folder, in ascending order, without verifying the folders."""
        names = [path.name for path in self._checkpoints.iterdir()] if self._checkpoints.is_dir() else []
        matches = [_STEP.fullmatch(name) for name in names]
        return sorted(int(match[1]) for match in matches if match)

    def latest_checkpoint(self) -> Checkpoint | None:
        """Read the checkpoint of the highest intact step; report damaged ones and rename them."""
        for step in reversed(self.steps()):
            folder = self._checkpoints / f"step-{step}"
            try:
                atomic.verify_folder(folder)
                counters = atomic.read_json(folder / _COUNTERS)
                return Checkpoint(
                    step,
                    weights.read_tensors(folder / _WEIGHTS),
                    optimizer=weights.read_tensors(folder / _OPTIMIZER),
                    counters=counters,
                )
            except CheckpointError as error:
                self.notify(f"{error}; the previous checkpoint is used")
                if self._lock.is_locked:
                    atomic.move_aside(folder, ".bad", disk=self.disk)
        return None

    def append_log(self, record: Mapping[str, Any]) -> None:
        """Append one report to the log; reports of training have a `step`."""
        atomic.append_lines(self._log, [json.dumps(record, ensure_ascii=False)], disk=self.disk)

    def truncate_log(self, step: int) -> None:
        """Truncate the log to its state at a step: remove everything from the first report of a later step on.

        An incomplete last line is removed too.
        """
        self._check_locked()
        if not self._log.exists():
            return
        data = atomic.read_bytes(self._log, max_bytes=_MAX_LOG_BYTES)
        end = 0
        for line in data.splitlines(keepends=True):
            record = _parse_record(line)
            if record is None or record.get("step", 0) > step:
                break
            end += len(line)
        if end < len(data):
            atomic.write_file(self._log, data[:end], disk=self.disk)

    def read_log(self) -> list[dict[str, Any]]:
        """Read the reports of the log without an incomplete last line."""
        data = atomic.read_bytes(self._log, max_bytes=_MAX_LOG_BYTES) if self._log.exists() else b""
        lines = data.splitlines(keepends=True)
        records = [_parse_record(line) for line in lines]
        return [record for record in records if record is not None]

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Write `run.json`, with the version of its format and its own digest."""
        atomic.write_file(self.path / _RUN, _serialize_run(run), disk=self.disk)

    def read_run(self) -> dict[str, Any]:
        """Read `run.json` without version and digest, which are checked; empty where there is no such file."""
        path = self.path / _RUN
        if not path.exists():
            return {}
        run = atomic.read_json(path)
        atomic.check_version(path, run.pop("version", None), VERSION, advice="train the run again, with another --out")
        run.pop("sha256", None)
        if not _is_intact(path, run):
            raise CheckpointError(
                f"{path}: damaged or edited: its content differs from the digest in it: {_RESTORE} (with --recipe, an "
                "edited copy is read as any recipe)"
            )
        _check_parts(path, run, _PARTS)
        if run.get("result") is not None:
            _check_parts(path, run, {"result": dict})
            _check_parts(path, run["result"], _RESULT_PARTS, prefix="result.")
        return run

    def minutes_per_step(self) -> float:
        """Average minutes of a step of the finished run.

        The log has no times, so that equal runs have equal logs: each step counts as its share of the training time.
        """
        result = self.read_run()["result"]
        return float(result["seconds"] / 60 / max(1, result["step"]))

    def digest_inputs(self) -> dict[str, str]:
        """SHA-256 of each file in the folder that a run writes before its first step and reads when it resumes."""
        files = [file for folder in INPUT_FOLDERS for file in sorted((self.path / folder).rglob("*"))]
        return {str(file.relative_to(self.path)): atomic.digest_file(file) for file in files if file.is_file()}

    def check_inputs(self, digests: Mapping[str, str]) -> None:
        """Raise `CheckpointError` where one of these files is missing or has changed since the run began."""
        for name, digest in digests.items():
            if atomic.digest_file(self.path / name) != digest:
                raise CheckpointError(f"{self.path / name}: changed since the run began: {_RESTORE}")

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
                if error.filename is not None:  # opening the file failed, not locking it
                    raise
                raise UsageError(f"{path} cannot be locked: {error.strerror or error}") from None

    def _record_holder(self, descriptor: int) -> None:
        """Note whether the last holder was killed, and record this process for the error message of a second one."""
        holder = {"pid": os.getpid(), "host": socket.gethostname()}
        with contextlib.suppress(OSError):  # the lock itself is held
            self.was_interrupted = os.fstat(descriptor).st_size > 0  # a process that ends by itself empties the file
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)

    def last_step(self) -> int:
        """Last step that the log or a checkpoint records."""
        logged_steps = (event.get("step", 0) for event in self.read_log())
        return max([*self.steps(), *logged_steps], default=0)

    def _check_locked(self) -> None:
        if not self._lock.is_locked:
            raise RuntimeError("acquire the run's lock before writing to it")


def folder_kind(path: str | Path) -> Literal["none", "run", "model", "other"]:
    """Kind of content of a folder: none yet, a run, a model from elsewhere, or other files.

    >>> folder_kind("no such folder")
    'none'
    """
    path = Path(path)
    if not path.exists():
        return "none"
    if not path.is_dir():
        return "other"
    if (path / _RUN).exists() or (path / _LOCK).exists():  # a run may end before it writes anything but its lock
        return "run"
    if (path / "config.json").exists():
        return "model"
    has_content = any(not atomic.is_temporary(inner) for inner in path.iterdir())
    return "other" if has_content else "none"


def _is_intact(path: Path, run: Mapping[str, Any]) -> bool:
    """Whether the bytes of `run.json` are those that `_serialize_run` makes of its content."""
    try:
        return atomic.read_bytes(path, max_bytes=_MAX_RUN_BYTES) == _serialize_run(run)
    except UnicodeEncodeError:  # half a surrogate pair, which Regard does not write
        return False


def _check_parts(path: Path, values: Mapping[str, Any], parts: Mapping[str, Any], *, prefix: str = "") -> None:
    """Raise `CheckpointError` where a part of `run.json` is missing or of another type."""
    for name, part_type in parts.items():
        if name not in values:
            raise CheckpointError(f"{path}: {prefix}{name} is missing: {_RESTORE}")
        if not isinstance(values[name], part_type):
            raise CheckpointError(f"{path}: {prefix}{name} must be {_TYPE_NAMES[part_type]}: {_RESTORE}")


def _serialize_run(run: Mapping[str, Any]) -> bytes:
    """Content of `run.json`; its form is unique, so that any damage shows."""
    content = {"version": VERSION, **run}
    digest = hashlib.sha256(atomic.json_bytes(content)).hexdigest()
    return atomic.json_bytes({**content, "sha256": digest})


def _read_holder(path: Path) -> str:
    """Process that holds the lock, as part of a message; empty where the file does not record it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        holder = json.loads(path.read_bytes())
        return f" (process {holder['pid']} on {holder['host']})"
    return ""


def _parse_record(line: bytes) -> dict[str, Any] | None:
    """Parse a line of the log; None for an incomplete or damaged one."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_valid = isinstance(record, dict) and type(record.get("step", 0)) is int
    return record if is_valid else None
