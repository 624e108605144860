"""The disk: system calls of a write in one replaceable class, and error messages for failed writes."""

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

_SPACE_MARGIN = 1.2  # free space required, as a multiple of the bytes to write
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EEXIST, errno.EISDIR)


class Disk:
    """System calls that a write uses, in one class so that tests can substitute a modelled disk."""

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
    """Raise `DiskError` where the disk lacks free space for `size` bytes and a margin."""
    free = disk.free(path.parent)
    needed = int(size * _SPACE_MARGIN)
    if free < needed:
        raise DiskError(
            f"{path} was not written: {format_bytes(free)} free, {format_bytes(needed)} needed: free some space"
        )


@contextlib.contextmanager
def translate_os_errors(path: Path, size: int, disk: Disk) -> Iterator[None]:
    """Raise `UsageError` or `DiskError` in place of the `OSError` of a failed write."""
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
        needed = format_bytes(int(size * _SPACE_MARGIN))
        raise DiskError(
            f"{path} was not written ({reason}): {free} free, {needed} needed; the previous content is intact"
        ) from None
