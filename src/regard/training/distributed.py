"""Data-parallel training: rank and world size, collectives, and the files that rank 0 prepares.

Ranks are started by `torchrun`, or by `regard train --workers N` (`training.launcher`). The backend is gloo,
and NCCL for tensors on GPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from regard.checkpoint.atomic import write_file
from regard.checkpoint.feature_dir import FEATURES
from regard.checkpoint.run_dir import Checkpoint, RunDirectory
from regard.errors import TrainingError, UsageError
from regard.hardware import keep_freed_memory
from regard.training.device import process_group_backend
from regard.training.heartbeat import FrozenRankError, Heartbeat, connect_to_store

JOIN_SECONDS = 60.0  # from the first rank that joins to the last
COLLECTIVE_TIMEOUT = timedelta(hours=12)  # the other ranks wait while rank 0 evaluates; heartbeats find frozen ones
WORKER_TIMEOUT = 300.0  # seconds without a heartbeat, by default
ENVIRONMENT_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PREPARED_FILES = ("run.json", "tokenizers", FEATURES)  # in a run directory before the first update


class LostRankError(TrainingError):
    """Another rank ended in the middle of a collective, or never joined."""


class Distributed:
    """This process's rank and its collectives; in a single process every collective is the identity.

    >>> with Distributed() as single:
    ...     single.is_rank_zero, single.all_reduce_values([0.5, 1.0])
    (True, [0.5, 1.0])
    """

    def __init__(self, rank: int = 0, world_size: int = 1, worker_timeout: float = WORKER_TIMEOUT) -> None:
        self.rank = rank
        self.world_size = world_size
        self.worker_timeout = worker_timeout
        self._group: dist.ProcessGroup | None = None  # with the time limit of collectives
        self._heartbeat: Heartbeat | None = None

    @classmethod
    def from_environment(cls, worker_timeout: float = WORKER_TIMEOUT) -> Distributed:
        """Read rank and world size from the variables that `torchrun` sets; a single process without them."""
        if "WORLD_SIZE" not in os.environ:
            return cls()
        missing = [name for name in ENVIRONMENT_VARIABLES if name not in os.environ]
        if missing:
            raise UsageError(f"{', '.join(missing)} is not set: start several processes with torchrun")
        return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), worker_timeout)

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
            self._join()
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def _join(self) -> None:
        """Meet the other ranks, within a minute, and begin to watch them."""
        try:
            dist.init_process_group(process_group_backend(), timeout=timedelta(seconds=JOIN_SECONDS))
            # two calls: the first limits how long ranks may take to join, the second how long a collective may take
            self._group = dist.new_group(timeout=COLLECTIVE_TIMEOUT)
        except RuntimeError as error:
            raise LostRankError(
                f"not all {self.world_size} processes joined within {JOIN_SECONDS:g} s ({_first_line(error)}): "
                "look for the message of the one that is missing, and repeat the command"
            ) from None
        pids = [0.0] * self.world_size
        pids[self.rank] = os.getpid()
        pids = self.all_reduce_values(pids)
        local_pids = {} if self.is_multi_node else {rank: int(pid) for rank, pid in enumerate(pids)}
        store = connect_to_store(self.worker_timeout)
        self._heartbeat = Heartbeat(
            self.rank, local_pids, world_size=self.world_size, seconds=self.worker_timeout, store=store
        )
        self._heartbeat.start()

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over all ranks, in place, with the same bits on every rank."""
        if self.world_size == 1:
            return
        with self._report_lost_rank():
            dist.all_reduce(tensor, group=self._group)

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

    def broadcast_bytes(self, content: bytes) -> bytes:
        """Receive the bytes of rank 0; those of other ranks are ignored."""
        if self.world_size == 1:
            return content
        (size,) = self.broadcast([len(content)])
        buffer = bytearray(content) if self.is_rank_zero else bytearray(int(size))
        if buffer:
            with self._report_lost_rank():
                dist.broadcast(torch.frombuffer(buffer, dtype=torch.uint8), src=0, group=self._group)
        return bytes(buffer)

    def broadcast_json(self, value: Any) -> Any:
        """Receive the JSON value of rank 0; values of other ranks are ignored."""
        return json.loads(self.broadcast_bytes(json.dumps(value).encode()))

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Receive the tensors of rank 0, as a safetensors file; those of other ranks are ignored."""
        content = safetensors.torch.save(dict(tensors)) if self.is_rank_zero else b""
        return safetensors.torch.load(self.broadcast_bytes(content))

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
    def _report_lost_rank(self) -> Iterator[None]:
        """Where a collective fails, raise an error that says why and how to resume."""
        try:
            yield
        except RuntimeError as error:
            if self._heartbeat is not None and self._heartbeat.message:
                raise FrozenRankError(self._heartbeat.message) from None
            raise LostRankError(
                f"another rank ended during a collective ({_first_line(error)}): repeat the command to resume from the "
                "last checkpoint"
            ) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def synchronize_run_directory(directory: RunDirectory, distributed: Distributed) -> None:
    """Copy the files that rank 0 prepared into the run directory of every other machine; all ranks must call it."""
    if not distributed.is_multi_node:
        return
    files = _read_prepared_files(directory.path) if distributed.is_rank_zero else {}
    names = distributed.broadcast_json([*files])
    prepared = {name: distributed.broadcast_bytes(files.get(name, b"")) for name in names}
    if distributed.is_local_rank_zero and not distributed.is_rank_zero:
        for name, content in prepared.items():
            path = directory.path / name
            if not path.is_file() or path.read_bytes() != content:  # a shared disk already has them
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, content)
    distributed.barrier()


def receive_checkpoint(directory: RunDirectory, distributed: Distributed) -> Checkpoint | None:
    """Latest checkpoint of a run; machines other than that of rank 0 receive it over the network."""
    checkpoint = None
    if distributed.is_rank_zero or not distributed.is_multi_node:
        checkpoint = directory.latest_checkpoint()
    if not distributed.is_multi_node:
        return checkpoint
    description = distributed.broadcast_json(
        None if checkpoint is None else {"step": checkpoint.step, "counters": checkpoint.counters}
    )
    if description is None:
        return None
    weights = distributed.broadcast_tensors({} if checkpoint is None else checkpoint.weights)
    optimizer = distributed.broadcast_tensors({} if checkpoint is None else checkpoint.optimizer)
    return Checkpoint(description["step"], weights, optimizer=optimizer, counters=description["counters"])


def _read_prepared_files(folder: Path) -> dict[str, bytes]:
    relative_paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    prepared = [path for path in relative_paths if path.parts[0] in PREPARED_FILES]
    return {path.as_posix(): (folder / path).read_bytes() for path in prepared}
