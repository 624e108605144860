"""What this process may use of the machine: cores, threads, how OpenMP threads wait, memory.

Batches computed side by side: threads of one core each that share a model.

How fast this processor multiplies matrices, by number format.
"""

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

# Rounds that an idle OpenMP thread spins before it sleeps (by libgomp's own default, milliseconds). Long enough
# to bridge the gap between two operators of a small model, short enough that threads do not fight over a core that
# another program uses.
SPIN_COUNT = "2000"
LIBGOMP_SPIN_COUNT = "300000"
WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # a user who sets either one decides
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of glibc's mallopt
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
_PARENT_POLL_SECONDS = 0.2


def available_cores() -> int:
    """Return how many processors this process may use.

    >>> available_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_spinning() -> bool:
    """Bound how long idle OpenMP threads of torch spin at a barrier; return whether the setting takes effect.

    libgomp, which torch uses on Linux, reads the setting when it is loaded: it has no effect once torch is imported.
    On macOS and Windows torch comes with other OpenMP libraries, whose waiting is left as it is.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in WAIT_VARIABLES):
        return True
    if "torch" in sys.modules:
        return False
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    return True


SPINNING_IS_LIMITED = limit_spinning()  # false where torch was imported before Regard


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for its next arrays; return whether its C library can.

    Training makes and frees the same large arrays step by step. Given back each time, their pages have to be cleared
    and mapped anew: about a twentieth of a small model's step.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):  # others know the function and do nothing, or lack it
        return False
    most = 2**31 - 1
    return bool(library.mallopt(_MMAP_THRESHOLD, 1 << 30)) and bool(library.mallopt(_TRIM_THRESHOLD, most))


def end_with_parent(parent: int) -> None:
    """Kill this process as soon as its parent, the process with this id, has ended in whatever way.

    On Linux the kernel does it; elsewhere a thread looks now and then. Windows does not tell that a parent has ended.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_exit_after, args=[parent], daemon=True).start()
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def _exit_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_SECONDS)
    os._exit(1)


def requested_threads() -> int:
    """Return the thread count that `OMP_NUM_THREADS` asks for; 0 where it is not set.

    >>> requested_threads() >= 0
    True
    """
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def processor_name() -> str:
    """Return the processor's model name, or its architecture where the system does not tell."""
    return _processor_field("model name") or platform.processor() or platform.machine()


def processor_identity() -> str:
    """Return what tells this kind of processor from others, and how many of its cores this process may use."""
    fields = [processor_name(), _processor_field("cpu family"), _processor_field("model"), f"{available_cores()} cores"]
    return ", ".join(field for field in fields if field)


def _processor_field(name: str) -> str:
    """Return the value of a field of the first processor in `/proc/cpuinfo`; empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for field, _, value in fields if field.strip() == name), "")


def cache_folder() -> Path:
    """Return the folder for what Regard remembers of this machine: `REGARD_CACHE`, or the user's cache folder."""
    if given := os.environ.get("REGARD_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "regard"


In = TypeVar("In")
Out = TypeVar("Out")


class WorkerPool:
    """Runs a function over items, several at a time; results come in the order of the items.

    Small products gain little from a second core, but two batches gain all of it. A lone item is computed by the
    calling thread.

    >>> list(WorkerPool(2).map(lambda number: number * number, [1, 2, 3]))
    [1, 4, 9]
    """

    def __init__(self, count: int) -> None:
        self.num_workers = count

    def map(self, function: Callable[[In], Out], items: Sequence[In]) -> Iterator[Out]:
        """Yield what the function makes of each item."""
        if self.num_workers < 2 or len(items) < 2:
            yield from map(function, items)
            return
        torch: Any = sys.modules.get("torch")  # where nothing has asked for it, nothing of it runs
        threads = torch.get_num_threads() if torch else 1
        with ThreadPoolExecutor(self.num_workers, initializer=torch and torch.set_num_threads, initargs=(1,)) as pool:
            try:
                # an open trace belongs to the caller's context: each item gets a copy of it
                waiting = [pool.submit(contextvars.copy_context().run, function, item) for item in items]
                for future in waiting:
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)
                if torch:
                    torch.set_num_threads(threads)


BF16_UNUSABLE_SLOWDOWN = 2.0  # times as slow as float32: with such products no work is faster in bf16


def time_matmuls(size: int = 768, seconds: float = 0.3) -> dict[str, float]:
    """Return billions of operations a second of a matrix product in float32 and bf16, undisturbed by others.

    >>> sorted(time_matmuls(64, 0.01))
    ['bf16', 'float32']
    """
    import torch

    speeds = {}
    for name, kind in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        one = torch.randn(size, size).to(kind)
        one @ one  # the first call prepares the kernel
        start, least = time.perf_counter(), math.inf
        while math.isinf(least) or time.perf_counter() - start < seconds:
            began = time.perf_counter()
            one @ one
            least = min(least, time.perf_counter() - began)
        speeds[name] = round(2 * size**3 / least / 1e9, 2)
    return speeds


@cache
def bf16_slowdown() -> float:
    """Return how many times as long as in float32 a product takes in bf16, by a look of a tenth of a second.

    Processors without instructions for bf16 may take tens of times as long: even a timing of real work would not end.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other where others use the processor, too
    try:
        speeds = time_matmuls(256, 0.05)
    finally:
        torch.set_num_threads(threads)
    return speeds["float32"] / speeds["bf16"]
