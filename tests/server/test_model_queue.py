"""Texts for the model over real HTTP: too many are refused before the first byte, unwanted ones are cancelled."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="the served page needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the served page needs the extra `serve`")

from regard.config.inference import DecodingConfig
from regard.decoding.search import search
from regard.engine.library import unavailable_reason
from regard.errors import CancelledError
from regard.packed_tokens import Tokens
from regard.server import model_queue
from regard.server.app import create_app
from regard.view.record.record import Record
from tests.engine.conftest import build_engine, translator
from tests.scale import HANG_GUARD
from tests.server.client import Client
from tests.server.running import running
from tests.view.samples import whole_record

TOKEN = "a-token-for-the-tests"
ENDLESS = "a text without an end"
MAX_LENGTH = 200_000  # tokens, which take minutes
BACKENDS = ["torch", pytest.param("engine", marks=pytest.mark.skipif(bool(unavailable_reason()), reason="no engine"))]


class EndlessModel:
    """A translator that never ends one text, and answers all others at once."""

    def __init__(self, backend: str) -> None:
        model = translator(output_bias=True, max_positions=MAX_LENGTH)
        with torch.no_grad():
            model.lm_head_bias[model.config.eos_id] = -100.0
        self.generator: Any = build_engine(model) if backend == "engine" else model
        self.num_started = 0
        self.num_cancelled = 0

    def run(self, task: str, text: str, options: Mapping[str, Any]) -> Record:
        if text == ENDLESS:
            self.num_started += 1
            try:
                source = Tokens.from_rows([np.array([5, 6, 7])])
                search(self.generator, source, DecodingConfig(beam=1), max_lengths=[MAX_LENGTH])
            except CancelledError:
                self.num_cancelled += 1
                raise
        return whole_record(text, "neu", id="new", title=text)


@pytest.fixture
def serve_model() -> Iterator[Callable[[EndlessModel], Client]]:
    servers = []

    def serve(model: EndlessModel) -> Client:
        server = running(create_app([whole_record()], model.run, token=TOKEN))
        client = Client(server.__enter__())
        servers.append(server)
        client.open_with(TOKEN)
        return client

    yield serve
    for server in servers:
        server.__exit__(None, None, None)


def post_until_answered(client: Client, text: str) -> list[dict[str, Any]]:
    """Post a text as the page does, again while the model is busy; return the lines of the answer."""
    while True:
        response = client.post_text(text).getresponse()
        if response.status != 429:
            assert response.status == 200
            return [json.loads(line) for line in response.read().splitlines()]
        response.read()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_ends_when_its_client_disconnects(serve_model: Callable[[EndlessModel], Client], backend: str) -> None:
    model = EndlessModel(backend)
    client = serve_model(model)
    for index in range(20):
        connection = client.post_text(ENDLESS)
        if index % 2:  # half of the clients leave in the queue, perhaps
            response = connection.getresponse()
            if response.status == 200:
                assert json.loads(response.readline()) == {"state": "running"}
            response.close()
        connection.close()
    assert post_until_answered(client, "ein Hund")[-1] == {"id": "new"}
    assert model.num_started == model.num_cancelled > 0
    titles = [summary["title"] for summary in json.loads(client.request("/records.json")[2])["records"]]
    assert ENDLESS not in titles


def test_too_many_texts_at_once_are_refused_before_the_first_byte(
    serve_model: Callable[[EndlessModel], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_queue, "MAX_WAITING", 3)
    monkeypatch.setattr(model_queue, "QUEUE_SECONDS", float(HANG_GUARD))
    client = serve_model(EndlessModel("torch"))
    first = client.post_text(ENDLESS)
    first_response = first.getresponse()
    assert json.loads(first_response.readline()) == {"state": "running"}
    is_refused = threading.Semaphore(0)

    def post(index: int) -> int:
        response = client.post_text(f"text {index}").getresponse()
        if response.status == 429:
            assert int(response.headers["retry-after"]) >= 1
            assert json.loads(response.read()) == {"error": model_queue.BUSY}
            is_refused.release()
        else:
            lines = [json.loads(line) for line in response.read().splitlines()]
            assert lines[0] == {"state": "running"} and "id" in lines[-1]
        return response.status

    with ThreadPoolExecutor(11) as pool:
        posts = [pool.submit(post, index) for index in range(11)]
        for _ in range(8):
            assert is_refused.acquire(timeout=HANG_GUARD)
        assert client.request("/records.json")[0] == 200
        first_response.close()
        first.close()
        assert sorted(post.result() for post in as_completed(posts)) == [200] * 3 + [429] * 8


def test_a_text_that_waits_too_long_is_refused(
    serve_model: Callable[[EndlessModel], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_queue, "QUEUE_SECONDS", 0.05)
    client = serve_model(EndlessModel("torch"))
    first = client.post_text(ENDLESS)
    response = first.getresponse()
    assert response.readline()
    refused = client.post_text("ein Hund").getresponse()
    assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1
    response.close()
    first.close()
    assert post_until_answered(client, "ein Hund")[-1] == {"id": "new"}


def test_a_failure_of_the_model_ends_its_answer_with_a_message() -> None:
    def fail(task: str, text: str, options: Mapping[str, Any]) -> Record:
        raise ZeroDivisionError

    with running(create_app([whole_record()], fail, token=TOKEN)) as port:
        client = Client(port)
        client.open_with(TOKEN)
        lines = client.post_text("ein Hund").getresponse().read().splitlines()
        assert json.loads(lines[-1]) == {"error": "the model failed on this text: ZeroDivisionError"}
        assert client.request("/records.json")[0] == 200
