"""The worker pool: results in order, in the caller's trace, with torch's thread count restored; locks after a fork."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from regard.attention.attend import attend
from regard.attention.trace import trace
from regard.hardware import ForkSafeLock, WorkerPool
from tests.scale import HANG_GUARD


def test_results_keep_the_order_of_items_and_workers_use_one_core_each() -> None:
    threads_before = torch.get_num_threads()
    barrier = threading.Barrier(2, timeout=HANG_GUARD)

    def work(item: int) -> tuple[int, int]:
        barrier.wait()  # passed only by two threads at the same time
        return item, torch.get_num_threads()

    assert list(WorkerPool(2).map(work, [*range(8)])) == [(item, 1) for item in range(8)]
    assert torch.get_num_threads() == threads_before


def test_an_active_trace_captures_the_attention_of_workers() -> None:
    hidden = torch.randn(1, 1, 3, 4)
    with trace("hop.*") as captured:
        list(WorkerPool(2).map(lambda hop: attend(hidden, hidden, hidden, site=f"hop.{hop}"), [0, 1, 2]))
    assert sorted(captured) == ["hop.0", "hop.1", "hop.2"]


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    def work(item: int) -> float:
        return 1 / item

    with pytest.raises(ZeroDivisionError):
        list(WorkerPool(2).map(work, [1, 0, 1]))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_lock_that_another_thread_holds_is_free_after_a_fork() -> None:
    lock = ForkSafeLock()
    is_held = threading.Event()
    is_done = threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            is_done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if lock._lock.acquire(blocking=False) else 1)
    _, status = os.waitpid(child, 0)
    is_done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
