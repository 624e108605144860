"""Whether the engine or torch is faster where the engine has only portable kernels, by a stored measurement.

With kernels for the processor the engine is faster, and nothing is measured. Portable kernels, in int8 above all, may
be slower than torch's, which differ by processor. So the first use of a model shape on a machine times both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from regard import hardware
from regard.checkpoint import atomic
from regard.engine.library import select_instruction_set
from regard.errors import CheckpointError

PORTABLE = "portable"  # the instruction set without kernels for a processor
ROUNDS = 3  # of which the fastest counts
Run = Callable[[], object]


@dataclass(frozen=True)
class BackendTiming:
    """Seconds of a short piece of inference in either backend.

    >>> BackendTiming("int8", engine=0.2, torch=0.1).is_engine_faster
    False
    """

    precision: str
    engine: float
    torch: float

    @property
    def is_engine_faster(self) -> bool:
        """Whether the engine is at least as fast."""
        return self.engine <= self.torch


def has_only_portable_kernels() -> bool:
    """Whether the engine would compute with portable kernels."""
    return select_instruction_set() == PORTABLE


def choose_by_timing(
    config: Any, precision: str, threads: int, run_engine: Run, build_torch: Callable[[], Run]
) -> BackendTiming:
    """Time both backends, or take the times that are stored for this machine and model shape."""
    conditions = {
        "processor": hardware.processor_identity(),
        "torch": version("torch"),
        "config": config.to_dict(),
        "precision": precision,
        "threads": threads,
    }
    key = sha256(atomic.json_bytes(conditions)).hexdigest()[:32]
    path = hardware.cache_folder() / "backend" / f"{key}.json"
    try:
        return BackendTiming(**atomic.read_json(path))
    except (OSError, CheckpointError, TypeError):
        pass  # missing or unusable: it is measured
    timing = BackendTiming(precision, engine=_time(run_engine), torch=_time(build_torch()))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_file(path, atomic.json_bytes(asdict(timing)))
    except OSError:
        pass  # a read-only home: the next process measures again
    return timing


def _time(run: Run) -> float:
    """Seconds of the fastest round, after one that prepares the kernels."""
    run()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def stored_timings() -> list[BackendTiming]:
    """Times of this machine that are stored."""
    timings = []
    for path in sorted((hardware.cache_folder() / "backend").glob("*.json")):
        try:
            timings.append(BackendTiming(**atomic.read_json(path)))
        except (OSError, CheckpointError, TypeError):
            continue
    return timings
