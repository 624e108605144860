"""Batches side by side: in order, with the caller's trace, and without a trace of them left."""

from __future__ import annotations

import threading

import pytest
import torch

from regard.attention.attend import attend
from regard.attention.trace import trace
from regard.hardware import WorkerPool
from tests.scale import HANG_GUARD


def test_results_come_in_the_order_of_items_from_threads_of_one_core() -> None:
    before = torch.get_num_threads()
    meeting = threading.Barrier(2, timeout=HANG_GUARD)

    def work(number: int) -> tuple[int, int]:
        meeting.wait()  # only two at a time get past it
        return number, torch.get_num_threads()

    assert list(WorkerPool(2).map(work, [*range(8)])) == [(number, 1) for number in range(8)]
    assert torch.get_num_threads() == before


def test_an_open_trace_sees_what_workers_compute() -> None:
    states = torch.randn(1, 1, 3, 4)
    with trace("hop.*") as seen:
        list(WorkerPool(2).map(lambda number: attend(states, states, states, site=f"hop.{number}"), [0, 1, 2]))
    assert sorted(seen) == ["hop.0", "hop.1", "hop.2"]


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    def work(number: int) -> float:
        return 1 / number

    with pytest.raises(ZeroDivisionError):
        list(WorkerPool(2).map(work, [1, 0, 1]))
