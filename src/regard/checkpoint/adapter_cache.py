"""Cache of merged adapters: the folder `adapters` of the user's cache, with as many models as `MAX_MERGED`.

When another one is merged, those that were used longest ago are deleted. A process locks the models that it uses for as
long as it runs, so none is deleted while its weights may still be read.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from regard.checkpoint.locate import CONFIG
from regard.hardware import cache_folder

MAX_MERGED = 4  # merged models that are kept besides those in use
_LOCK = ".lock"
_descriptors: dict[Path, int] = {}  # lock file of each model that this process uses → its open descriptor


def use_merged(key: str, write: Callable[[Path], None]) -> Path:
    """Folder of a merged model, which `write` fills if the cache lacks it; it stays as long as this process runs."""
    cache = cache_folder() / "adapters"
    cache.mkdir(parents=True, exist_ok=True)
    merged = cache / key
    with FileLock(cache / _LOCK):
        _lock_for_use(cache / f"{key}.lock")
        if not (merged / CONFIG).is_file():
            write(merged)
        _delete_unused(cache)
    return merged


def _lock_for_use(lock: Path) -> None:
    """Lock a model, shared with other processes, until this process ends; its time is that of the last use."""
    if lock not in _descriptors or not lock.exists():
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        _descriptors[lock] = descriptor
    os.utime(lock)


def _delete_unused(cache: Path) -> None:
    """Delete the models that were used longest ago, except those in use."""
    locks = sorted(cache.glob("*.lock"), key=lambda lock: lock.stat().st_mtime_ns, reverse=True)
    for lock in [lock for lock in locks if lock.name != _LOCK][MAX_MERGED:]:
        if lock in _descriptors:
            continue
        with open(lock, "rb") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()
