"""Cancellation of work that nobody waits for any more: checked between decoding steps, layers and batches.

Like a trace, the active cancellation is a context variable, so that concurrent requests do not mix and models need no
code for it. The engine polls its flag in memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from regard.errors import CancelledError


class Cancellation:
    """A request to stop that any thread may send to the block that runs under it.

    >>> cancellation = Cancellation()
    >>> with cancellation.activate():
    ...     check_cancelled()
    ...     cancellation.cancel()
    ...     check_cancelled()
    Traceback (most recent call last):
    regard.errors.CancelledError: cancelled
    """

    def __init__(self) -> None:
        self._flag = ctypes.c_int32(0)

    def cancel(self) -> None:
        """Request to stop; the block ends at its next check."""
        self._flag.value = 1

    @property
    def is_cancelled(self) -> bool:
        """Whether a stop was requested."""
        return bool(self._flag.value)

    @property
    def address(self) -> int:
        """Address of the flag, an int32 that is not 0 once cancelled."""
        return ctypes.addressof(self._flag)

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make checks inside the block raise once this is cancelled."""
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)


_active: ContextVar[Cancellation | None] = ContextVar("regard_cancellation", default=None)


def active_cancellation() -> Cancellation | None:
    """Return the active cancellation; None without one."""
    return _active.get()


def check_cancelled() -> None:
    """Raise `CancelledError` if the active cancellation was requested."""
    cancellation = _active.get()
    if cancellation is not None and cancellation.is_cancelled:
        raise CancelledError("cancelled")
