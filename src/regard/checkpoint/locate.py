"""Locate a folder's model, read its task and verify its files. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from regard.checkpoint import atomic
from regard.errors import CheckpointError
from regard.plugins import missing_plugin_advice
from regard.registry import usage_hint

VERSION = 2  # of task.json
CONFIG = "config.json"
TASK_FILE = "task.json"
CARD = "README.md"
_MAX_RETRIES = 20  # reads of a folder that keeps being replaced
Loaded = TypeVar("Loaded")


def retry_while_replaced(folder: Path, read: Callable[[Path], Loaded]) -> Loaded:
    """Read a folder, and read it again if a training run has replaced it meanwhile."""
    for _ in range(_MAX_RETRIES):
        before = _fingerprint(folder)
        try:
            return read(folder)
        except RecursionError:
            raise CheckpointError(f"{folder}: a file in it is nested too deeply") from None
        except CheckpointError:
            if _fingerprint(folder) == before:
                raise
    return read(folder)


def _fingerprint(folder: Path) -> list[tuple[int, int]]:
    """Inode and time of the manifests: they change with every replacement, even by the same content."""
    fingerprint = []
    for manifest in (folder / atomic.MANIFEST, folder / atomic.STAGING / atomic.MANIFEST):
        try:
            status = manifest.stat()
        except OSError:
            fingerprint.append((0, 0))
        else:
            fingerprint.append((status.st_ino, status.st_mtime_ns))
    return fingerprint


def resolve_model_path(folder: Path) -> Path:
    """Path to read a folder's model from, or `CheckpointError` that says what the folder holds instead."""
    if not folder.is_dir():
        problem = "a file" if folder.exists() else "no such folder"
        raise CheckpointError(f"{folder}: {problem}; a run's or model's folder is needed")
    path = atomic.published_path(folder)
    if (path / CONFIG).is_file():
        return path
    if (folder / "run.json").exists():
        raise CheckpointError(f"{folder}: a run that has not written its model yet: resume it with its train command")
    raise CheckpointError(f"{folder}: no {CONFIG} in it; a run's or model's folder is needed")


def read_task(path: Path, task: str) -> dict[str, Any]:
    """Read task.json and check that it is of this task; empty where there is no such file."""
    metadata = read_task_file(path)
    if not metadata:
        return {}
    stored_task = metadata.get("task")
    if stored_task != task:
        hint = usage_hint(str(stored_task))
        raise CheckpointError(f"{path}: a model for the task {stored_task!r:.60}; one for {task!r} is needed{hint}")
    return metadata


def read_task_file(path: Path) -> dict[str, Any]:
    """Read task.json of any task, check its version and that its plugins are installed; empty without such a file."""
    file = path / TASK_FILE
    if not file.exists():
        return {}
    metadata = atomic.read_json(file)
    atomic.check_version(file, metadata.get("version"), VERSION, advice="train or convert the model again")
    for package in metadata.get("plugins", []):
        if advice := missing_plugin_advice(package):
            raise CheckpointError(f"{path}: the model needs the plugin {package}: {advice}")
    return metadata


def verify(path: Path, names: Iterable[str]) -> None:
    """Compare the files that will be read with the manifest, if there is one."""
    if not (path / atomic.MANIFEST).exists():
        return
    try:
        atomic.verify_folder(path, names)
    except CheckpointError as error:
        advice = f"copy the folder again, or delete {atomic.MANIFEST} if the change is intended"
        raise CheckpointError(f"{error}: {advice}") from None
