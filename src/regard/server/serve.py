"""Serve the page on this machine only, until it is interrupted."""

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
    import uvicorn

    from regard.server.guard import Guard
    from regard.server.requests import Run


LOOPBACK = "127.0.0.1"
BROWSER_DELAY = 0.3  # seconds until the server answers


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
    """Show records in a browser until interrupted; port 0 is any free one.

    `notify` receives the address with its token, which is valid once.
    """
    from regard.server.app import TITLE, create_app

    try:
        import uvicorn
    except ModuleNotFoundError as missing:
        raise UsageError(
            "a served page needs uvicorn: pip install 'regard[serve]'; or write the page to a file"
        ) from missing

    store = records if isinstance(records, RecordStore) else RecordStore(records)
    if store.newest():
        store.json_bytes(store.newest())  # fills the cache before the first request
    app = create_app(store, run, title=title or TITLE, tasks=tasks, is_live=live)
    listener = bind_loopback(port)
    address = f"http://{LOOPBACK}:{listener.getsockname()[1]}/newest?token={app.token}"
    listener.listen()  # whoever reads the address may connect at once
    notify(address)
    if open_browser:
        timer = Timer(BROWSER_DELAY, webbrowser.open, [address])
        timer.daemon = True
        timer.start()
    with listener:
        uvicorn.Server(server_config(app)).run(sockets=[listener])


def server_config(app: Guard) -> uvicorn.Config:
    """Settings of the web server, with limits on connections, times and sizes."""
    import uvicorn

    from regard.server.connections import protocol_class

    return uvicorn.Config(
        app, http=protocol_class(), log_level="error", access_log=False, server_header=False,
        timeout_graceful_shutdown=2, h11_max_incomplete_event_size=32_768, proxy_headers=False, ws="none",
    )  # fmt: skip


def bind_loopback(port: int) -> socket.socket:
    """Socket bound to a port of the loopback interface only."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
    except OSError as error:
        listener.close()
        raise UsageError(f"port {port} cannot be bound: {error.strerror}; 0 selects any free port") from error
    return listener
