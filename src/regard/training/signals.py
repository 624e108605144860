"""Requests to stop: a signal ends a loop after its present step, a second one ends the process at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Whether someone asked to stop, and by which signal."""

    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note SIGINT and SIGTERM while the block runs; the loop in it looks whether one came.

    >>> with stop_requests() as asked:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     asked.name
    'SIGTERM'
    """
    asked = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked.name = signal.Signals(number).name

    old = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            old[number] = signal.signal(number, ask)
    except ValueError:
        pass  # not the main thread: whoever called us handles signals
    try:
        yield asked
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
