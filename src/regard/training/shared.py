"""Numbers in memory that the processes of one machine share, so that a sum over all of them crosses no socket."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

SHARED_FOLDER = Path("/dev/shm")  # files in it are memory
AT_A_TIME = 1 << 16  # numbers that a cache holds beside those of the others


class SharedNumbers:
    """As many numbers in each process, all of them seen by all.

    `agree` waits for every process; it is what makes a sum begin when all have written, and end when all have read.
    """

    def __init__(self, path: str, rank: int, count: int, size: int, agree: Callable[[], object]) -> None:
        whole = torch.from_file(path, shared=True, size=count * size, dtype=torch.float32)
        self._every, self._rank, self._count, self._agree = whole.view(count, size), rank, count, agree
        self.own = self._every[rank]

    def add_up(self) -> None:
        """Replace the numbers of every process by their sum, added in the order of ranks: each process does a part."""
        self._agree()
        size = self._every.shape[1]
        first, last = (size * rank // self._count for rank in (self._rank, self._rank + 1))
        for start in range(first, last, AT_A_TIME):
            parts = self._every[:, start : min(last, start + AT_A_TIME)].unbind(0)
            for part in parts[1:]:
                parts[0].add_(part)
            for part in parts[1:]:
                part.copy_(parts[0])
        self._agree()


def reserve(numbers: int) -> str:
    """Return the path of a new file in memory with room for so many numbers; empty where there is no such room."""
    if not SHARED_FOLDER.is_dir() or not hasattr(os, "posix_fallocate"):
        return ""
    try:
        number, path = tempfile.mkstemp(prefix="regard-", dir=SHARED_FOLDER)
    except OSError:
        return ""
    try:
        os.posix_fallocate(number, 0, 4 * numbers)  # a write beyond what there is would kill the process
    except OSError:
        release(path)
        return ""
    finally:
        os.close(number)
    return path


def release(path: str) -> None:
    """Take the file's name away; whoever has it open keeps the memory."""
    with contextlib.suppress(OSError):
        os.unlink(path)
