"""Where a folder's model is, whose task it is for, and whether it is whole; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from regard.checkpoint import atomic
from regard.config.defaults import usage_hint
from regard.errors import CheckpointError

_PATIENCE = 20  # times that a folder is read again because it was being replaced meanwhile
VERSION = 1
CONFIG, TASK_FILE, CARD = "config.json", "task.json", "README.md"
Read = TypeVar("Read")


def retry_while_replaced(folder: Path, read: Callable[[Path], Read]) -> Read:
    """Return what is read from a folder; one that a training run replaces at this moment is read again."""
    for _ in range(_PATIENCE):
        before = _version(folder)
        try:
            return read(folder)
        except CheckpointError:
            if _version(folder) == before:
                raise
    return read(folder)


def _version(folder: Path) -> list[tuple[int, int]]:
    """Return what changes whenever a folder's model is replaced, even by one with the same content."""
    seen = []
    for manifest in (folder / atomic.MANIFEST, folder / atomic.NEW / atomic.MANIFEST):
        try:
            found = manifest.stat()
        except OSError:
            seen.append((0, 0))
        else:
            seen.append((found.st_ino, found.st_mtime_ns))
    return seen


def resolve_model_path(folder: Path) -> Path:
    """Return where to read a folder's model from, or say what is there instead."""
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise CheckpointError(f"{folder}: {what}; a run's or model's folder is needed")
    path = atomic.published_path(folder)
    if (path / CONFIG).is_file():
        return path
    if (folder / "run.json").exists():
        raise CheckpointError(f"{folder}: a run that has not written its model yet: go on with the same train command")
    raise CheckpointError(f"{folder}: no {CONFIG} in it; a run's or model's folder is needed")


def read_task(path: Path, wanted: str) -> dict[str, Any]:
    """Return what task.json holds, if the folder has one and it is of the wanted task."""
    task = read_task_file(path)
    if not task:
        return {}
    found = task.get("task")
    if found != wanted:
        use = usage_hint(str(found))
        raise CheckpointError(f"{path}: a model for the task {found!r:.60}; one for {wanted!r} is needed{use}")
    version = task.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise CheckpointError(
            f"{path / TASK_FILE}: version {version!r:.60}; up to {VERSION} is read here: use a newer Regard"
        )
    return task


def read_task_file(path: Path) -> dict[str, Any]:
    """Return what task.json holds, whatever the task; nothing where there is none."""
    return atomic.read_json(path / TASK_FILE) if (path / TASK_FILE).exists() else {}


def verify(path: Path, read: Iterable[str]) -> None:
    """Compare what will be read with the manifest, if there is one."""
    if not (path / atomic.MANIFEST).exists():
        return
    try:
        atomic.verify_folder(path, read)
    except CheckpointError as error:
        advice = f"copy the folder again, or delete {atomic.MANIFEST} if the change was meant"
        raise CheckpointError(f"{error}: {advice}") from None
