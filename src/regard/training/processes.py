"""Several processes that train one model: who we are, sums over all, and what the first one decides.

The only file that knows `torch.distributed`. Started by `torchrun`, or by `regard train --workers N` on one machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from regard.errors import TrainingError, UsageError
from regard.machine import keep_freed_memory
from regard.training.shared import SharedNumbers, release, reserve

PATIENCE = timedelta(hours=12)  # the others wait while the first evaluates
Given = TypeVar("Given")
NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Processes:
    """This process among those that train together; alone, every sum is its own.

    >>> with Processes() as alone:
    ...     alone.first, alone.agreed([0.5, 1.0])
    (True, [0.5, 1.0])
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self._shared: dict[int, SharedNumbers] = {}  # by where they begin

    @classmethod
    def started(cls) -> Processes:
        """Return this process as its starter (torchrun, or another of our own) set it up; alone without one."""
        given = [name for name in NAMES if name in os.environ]
        if "WORLD_SIZE" not in given:
            return cls()
        missing = [name for name in NAMES if name not in given]
        if missing:
            raise UsageError(f"{', '.join(missing)} is not set: start several processes with torchrun")
        return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

    @property
    def here(self) -> int:
        """How many of the processes share this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.count))

    @property
    def apart(self) -> bool:
        """Whether they are on several machines, which may have no files in common."""
        return self.here < self.count

    @property
    def first_here(self) -> bool:
        """Whether this is the first process of its machine."""
        return os.environ.get("LOCAL_RANK", "0") == "0"

    @property
    def first(self) -> bool:
        """Whether this is the process that decides, reports and writes."""
        return self.rank == 0

    def __enter__(self) -> Self:
        keep_freed_memory()
        if self.count > 1:
            distributed.init_process_group("gloo", timeout=PATIENCE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.count > 1 and distributed.is_initialized():
            distributed.destroy_process_group()

    def numbers(self, like: Tensor) -> Tensor:
        """Return zeros in the shape of a flat tensor that `add_up` adds up fastest: in shared memory on one machine."""
        if self.count == 1 or self.apart or like.device.type != "cpu" or like.dtype != torch.float32:
            return torch.zeros_like(like)
        with _lost_others():
            path = [reserve(self.count * like.numel()) if self.first else ""]
            distributed.broadcast_object_list(path)
            if not path[0]:
                return torch.zeros_like(like)
            shared = SharedNumbers(path[0], self.rank, self.count, like.numel(), distributed.barrier)
            distributed.barrier()
        if self.first:
            release(path[0])
        self._shared[shared.own.data_ptr()] = shared
        return shared.own

    def add_up(self, numbers: Tensor) -> None:
        """Replace numbers by their sum over all processes: the same bits in each."""
        if self.count == 1:
            return
        shared = self._shared.get(numbers.data_ptr())
        with _lost_others():
            if shared is not None and numbers.numel() == shared.own.numel():
                shared.add_up()
            else:
                distributed.all_reduce(numbers)

    def agreed(self, values: Sequence[float]) -> list[float]:
        """Return the sums of these values over all processes; whoever has no say gives zeros."""
        if self.count == 1:
            return [*values]
        shared = torch.tensor(values, dtype=torch.float64)
        self.add_up(shared)
        return shared.tolist()

    def said_by_first(self, values: Sequence[float]) -> list[float]:
        """Return the first process's values."""
        return self.agreed(values if self.first else [0.0] * len(values))

    def given_by_first(self, value: Given) -> Given:
        """Return whatever the first process has; what the others give does not count."""
        if self.count == 1:
            return value
        with _lost_others():
            box = [value]
            distributed.broadcast_object_list(box)
        return box[0]

    def wait(self) -> None:
        """Go on when all are here."""
        self.agreed([0.0])

    def share(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return this process's part of a batch's examples: rows of like length are dealt out like cards."""
        return numbers[self.rank :: self.count]

    def slice(self, count: int) -> slice:
        """Return which of so many equal pieces of work this process does."""
        return slice(count * self.rank // self.count, count * (self.rank + 1) // self.count)


@contextlib.contextmanager
def _lost_others() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise TrainingError(
            f"one of the processes that train together ended ({reason}): the same command goes on from the last save"
        ) from None


@contextlib.contextmanager
def others(count: int, command: Sequence[str], threads: int) -> Iterator[None]:
    """Start the others of `count` processes on this machine for a while; this process becomes the first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for rank in range(1, count)
    ]
    before = {name: os.environ.get(name) for name in NAMES}
    os.environ |= {**shared, "RANK": "0"}
    try:
        yield
        for child in children:
            child.wait(timeout=60)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
