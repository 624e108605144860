"""The machine: cores, OpenMP waiting, memory, a pool of worker threads, and the speed of matrix products."""

from __future__ import annotations

import contextvars
import ctypes
import math
import os
import platform
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

# Iterations that an idle OpenMP thread spins before it sleeps (libgomp's default amounts to milliseconds). Long enough
# to bridge the gap between two operators of a small model, short enough not to contend for a core that another program
# uses.
SPIN_COUNT = "2000"
LIBGOMP_SPIN_COUNT = "300000"
WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # the user's choice where either one is set
_M_TRIM_THRESHOLD = -1  # parameters of glibc's mallopt
_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 1 << 30
_TRIM_BYTES = 2**31 - 1
_PR_SET_PDEATHSIG = 1  # option of Linux's prctl
_PARENT_POLL_SECONDS = 0.2


def available_cores() -> int:
    """Number of cores that this process may use.

    >>> available_cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_spinning() -> bool:
    """Limit how long torch's idle OpenMP threads spin at a barrier; return whether the limit takes effect.

    libgomp, which torch uses on Linux, reads the variable when it is loaded: it has no effect once torch is imported.
    On macOS and Windows torch has other OpenMP libraries, which keep their defaults.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in WAIT_VARIABLES):
        return True
    if "torch" in sys.modules:
        return False
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    return True


SPINNING_IS_LIMITED = limit_spinning()  # False where torch was imported before Regard


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for its next arrays; return whether the C library supports it.

    Each training step allocates and frees the same large arrays. Returned to the kernel, their pages are cleared and
    mapped anew every time: about 5 % of a small model's step.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # mallopt of other C libraries is missing or does nothing
        return False
    keeps_large_blocks = bool(libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES))
    return keeps_large_blocks and bool(libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


def end_with_parent(parent: int) -> None:
    """Kill this process as soon as its parent, the process with id `parent`, has ended in whatever way.

    On Linux the kernel does it; elsewhere a thread polls. Windows does not report that a parent has ended.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_exit_after, args=[parent], daemon=True).start()
    if os.getppid() != parent:  # it ended before the signal was requested
        os._exit(1)


def _exit_after(parent: int) -> None:
    """Poll until the parent has ended, then exit."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_SECONDS)
    os._exit(1)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error is about a lack of memory, as raised by Python, NumPy or torch.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_out_of_memory(ValueError("no"))
    (True, False)
    """
    return isinstance(error, MemoryError) or "memory" in str(error).lower()


def requested_threads() -> int:
    """Thread count set by `OMP_NUM_THREADS`; 0 where it is not set.

    >>> requested_threads() >= 0
    True
    """
    outer_level = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list has one entry per nesting level
    return int(outer_level) if outer_level.isdecimal() else 0


def processor_name() -> str:
    """Model name of the processor, or its architecture where the system does not report one."""
    return _processor_field("model name") or platform.processor() or platform.machine()


def processor_identity() -> str:
    """Model of the processor and the number of cores that this process may use, as a key for measurements."""
    fields = [processor_name(), _processor_field("cpu family"), _processor_field("model"), f"{available_cores()} cores"]
    return ", ".join(field for field in fields if field)


def _processor_field(name: str) -> str:
    """Field of the first processor in `/proc/cpuinfo`; empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for field, _, value in fields if field.strip() == name), "")


def cache_folder() -> Path:
    """Folder of cached measurements of this machine: `REGARD_CACHE`, or `regard` in the user's cache folder."""
    override = os.environ.get("REGARD_CACHE")
    if override:
        return Path(override)
    user_cache = os.environ.get("XDG_CACHE_HOME")
    base = Path(user_cache) if user_cache else Path.home() / ".cache"
    return base / "regard"


In = TypeVar("In")
Out = TypeVar("Out")


class ForkSafeLock:
    """Lock that is free in a forked process, whichever thread of the parent held it.

    >>> with ForkSafeLock():
    ...     pass
    """

    _all: ClassVar[weakref.WeakSet[ForkSafeLock]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._lock = threading.RLock()
        ForkSafeLock._all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @classmethod
    def _renew_all(cls) -> None:
        for lock in list(cls._all):
            lock._lock = threading.RLock()


os.register_at_fork(after_in_child=ForkSafeLock._renew_all)


class WorkerPool:
    """Thread pool that applies a function to items, one core per thread; results keep the order of the items.

    Two cores speed up one small matrix product little, but two batches by a factor of two. The calling thread computes
    a single item.

    >>> list(WorkerPool(2).map(lambda base: base * base, [1, 2, 3]))
    [1, 4, 9]
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers

    def map(self, function: Callable[[In], Out], items: Sequence[In]) -> Iterator[Out]:
        """Yield the function's result for each item, in order."""
        if self.num_workers < 2 or len(items) < 2:
            yield from map(function, items)
            return
        torch: Any = sys.modules.get("torch")  # not imported here: without torch there is nothing to limit
        threads = torch.get_num_threads() if torch else 1
        with ThreadPoolExecutor(self.num_workers, initializer=torch and torch.set_num_threads, initargs=(1,)) as pool:
            try:
                # an active trace belongs to the caller's context, so each item runs in a copy of it
                futures = [pool.submit(contextvars.copy_context().run, function, item) for item in items]
                for future in futures:
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)
                if torch:
                    torch.set_num_threads(threads)


BF16_UNUSABLE_SLOWDOWN = 2.0  # relative to float32: at this factor no model is faster in bf16


def time_matmuls(size: int = 768, seconds: float = 0.3) -> dict[str, float]:
    """Measure GFLOP/s of a matrix product in float32 and bf16, by the fastest of repeated runs.

    >>> sorted(time_matmuls(64, 0.01))
    ['bf16', 'float32']
    """
    import torch

    speeds = {}
    for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        matrix = torch.randn(size, size).to(dtype)
        matrix @ matrix  # the first call prepares the kernel
        fastest = math.inf
        start = time.perf_counter()
        while math.isinf(fastest) or time.perf_counter() - start < seconds:
            run_start = time.perf_counter()
            matrix @ matrix
            fastest = min(fastest, time.perf_counter() - run_start)
        speeds[name] = round(2 * size**3 / fastest / 1e9, 2)
    return speeds


@cache
def bf16_slowdown() -> float:
    """Time of a matrix product in bf16 relative to float32, by a measurement of a tenth of a second.

    Processors without bf16 instructions can be tens of times slower: timing a real model would take minutes.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads would wait for each other on a busy machine
    try:
        speeds = time_matmuls(256, 0.05)
    finally:
        torch.set_num_threads(threads)
    return speeds["float32"] / speeds["bf16"]
