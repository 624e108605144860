"""Routes of the page: records as JSON, attention matrices as bytes, figures, and new records from a loaded model."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import numpy as np

from regard.attention.rollout import roll_out
from regard.errors import RegardError, UsageError
from regard.server.store import RecordStore
from regard.view.codec import Weights, to_root8
from regard.view.csp import SERVED_POLICY
from regard.view.figures.flow_figure import rollout_steps
from regard.view.page import asset, asset_names, index_page, served_page
from regard.view.record.record import Record
from regard.view.selection import AxisUnit

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, RedirectResponse
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

    from regard.server.guard import BODY_SECONDS, Guard
    from regard.server.model_queue import ModelQueue, RunResponse
    from regard.server.requests import Run, read_request
except ModuleNotFoundError as missing:
    raise UsageError(
        f"a served page needs {missing.name}: pip install 'regard[serve]'; or write the page to a file"
    ) from missing

MAX_WEIGHTS = 4 * 2**20  # of one matrix
MAX_ROLLOUT_TOKENS = 1024
TITLE = "Regard"
Stored = TypeVar("Stored")


def create_app(
    records: Iterable[Record] | RecordStore,
    run: Run | None = None,
    *,
    token: str = "",
    title: str = TITLE,
    tasks: Collection[str] = (),
    is_live: bool = False,
) -> Guard:
    """The guarded ASGI app that shows records; `run` computes a new one from a task, a text and options.

    `?token=…` opens it, once. With `is_live`, records are added while it runs, and pages poll for them.
    """
    store = records if isinstance(records, RecordStore) else RecordStore(records)
    allowed_tasks = list(tasks) or sorted({summary["task"] for summary in store.summaries()})
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, title=title)
    _add_error_handlers(app)
    _add_pages(app, store, title, {"run": run is not None, "tasks": allowed_tasks, "live": is_live})
    _add_matrices(app, store)
    _add_figures(app, store)
    if run is not None:
        _add_runs(app, store, run, allowed_tasks)
    return Guard(app, token or secrets.token_urlsafe(24), SERVED_POLICY)


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every failure with one message in JSON."""

    @app.exception_handler(HTTPException)
    async def _handle_http(_: Request, error: HTTPException) -> Response:
        return _json({"error": str(error.detail)}, error.status_code)

    @app.exception_handler(ClientDisconnect)
    async def _handle_timeout(_: Request, error: ClientDisconnect) -> Response:
        return _json({"error": f"the request did not arrive within {BODY_SECONDS:g} seconds: send it again"}, 408)

    @app.exception_handler(RegardError)
    async def _handle_regard_error(_: Request, error: RegardError) -> Response:
        return _json({"error": str(error)}, 422 if isinstance(error, UsageError) else 500)


def _add_pages(app: FastAPI, store: RecordStore, title: str, about: dict[str, Any]) -> None:
    assets = {name: asset(name) for name in asset_names()}

    @app.get("/")
    def _index() -> Response:
        return HTMLResponse(index_page(store.summaries(), title=title, live=bool(about["live"])))

    @app.get("/records.json")
    def _list() -> Response:
        return _json({"title": title, "records": store.summaries(), **about})

    @app.get("/newest")
    def _newest() -> Response:
        newest = store.newest()
        return RedirectResponse(f"/r/{newest}" if newest else "/", 303)

    @app.get("/app/{name}")
    async def _asset(name: str) -> Response:
        if name not in assets:
            raise HTTPException(404, "there is no such file")
        return Response(assets[name], media_type="text/css" if name.endswith(".css") else "text/javascript")

    @app.get("/r/{name}.json")
    def _record(name: str) -> Response:
        return Response(_get_or_404(store.json_bytes, name), media_type="application/json")

    @app.get("/r/{name}")
    def _page(name: str) -> Response:
        return HTMLResponse(served_page(_get_or_404(store.get, name).id, title=title))


def _add_matrices(app: FastAPI, store: RecordStore) -> None:
    @app.get("/r/{name}/a/{attention:path}/{layer}/{head}")
    def _matrix(name: str, attention: str, layer: int, head: int) -> Response:
        record = _get_or_404(store.get, name)
        attention_map = record[attention]
        _, _, rows, columns = attention_map.shape
        if rows * columns > MAX_WEIGHTS:
            raise UsageError(f"{rows} × {columns} weights are more than {MAX_WEIGHTS:,}: select a part of the text")
        return _bytes(attention_map.matrix(layer, head))

    @app.get("/r/{name}/flow/{attention:path}")
    def _rollout(name: str, attention: str) -> Response:
        record = _get_or_404(store.get, name)
        attention_map = record[attention]
        tokens = record.texts[attention_map.rows].tokens
        if not attention_map.is_self:
            raise UsageError(f"{attention} attends to another text: rollout needs self-attention")
        if len(tokens) > MAX_ROLLOUT_TOKENS:
            raise UsageError(f"the text has {len(tokens):,} tokens: rollout takes at most {MAX_ROLLOUT_TOKENS:,}")
        units = [AxisUnit(token, (position,), False) for position, token in enumerate(tokens)]
        return _bytes(roll_out(rollout_steps(attention_map, units)))


def _add_figures(app: FastAPI, store: RecordStore) -> None:
    @app.get("/r/{name}/figure.svg")
    def _figure(
        name: str, view: str, attention: str = "", layer: int | None = None, head: int | None = None,
        words: bool = False, theme: str = "light", width: str = "page",
    ) -> Response:  # fmt: skip
        from regard.view.figure import figure

        record = _get_or_404(store.get, name)
        drawing = figure(
            record, view, attention=attention, layer=layer, head=head, words=words, theme=theme, width=width
        )
        return Response(drawing.svg.encode("utf-8", "replace"), media_type="image/svg+xml")


def _add_runs(app: FastAPI, store: RecordStore, run: Run, tasks: Collection[str]) -> None:
    queue = ModelQueue(run, store)

    @app.post("/run")
    async def _run(request: Request) -> Response:
        return RunResponse(queue, read_request(await request.body(), tasks))


def _get_or_404(get: Callable[[str], Stored], name: str) -> Stored:
    try:
        return get(name)
    except UsageError as error:
        raise HTTPException(404, str(error)) from None


def _json(content: object, status: int = 200) -> Response:
    """JSON in ASCII, so that any text can be sent, even a lone surrogate."""
    return Response(json.dumps(content, separators=(",", ":")), status, media_type="application/json")


def _bytes(weights: Weights) -> Response:
    return Response(np.ascontiguousarray(to_root8(weights)).tobytes(), media_type="application/octet-stream")
