"""Clients that say nothing keep nobody out of the served page, and are disconnected."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the served page needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the served page needs the extra `serve`")

from regard.server import connections
from regard.server.app import create_app
from tests.scale import HANG_GUARD
from tests.server.client import Client, open_silent, wait_until_closed
from tests.server.running import running
from tests.view.samples import whole_record

TOKEN = "a-token-for-the-tests"
HALF_A_HEAD = b"GET /records.json HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: "
NUM_IDLE = 40


@pytest.fixture
def client() -> Iterator[Client]:
    with running(create_app([whole_record()], token=TOKEN)) as port:
        admitted = Client(port)
        admitted.open_with(TOKEN)
        yield admitted


def test_idle_connections_make_room_for_a_client_that_asks(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_IDLE", 16)
    monkeypatch.setattr(connections, "MIN_IDLE_SECONDS", 0.0)
    idle = [open_silent(client.port, HALF_A_HEAD if index % 2 else b"") for index in range(NUM_IDLE)]
    assert client.request("/records.json")[0] == 200
    for connection in idle[: NUM_IDLE - 16]:  # the longest idle ones
        wait_until_closed(connection)
    assert client.request("/records.json")[0] == 200
    for connection in idle[NUM_IDLE - 16 :]:
        connection.close()


def test_many_clients_that_connect_at_the_same_moment_are_not_closed_before_they_ask(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_IDLE", 2)
    monkeypatch.setattr(connections, "MIN_IDLE_SECONDS", float(HANG_GUARD))
    asking = [http.client.HTTPConnection("127.0.0.1", client.port, timeout=HANG_GUARD) for _ in range(NUM_IDLE)]
    for connection in asking:
        connection.connect()
    for connection in asking:
        connection.request("GET", "/records.json", headers={"Cookie": client.cookie})
    assert [connection.getresponse().status for connection in asking] == [200] * NUM_IDLE
    for connection in asking:
        connection.close()


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD], ids=["nothing", "half a head"])
def test_a_connection_without_a_request_is_closed(client: Client, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.05)
    wait_until_closed(open_silent(client.port, sent))


def test_a_connection_without_another_request_is_closed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.05)
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=HANG_GUARD)
    connection.request("GET", "/records.json", headers={"Cookie": client.cookie})
    response = connection.getresponse()
    assert response.status == 200 and response.read()
    with contextlib.suppress(BrokenPipeError):  # it may be closed already
        connection.sock.sendall(HALF_A_HEAD)
    wait_until_closed(connection.sock)


def test_a_client_that_reads_nothing_is_disconnected(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 0.05)
    script = b"GET /app/matrix.js HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: " + client.cookie.encode() + b"\r\n\r\n"
    connection = open_silent(client.port)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        while True:  # until responses fill the buffers of both sides
            connection.sendall(script)
    connection.close()


def test_the_requests_in_progress_are_limited(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.server.guard.MAX_REQUESTS", 0)
    status, headers, body = client.request("/records.json")
    assert (status, headers["retry-after"]) == (503, "1") and b"try again" in body
    monkeypatch.setattr("regard.server.guard.MAX_REQUESTS", 1)
    assert client.request("/records.json")[0] == client.request("/")[0] == 200
