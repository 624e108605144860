"""Sums over processes in shared memory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from regard.training.shared import SHARED_FOLDER, SharedNumbers, release, reserve

needs_memory_files = pytest.mark.skipif(not SHARED_FOLDER.is_dir(), reason="this system has no files in memory")


@needs_memory_files
@pytest.mark.parametrize("size", [1, 5, 200_003])
def test_everybody_ends_with_the_sum_added_in_the_order_of_ranks(size: int) -> None:
    path = reserve(3 * size)
    barrier = threading.Barrier(3)
    every = [SharedNumbers(path, rank, 3, size, barrier.wait) for rank in range(3)]
    release(path)
    given = [torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    for turn in range(2):  # a second sum is not disturbed by the first
        for one, numbers in zip(every, given, strict=True):
            one.own.copy_(numbers * (turn + 1))
        threads = [threading.Thread(target=one.add_up) for one in every]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wanted = (given[0] * (turn + 1) + given[1] * (turn + 1)) + given[2] * (turn + 1)
        assert all(torch.equal(one.own, wanted) for one in every)
    assert not Path(path).exists()


@needs_memory_files
def test_memory_that_is_not_there_is_not_promised() -> None:
    before = set(SHARED_FOLDER.glob("regard-*"))
    assert reserve(1 << 50) == ""
    assert set(SHARED_FOLDER.glob("regard-*")) == before
