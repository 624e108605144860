"""Signals that stop a training run: the loop polls for them and ends after its present update."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """Name of the signal that requested a stop; empty, and false, without one."""

    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Record SIGINT and SIGTERM while the block runs, instead of ending the process; the block polls the request.

    >>> with catch_stop_signals() as request:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     request.name
    'SIGTERM'
    """
    request = StopRequest()

    def handle(signal_number: int, frame: FrameType | None) -> None:
        if request:
            signal.signal(signal_number, signal.SIG_DFL)
            signal.raise_signal(signal_number)
        request.name = signal.Signals(signal_number).name

    previous_handlers = {}
    try:
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            previous_handlers[signal_number] = signal.signal(signal_number, handle)
    except ValueError:
        pass  # only the main thread can set handlers; its owner handles signals
    try:
        yield request
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
