"""Serving the page: on this machine only, at a free port, until it is stopped."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable, Collection, Iterable
from threading import Timer
from typing import TYPE_CHECKING

from regard.errors import UsageError
from regard.server.store import RecordStore
from regard.view.record.record import Record

if TYPE_CHECKING:
    from regard.server.requests import Run


LOOPBACK = "127.0.0.1"
CONNECTIONS = 256


def serve(
    records: Iterable[Record] | RecordStore,
    run: Run | None = None,
    port: int = 0,
    open_browser: bool = True,
    *,
    title: str = "",
    tasks: Collection[str] = (),
    live: bool = False,
    notify: Callable[[str], object] = lambda address: None,
) -> None:
    """Show records in a browser until interrupted; `tell` is given the address with its token, good for one use.

    Port 0 is any that is free.
    """
    from regard.server.app import TITLE, create_app

    try:
        import uvicorn
    except ModuleNotFoundError as missing:
        raise UsageError(
            "a served page needs uvicorn: pip install 'regard[serve]'; or write the page to a file"
        ) from missing

    shelf = records if isinstance(records, RecordStore) else RecordStore(records)
    if shelf.newest():
        shelf.json_bytes(shelf.newest())  # what takes longest is done before the page is asked for
    app = create_app(shelf, run, title=title or TITLE, tasks=tasks, is_live=live)
    listening = bind_loopback(port)
    address = f"http://{LOOPBACK}:{listening.getsockname()[1]}/newest?token={app.token}"
    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=2, timeout_keep_alive=10, h11_max_incomplete_event_size=32_768, proxy_headers=False,
        ws="none", http="h11",
    )  # fmt: skip
    notify(address)
    opening = Timer(0.3, webbrowser.open, [address]) if open_browser else None
    if opening is not None:
        opening.daemon = True
        opening.start()
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def bind_loopback(port: int) -> socket.socket:
    """Return a socket that listens at a port of this machine, and nowhere else."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((LOOPBACK, port))
    except OSError as error:
        made.close()
        raise UsageError(f"port {port} cannot be taken: {error.strerror}; 0 takes any that is free") from error
    return made
