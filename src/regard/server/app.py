"""The routes of the page: records as JSON, matrices as bytes, figures, and new records from a running model."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import reduce
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from regard.errors import RegardError, UsageError
from regard.server.store import RecordStore
from regard.view.codec import Weights, to_root8
from regard.view.csp import SERVED_POLICY
from regard.view.figures.flow import rollout_steps
from regard.view.page import asset, asset_names, index_page, served_page
from regard.view.record.record import Record
from regard.view.selection import AxisUnit

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

    from regard.server.guard import BODY_SECONDS, Guard
    from regard.server.requests import Run, read_request
except ModuleNotFoundError as missing:
    raise UsageError(
        f"a served page needs {missing.name}: pip install 'regard[serve]'; or write the page to a file"
    ) from missing

WEIGHTS = 4 * 2**20  # of one matrix
FOLLOWED = 1024  # tokens that rollout follows through the layers
WAIT = 30.0  # seconds for texts that were asked before
TITLE = "Regard"
Found = TypeVar("Found")


def create_app(
    records: Iterable[Record] | RecordStore,
    run: Run | None = None,
    *,
    token: str = "",
    title: str = TITLE,
    tasks: Collection[str] = (),
    is_live: bool = False,
) -> Guard:
    """Return the app that shows records; `run` makes new ones of a task, a text and options.

    It is opened by `?token=…`, once; `live` says that records are added while it runs, so that pages look for them.
    """
    shelf = records if isinstance(records, RecordStore) else RecordStore(records)
    known = list(tasks) or sorted({one["task"] for one in shelf.summaries()})
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, title=title)
    _errors(app)
    _pages(app, shelf, title, {"run": run is not None, "tasks": known, "live": is_live})
    _arrays(app, shelf)
    if run is not None:
        _running(app, shelf, run, known)
    return Guard(app, token or secrets.token_urlsafe(24), SERVED_POLICY)


def _errors(app: FastAPI) -> None:
    """Answer every failure with one message in JSON."""

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> Response:
        return _json({"error": str(error.detail)}, error.status_code)

    @app.exception_handler(ClientDisconnect)
    async def _late(_: Request, error: ClientDisconnect) -> Response:
        return _json({"error": f"the request did not arrive within {BODY_SECONDS:g} seconds: send it again"}, 408)

    @app.exception_handler(RegardError)
    async def _ours(_: Request, error: RegardError) -> Response:
        return _json({"error": str(error)}, 422 if isinstance(error, UsageError) else 500)


def _pages(app: FastAPI, shelf: RecordStore, title: str, about: dict[str, Any]) -> None:
    files = {name: asset(name) for name in asset_names()}

    @app.get("/")
    def _index() -> Response:
        return HTMLResponse(index_page(shelf.summaries(), title=title, live=bool(about["live"])))

    @app.get("/records.json")
    def _list() -> Response:
        return _json({"title": title, "records": shelf.summaries(), **about})

    @app.get("/newest")
    def _newest() -> Response:
        return RedirectResponse(f"/r/{shelf.newest()}" if shelf.newest() else "/", 303)

    @app.get("/app/{name}")
    async def _asset(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file here")
        return Response(files[name], media_type="text/css" if name.endswith(".css") else "text/javascript")

    @app.get("/r/{name}.json")
    def _record(name: str) -> Response:
        return Response(_found(shelf.json_bytes, name), media_type="application/json")

    @app.get("/r/{name}")
    def _page(name: str) -> Response:
        return HTMLResponse(served_page(_found(shelf.get, name).id, title=title))


def _arrays(app: FastAPI, shelf: RecordStore) -> None:
    @app.get("/r/{name}/a/{attention:path}/{layer}/{head}")
    def _matrix(name: str, attention: str, layer: int, head: int) -> Response:
        seen = _found(shelf.get, name)[attention]
        _, _, rows, columns = seen.shape
        if rows * columns > WEIGHTS:
            raise UsageError(f"{rows} × {columns} weights are more than {WEIGHTS:,}: look at a part of the text")
        return _bytes(seen.matrix(layer, head))

    @app.get("/r/{name}/flow/{attention:path}")
    def _flow(name: str, attention: str) -> Response:
        record = _found(shelf.get, name)
        seen = record[attention]
        tokens = record.texts[seen.rows].tokens
        if not seen.own:
            raise UsageError(f"{attention} looks at another text: only a text's look at itself can be followed")
        if len(tokens) > FOLLOWED:
            raise UsageError(
                f"the text has {len(tokens):,} tokens: at most {FOLLOWED:,} are followed through the layers"
            )
        units = [AxisUnit(token, (place,), False) for place, token in enumerate(tokens)]
        return _bytes(reduce(lambda below, layer: layer @ below, rollout_steps(seen, units)))

    @app.get("/r/{name}/figure.svg")
    def _figure(
        name: str, view: str, attn: str = "", layer: int | None = None, head: int | None = None, words: bool = False,
        theme: str = "light", width: str = "page",
    ) -> Response:  # fmt: skip
        from regard.view.figure import figure

        drawn = figure(
            _found(shelf.get, name), view, attention=attn, layer=layer, head=head, words=words, theme=theme, width=width
        )
        return Response(drawn.svg.encode("utf-8", "replace"), media_type="image/svg+xml")


def _running(app: FastAPI, shelf: RecordStore, run: Run, tasks: Collection[str]) -> None:
    busy = Lock()

    @app.post("/run")
    async def _run(request: Request) -> Response:
        asked = read_request(await request.body(), tasks)

        def lines() -> Iterator[bytes]:
            if not busy.acquire(timeout=WAIT):
                yield _line(error="the model is at work on other texts: ask again in a moment")
                return
            try:
                yield _line(state="running")
                record = shelf.add(run(asked.task, asked.text, asked.options.model_dump(exclude_unset=True)))
                shelf.json_bytes(record.id)
                for step in record.steps:
                    yield _line(step=step.to_dict())
                yield _line(id=record.id)
            except RegardError as error:
                yield _line(error=str(error))
            except Exception as error:  # an answer that has begun must not end without a word
                yield _line(error=f"the model failed on this text: {type(error).__name__}")
                raise
            finally:
                busy.release()

        return StreamingResponse(lines(), media_type="application/x-ndjson")


def _found(get: Callable[[str], Found], name: str) -> Found:
    try:
        return get(name)
    except UsageError as error:
        raise HTTPException(404, str(error)) from None


def _json(values: object, status: int = 200) -> Response:
    """Return JSON in ASCII, so that any text can be sent, even half a sign."""
    return Response(json.dumps(values, separators=(",", ":")), status, media_type="application/json")


def _bytes(weights: Weights) -> Response:
    return Response(np.ascontiguousarray(to_root8(weights)).tobytes(), media_type="application/octet-stream")


def _line(**values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"
