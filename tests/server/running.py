"""An app served for real on this machine, for tests and benchmarks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.scale import HANG_GUARD


@contextmanager
def running(app: Any) -> Iterator[int]:
    """Serve an app within the block; yields its port."""
    import uvicorn

    from regard.server.serve import bind_loopback, server_config

    listener = bind_loopback(0)
    server = uvicorn.Server(server_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server ended before it answered"
        time.sleep(0.02)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(HANG_GUARD)
    listener.close()
