"""Data-parallel training: rank and world size, collectives, and the files that rank 0 prepares.

Ranks are started by `torchrun`, or by `regard train --workers N` (`training.launcher`). The backend is gloo,
and NCCL for tensors on GPUs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from regard.checkpoint.atomic import write_file
from regard.checkpoint.native import FEATURES
from regard.checkpoint.run_dir import RunDirectory
from regard.errors import TrainingError, UsageError
from regard.hardware import keep_freed_memory
from regard.training.device import process_group_backend

TIMEOUT = timedelta(hours=12)  # of a collective: the other ranks wait while rank 0 evaluates
ENVIRONMENT_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PREPARED_FILES = ("run.json", "tokenizers", FEATURES)  # in a run directory before the first update
T = TypeVar("T")


class LostRankError(TrainingError):
    """Another rank ended in the middle of a collective."""


class Distributed:
    """This process's rank and its collectives; in a single process every collective is the identity.

    >>> with Distributed() as single:
    ...     single.is_rank_zero, single.all_reduce_values([0.5, 1.0])
    (True, [0.5, 1.0])
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size

    @classmethod
    def from_environment(cls) -> Distributed:
        """Read rank and world size from the variables that `torchrun` sets; a single process without them."""
        if "WORLD_SIZE" not in os.environ:
            return cls()
        missing = [name for name in ENVIRONMENT_VARIABLES if name not in os.environ]
        if missing:
            raise UsageError(f"{', '.join(missing)} is not set: start several processes with torchrun")
        return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

    @property
    def local_world_size(self) -> int:
        """Number of ranks on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))

    @property
    def is_multi_node(self) -> bool:
        """Whether the ranks run on several machines, which may not share a disk."""
        return self.local_world_size < self.world_size

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the rank that decides, reports and writes."""
        return self.rank == 0

    @property
    def is_local_rank_zero(self) -> bool:
        """Whether this is the first rank of its machine."""
        return os.environ.get("LOCAL_RANK", "0") == "0"

    def __enter__(self) -> Self:
        keep_freed_memory()
        if self.world_size > 1:
            dist.init_process_group(process_group_backend(), timeout=TIMEOUT)
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over all ranks, in place, with the same bits on every rank."""
        if self.world_size == 1:
            return
        with _report_lost_rank():
            dist.all_reduce(tensor)

    def all_reduce_values(self, values: Sequence[float]) -> list[float]:
        """Sum numbers over all ranks, in float64."""
        if self.world_size == 1:
            return [*values]
        sums = torch.tensor(values, dtype=torch.float64)
        self.all_reduce(sums)
        return sums.tolist()

    def broadcast(self, values: Sequence[float]) -> list[float]:
        """Receive the numbers of rank 0; every rank must pass as many, but only those of rank 0 count."""
        return self.all_reduce_values(values if self.is_rank_zero else [0.0] * len(values))

    def broadcast_object(self, value: T) -> T:
        """Receive any picklable object of rank 0; objects of other ranks are ignored."""
        if self.world_size == 1:
            return value
        with _report_lost_rank():
            objects = [value]
            dist.broadcast_object_list(objects)
        return objects[0]

    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        self.all_reduce_values([0.0])

    def shard(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """This rank's examples of a batch: every `world_size`-th, since neighbours have similar lengths."""
        return indices[self.rank :: self.world_size]

    def shard_slice(self, count: int) -> slice:
        """This rank's contiguous slice of `count` equal tasks."""
        return slice(count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size)


@contextlib.contextmanager
def _report_lost_rank() -> Iterator[None]:
    """Raise `LostRankError`, which says how to resume, where a collective fails."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise LostRankError(
            f"another rank ended during a collective ({reason}): repeat the command to resume from the last checkpoint"
        ) from None


def synchronize_run_directory(directory: RunDirectory, distributed: Distributed) -> None:
    """Copy the files that rank 0 prepared into the run directory of every other machine; all ranks must call it."""
    if not distributed.is_multi_node:
        return
    prepared = distributed.broadcast_object(_read_prepared_files(directory.path) if distributed.is_rank_zero else {})
    if distributed.is_local_rank_zero and not distributed.is_rank_zero:
        for name, content in prepared.items():
            path = directory.path / name
            if not path.is_file() or path.read_bytes() != content:  # a shared disk already has them
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, content)
    distributed.barrier()


def _read_prepared_files(folder: Path) -> dict[str, bytes]:
    relative_paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    prepared = [path for path in relative_paths if path.parts[0] in PREPARED_FILES]
    return {path.as_posix(): (folder / path).read_bytes() for path in prepared}
