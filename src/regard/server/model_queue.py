"""Requests that run the model: one at a time in a thread of its own, few of them waiting, the others refused.

A refusal is decided before the first byte of the response. A client that disconnects leaves the queue, or cancels its
run between two steps.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from regard.cancellation import Cancellation, check_cancelled
from regard.errors import CancelledError, RegardError
from regard.server.requests import Run, RunRequest
from regard.server.store import RecordStore

MAX_WAITING = 8  # requests behind the one that runs
QUEUE_SECONDS = 1.0  # that a request waits before it is refused, too
MAX_RETRY_SECONDS = 30
BUSY = "the model is busy with other texts: try again in a moment"
Emit = Callable[[bytes], object]


class ModelQueue:
    """Runs of one model, in the order of the requests."""

    def __init__(self, run: Run, store: RecordStore) -> None:
        self.run = run
        self.store = store
        self.run_seconds = 1.0  # of a run, as a moving average
        self.num_unfinished = 0  # runs that wait or are computed
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="model")

    @property
    def is_full(self) -> bool:
        """Whether the next request must be refused."""
        return self.num_unfinished > MAX_WAITING

    @property
    def retry_seconds(self) -> int:
        """Estimated seconds until all present runs have ended."""
        return min(MAX_RETRY_SECONDS, max(1, math.ceil(self.num_unfinished * self.run_seconds)))

    def submit(self, request: RunRequest, cancellation: Cancellation, emit: Emit) -> Future[None]:
        """Queue a run; `emit` receives its lines in the event loop. Call it from there."""
        loop = asyncio.get_running_loop()

        def emit_in_loop(line: bytes) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(emit, line)

        def count_finished(_: Future[None]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._count_finished)

        self.num_unfinished += 1
        future = self._executor.submit(self._compute, request, cancellation, emit_in_loop)
        future.add_done_callback(count_finished)
        return future

    def _count_finished(self) -> None:
        self.num_unfinished -= 1

    def _compute(self, request: RunRequest, cancellation: Cancellation, emit: Emit) -> None:
        """Run the model and emit the progress as lines of JSON; the last one is empty."""
        start = monotonic()
        try:
            with cancellation.activate():
                emit(_json_line(state="running"))
                self._record(request, emit)
                self.run_seconds = (self.run_seconds + monotonic() - start) / 2
        except CancelledError:
            pass
        except RegardError as error:
            emit(_json_line(error=str(error)))
        except Exception as error:  # a response that has begun must not end without a message
            emit(_json_line(error=f"the model failed on this text: {type(error).__name__}"))
            raise
        finally:
            emit(b"")

    def _record(self, request: RunRequest, emit: Emit) -> None:
        check_cancelled()
        options: Mapping[str, Any] = request.options.model_dump(exclude_unset=True)
        record = self.run(request.task, request.text, options)
        check_cancelled()
        record = self.store.add(record)
        self.store.json_bytes(record.id)
        for step in record.steps:
            emit(_json_line(step=step.to_dict()))
        emit(_json_line(id=record.id))


class RunResponse(Response):
    """Response that streams the progress of one run, or refuses it with 429 while the model is busy."""

    media_type = "application/x-ndjson"

    def __init__(self, queue: ModelQueue, request: RunRequest) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.queue = queue
        self.request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; end the run where the client has left or the server stops."""
        if self.queue.is_full:
            await self._refuse(scope, receive, send)
            return
        cancellation = Cancellation()
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        run = self.queue.submit(self.request, cancellation, lines.put_nowait)
        disconnection = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            first_line = await _next_line(lines, disconnection, timeout=QUEUE_SECONDS)
            if first_line is None and not disconnection.done() and run.cancel():
                await self._refuse(scope, receive, send)
                return
            await self._stream(first_line, lines, disconnection, send)
            if not disconnection.done():
                await asyncio.wrap_future(run)  # raises what the run raised
        finally:
            cancellation.cancel()
            run.cancel()
            disconnection.cancel()

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"retry-after": str(self.queue.retry_seconds)}
        await JSONResponse({"error": BUSY}, 429, headers)(scope, receive, send)

    async def _stream(
        self, first_line: bytes | None, lines: asyncio.Queue[bytes], disconnection: asyncio.Future[None], send: Send
    ) -> None:
        """Send the lines of a run that has begun, until the last one or a disconnection."""
        line = first_line if first_line is not None else await _next_line(lines, disconnection)
        if line is None:
            return
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while line:
            await send({"type": "http.response.body", "body": line, "more_body": True})
            line = await _next_line(lines, disconnection)
        if line is not None:
            await send({"type": "http.response.body", "body": b""})


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return once the client has disconnected; its request has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _next_line(
    lines: asyncio.Queue[bytes], disconnection: asyncio.Future[None], timeout: float | None = None
) -> bytes | None:
    """Next line of a run; None after a disconnection or the timeout."""
    line = asyncio.ensure_future(lines.get())
    events: set[asyncio.Future[Any]] = {line, disconnection}
    try:
        await asyncio.wait(events, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return line.result() if line.done() else None
    finally:
        line.cancel()


def _json_line(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
