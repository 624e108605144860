"""The disk: the system calls that writing uses, and what is said when one of them fails."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from regard.errors import DiskError, UsageError
from regard.formatting import format_bytes

_ROOM = 1.2  # free space asked for, as a multiple of what will be written
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EEXIST, errno.EISDIR)


class Disk:
    """The system calls that writing uses, together, so that a modelled disk can stand in for the real one."""

    def free(self, folder: Path) -> int:
        return shutil.disk_usage(folder).free

    def make_folder(self, path: Path) -> None:
        path.mkdir()

    def create(self, path: Path) -> BinaryIO:
        return open(path, "xb")

    def append(self, path: Path) -> BinaryIO:
        return open(path, "ab")

    def sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    def sync_folder(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def link(self, old: Path, new: Path) -> None:
        os.link(old, new)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        path.rmdir()


DISK = Disk()


def check_free_space(path: Path, size: int, disk: Disk) -> None:
    """Raise `DiskError` when the disk has not enough room for so many bytes."""
    free, needed = disk.free(path.parent), int(size * _ROOM)
    if free < needed:
        raise DiskError(
            f"{path} was not written: {format_bytes(free)} free, {format_bytes(needed)} needed: free some space"
        )


@contextlib.contextmanager
def translate_os_errors(path: Path, size: int, disk: Disk) -> Iterator[None]:
    """Turn what the system says about a failed write into our errors."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.errno in _UNWRITABLE:
            where = error.filename2 or error.filename or path
            advice = "choose a folder that you may write to"
            raise UsageError(f"{path} cannot be written ({reason}: {where}): {advice}") from None
        try:
            free = format_bytes(disk.free(path.parent))
        except OSError:
            free = "unknown"
        raise DiskError(
            f"{path} was not written ({reason}): {free} free, {format_bytes(int(size * _ROOM))} needed; "
            "what was saved before is intact"
        ) from None
