"""One writer at a time: a lock on a file that says who holds it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from pathlib import Path

from regard.checkpoint.disk import DISK, telling
from regard.errors import UsageError


class Lock:
    """An advisory lock on a file that names its holder; a second holder is refused.

    The system lets go of it when its process ends, however it ends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def take(self) -> None:
        """Take the lock, or raise `UsageError` that names who has it."""
        if self.held:
            return
        with telling(self.path, 0, DISK):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise UsageError(
                f"{self.path.parent} is in use by another training{_holder(holder)}: wait for it, stop it, "
                "or choose another --out"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise UsageError(f"{self.path} cannot be locked: {error.strerror or error}") from None
        who = {"pid": os.getpid(), "host": socket.gethostname(), "boot": _boot()}
        os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):  # the record only serves the message; the lock itself is held
            os.pwrite(descriptor, json.dumps(who).encode() + b"\n", 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go of the lock; the file stays, so that no two holders lock different files of one name."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _holder(record: str) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        who = json.loads(record)
        return f" (process {who['pid']} on {who['host']})"
    return ""
