"""Batches computed side by side: threads of one core each that share a model."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


class Workers:
    """Runs a function over items, several at a time; results come in the order of the items.

    Small products gain little from a second core, but two batches gain all of it. A lone item is computed by the
    calling thread.

    >>> list(Workers(2).map(lambda number: number * number, [1, 2, 3]))
    [1, 4, 9]
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def map(self, function: Callable[[In], Out], items: Sequence[In]) -> Iterator[Out]:
        """Yield what the function makes of each item."""
        if self.count < 2 or len(items) < 2:
            yield from map(function, items)
            return
        torch: Any = sys.modules.get("torch")  # where nothing has asked for it, nothing of it runs
        threads = torch.get_num_threads() if torch else 1
        with ThreadPoolExecutor(self.count, initializer=torch and torch.set_num_threads, initargs=(1,)) as pool:
            try:
                # an open trace belongs to the caller's context: each item gets a copy of it
                waiting = [pool.submit(contextvars.copy_context().run, function, item) for item in items]
                for future in waiting:
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)
                if torch:
                    torch.set_num_threads(threads)
