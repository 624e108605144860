"""Connections of the served page: idle ones are closed, so that they keep nobody out.

All clients come from the loopback address, so an address tells none of them apart. A connection counts as idle until
the head of a request has arrived, and again after each response: idle connections are closed after `IDLE_SECONDS`, and
where there are too many, the longest idle first. Whoever sends a request is answered, however many others say nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

IDLE_SECONDS = 10.0  # in which the head of a request must arrive, on a new connection or after a response
UNREAD_SECONDS = 30.0  # that a response may wait for a client that reads nothing
MAX_IDLE = 256  # beyond, the longest idle connections are closed
MIN_IDLE_SECONDS = 1.0  # before a connection is closed for others: a client that has just connected sends its request
MAX_CONNECTIONS = 768  # beyond, idle connections are closed at once; a process may open 1,024 files on most systems


class IdleConnections:
    """The idle connections of a server, the longest idle first."""

    def __init__(self) -> None:
        self._since: dict[PageConnection, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def add(self, connection: PageConnection, now: float) -> None:
        """Add a connection that became idle; close the longest idle ones where there are too many."""
        self._since[connection] = now
        while len(self._since) > MAX_IDLE:
            longest_idle, since = next(iter(self._since.items()))
            if now - since < MIN_IDLE_SECONDS and len(self._since) <= MAX_CONNECTIONS:
                return
            self.discard(longest_idle)
            longest_idle.close()

    def discard(self, connection: PageConnection) -> None:
        """Remove a connection that has a request, or was closed."""
        self._since.pop(connection, None)


class PageConnection(H11Protocol):
    """HTTP connection with limits on the time without a request and on the time without a reader."""

    idle_connections: IdleConnections  # of the server; set by `protocol_class`

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    @property
    def has_request(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_idling()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_idling()
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.has_request:
            self._stop_idling()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # any byte would end that timer
        if not self.has_request and not self.transport.is_closing():
            self._start_idling()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        super().resume_writing()

    def close(self) -> None:
        """Close an idle connection, though its client may not have read the last response."""
        self._stop_idling()
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def _start_idling(self) -> None:
        self._stop_idling()
        self._idle_timer = self.loop.call_later(IDLE_SECONDS, self.close)
        self.idle_connections.add(self, self.loop.time())

    def _stop_idling(self) -> None:
        self.idle_connections.discard(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def protocol_class() -> type[PageConnection]:
    """Class of the connections of one server, which share the list of idle ones."""

    class Connection(PageConnection):
        idle_connections = IdleConnections()

    return Connection
