"""Locate a folder's model, read its task and verify its files. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
_LARGE_FILE = 1 << 20  # bytes; smaller files take less time than starting a thread
_MAX_RETRIES = 20  # reads of a folder that keeps being replaced
Loaded = TypeVar("Loaded")


def read_verified(folder: Path, read: Callable[[Path], Loaded]) -> Loaded:
    """Read a folder's model, verifying its files; read it again if a training run has replaced it meanwhile."""

    def read_path(folder: Path) -> Loaded:
        path = resolve_model_path(folder)
        with verifying(path):
            return read(path)

    return retry_while_replaced(folder, read_path)


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


@contextmanager
def verifying(path: Path) -> Iterator[None]:
    """Compare all files but the model card with the folder's manifest, if it has one, while a block reads the folder.

    Large files are compared in a thread meanwhile, as computing digests and reading occupy different cores; their
    damage is raised at the end of the block, or in place of the error that it caused there.
    """
    if not atomic.has_manifest(path):
        yield
        return
    with _advise_on_damage():
        entries = atomic.read_manifest(path)
    names = [name for name in entries if name != CARD]
    large = [name for name in names if entries[name]["size"] > _LARGE_FILE]
    verify(path, [name for name in names if name not in large])
    with ThreadPoolExecutor(1) as pool:
        comparison = pool.submit(verify, path, large)
        try:
            yield
        except Exception:
            comparison.result()
            raise
        comparison.result()


def verify(path: Path, names: Iterable[str] | None = None) -> None:
    """Compare a folder's files, or only those of these names, with its manifest, if it has one."""
    if not atomic.has_manifest(path):
        return
    with _advise_on_damage():
        listed = [name for name in atomic.read_manifest(path) if name != CARD]
        atomic.verify_folder(path, listed if names is None else names)


@contextmanager
def _advise_on_damage() -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        advice = f"copy the folder again, or delete {atomic.MANIFEST} if the change is intended"
        raise CheckpointError(f"{error}: {advice}") from None
