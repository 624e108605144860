"""The served page over real HTTP on this machine: what it admits, returns and refuses."""

from __future__ import annotations

import http.client
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the served page needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the served page needs the extra `serve`")

from regard.errors import UsageError
from regard.server.app import create_app
from regard.server.requests import read_request
from regard.server.serve import bind_loopback, serve
from regard.server.store import RecordStore
from regard.view.codec import to_root8
from regard.view.record.record import Record
from tests.scale import HANG_GUARD
from tests.server.client import Client
from tests.server.running import running
from tests.view.samples import answered_record, whole_record

TOKEN = "a-token-for-the-tests"


def run(task: str, text: str, options: Mapping[str, Any]) -> Record:
    if text == "bad":
        raise UsageError("this text is refused")
    return whole_record(text, "neu", id="new", provenance={"ablated": options.get("ablate", [])})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running(create_app([whole_record(), answered_record()], run, token=TOKEN, title="tests")) as served_port:
        yield served_port


@pytest.fixture(scope="module")
def client(port: int) -> Client:
    admitted = Client(port)
    status, headers, _ = admitted.request(f"/newest?token={TOKEN}&view=matrix")
    assert (status, headers["location"]) == (303, "/newest?view=matrix")
    assert "HttpOnly" in headers["set-cookie"] and "SameSite=Strict" in headers["set-cookie"]
    admitted.cookie = headers["set-cookie"].partition(";")[0]
    return admitted


def test_without_the_token_everything_is_refused(port: int, client: Client) -> None:
    stranger = Client(port)
    for path in ("/", "/records.json", "/app/page.js", "/newest?token=wrong", "/run"):
        status, _, body = stranger.request(path)
        assert status == 403 and b"address that was printed" in body
    stranger.cookie = client.cookie.partition("=")[0] + "=wrong"
    assert stranger.request("/")[0] == 403


def test_the_token_opens_once(port: int, client: Client) -> None:
    assert Client(port).request(f"/?token={TOKEN}")[0] == 403
    assert client.request(f"/?token={TOKEN}")[0] == 303  # the cookie is enough


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "169.254.1.1:80"])
def test_other_host_names_are_refused(client: Client, host: str) -> None:
    status, headers, body = client.request("/records.json", Host=host)
    assert status in (400, 403)
    assert "answers to 127.0.0.1, localhost, [::1] only" in json.loads(body)["error"]
    assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST:{port}", "[::1]:{port}"])
def test_all_host_names_of_this_machine_are_admitted(client: Client, host: str) -> None:
    assert client.request("/records.json", Host=host.format(port=client.port))[0] == 200


def test_other_origins_are_refused_and_cors_is_off(client: Client) -> None:
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{client.port}", "http://127.0.0.1:1"):
        assert client.request("/records.json", Origin=origin)[0] == 403
    status, headers, _ = client.request("/records.json", Origin=f"http://127.0.0.1:{client.port}")
    assert status == 200
    assert not [name for name in headers if name.startswith("access-control")]


def test_every_response_has_a_strict_content_security_policy(client: Client) -> None:
    for path in ("/", "/records.json", "/app/page.css", "/nowhere"):
        _, headers, _ = client.request(path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_records_pages_and_modules_are_served(client: Client) -> None:
    about = json.loads(client.request("/records.json")[2])
    assert [summary["title"] for summary in about["records"]][-2:] == ["The animal was too tired", "Who was tired?"]
    assert about["run"] and not about["live"]
    record_id = about["records"][-2]["id"]
    status, headers, page = client.request(f"/r/{record_id}")
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert b'src="/app/page.js"' in page and record_id.encode() in page
    assert not re.search(rb"<script(?![^>]* (src|type=.app))", page)
    status, headers, script = client.request("/app/page.js")
    assert status == 200 and headers["content-type"].startswith("text/javascript") and b"import {" in script
    assert client.request("/app/page.html")[0] == client.request("/app/..%2fpage.py")[0] == 404
    assert b"Who was tired?" in client.request("/")[2]


def test_matrices_are_served_one_by_one_as_bytes(client: Client) -> None:
    record = whole_record()
    content = json.loads(client.request(f"/r/{record.id}.json")[2])
    block = content["attention"][0]["blocks"][1]
    assert "data" not in block
    status, headers, body = client.request(f"{block['href']}/2")
    assert status == 200 and headers["content-type"] == "application/octet-stream"
    assert body == to_root8(record["decoder.cross"].matrix(1, 2)).tobytes()
    num_tokens = len(record.texts["source"].tokens)
    rollout = np.frombuffer(client.request(f"/r/{record.id}/flow/encoder.self")[2], np.uint8)
    rollout = rollout.reshape(num_tokens, num_tokens)
    assert np.allclose(((rollout / 255) ** 2).sum(axis=1), 1, atol=0.05)
    layers = [record["encoder.self"].weights[layer].mean(axis=0) / 2 + np.eye(num_tokens) / 2 for layer in (0, 1)]
    assert np.allclose((rollout / 255) ** 2, layers[1] @ layers[0], atol=0.01)


def test_figures_are_drawn_by_python(client: Client) -> None:
    status, headers, body = client.request(
        f"/r/{whole_record().id}/figure.svg?view=matrix&attention=decoder.cross&layer=1&head=2"
    )
    assert status == 200 and headers["content-type"] == "image/svg+xml" and body.startswith(b"<svg")
    assert client.request(f"/r/{whole_record().id}/figure.svg?view=nothing")[0] == 422


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/r/unknown", 404, "no such record"),
        ("/r/unknown.json", 404, "no such record"),
        ("/r/{id}/a/decoder.cross/7/0", 422, "no layer 7"),
        ("/r/{id}/a/decoder.cros/0/0", 422, "decoder.cross"),
        ("/r/{id}/a/decoder.cross/0/99", 422, "no head 99"),
        ("/r/{id}/flow/decoder.cross", 422, "another text"),
        ("/" + "a" * 5000, 414, "too long"),
    ],
)
def test_missing_things_are_reported(client: Client, path: str, status: int, message: str) -> None:
    actual_status, headers, body = client.request(path.replace("{id}", whole_record().id))
    assert actual_status == status and headers["content-type"].startswith("application/json")
    assert message in json.loads(body)["error"]


def test_a_text_is_run_and_its_steps_arrive_as_lines(client: Client) -> None:
    run_request = {"task": "translate", "text": "zwei Hunde", "options": {"ablate": ["encoder.0.self:1"]}}
    status, headers, body = client.request("/run", "POST", run_request)
    assert status == 200 and headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in body.splitlines()]
    assert lines[0] == {"state": "running"} and lines[-1] == {"id": "new"} and "step" in lines[1]
    assert json.loads(client.request("/records.json")[2])["records"][0]["provenance"]["ablated"] == ["encoder.0.self:1"]
    body = client.request("/run", "POST", {"task": "translate", "text": "bad"})[2]
    assert json.loads(body.splitlines()[-1]) == {"error": "this text is refused"}


def test_the_same_text_again_gets_its_own_record() -> None:
    store = RecordStore([whole_record(), whole_record()])
    store.add(whole_record())
    ids = [summary["id"] for summary in store.summaries()]
    assert len(set(ids)) == 3 and all(store.get(record_id).id == record_id for record_id in ids)


def test_only_small_json_is_accepted(client: Client) -> None:
    assert client.request("/run", "POST", b"task=translate", Content_Type="application/x-www-form-urlencoded")[0] == 415
    status, headers, body = client.request("/run", "POST", b"x" * 1_000_001)
    assert status == 413 and json.loads(body) == {"error": "the request is too large: at most 1000000 bytes"}
    assert "default-src 'none'" in headers["content-security-policy"]
    assert client.request("/run", "DELETE")[0] == 405
    many_headers = {f"X-Header-{index}": "x" for index in range(120)}
    assert client.request("/", **many_headers)[0] == 431


def test_a_large_body_of_unknown_length_is_refused(client: Client) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=HANG_GUARD)
    headers = {"Cookie": client.cookie, "Content-Type": "application/json"}
    connection.request("POST", "/run", iter([b"x" * 500_000] * 3), headers, encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413 and b"at most 1000000 bytes" in response.read()
    connection.close()


@pytest.mark.parametrize("part", [b"", b'{"task": '], ids=["nothing", "a part"])
def test_an_incomplete_body_times_out(client: Client, monkeypatch: pytest.MonkeyPatch, part: bytes) -> None:
    monkeypatch.setattr("regard.server.guard.BODY_SECONDS", 0.05)
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=HANG_GUARD)
    connection.putrequest("POST", "/run")
    for name, value in (("Cookie", client.cookie), ("Content-Type", "application/json"), ("Content-Length", "1000")):
        connection.putheader(name, value)
    connection.endheaders(part)
    response = connection.getresponse()
    assert response.status == 408 and b"did not arrive within" in response.read()
    connection.close()


def with_options(options: bytes) -> bytes:
    return b'{"task": "translate", "text": "a", "options": ' + options + b"}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the request is not JSON (EOF"),
        (b"\xff", "the request is not JSON"),
        (b"[" * 100_000, "the request is not JSON (recursion limit"),
        (b"[1]", "the request should be an object, not [1]"),
        (b"{}", "the request has no task"),
        (b'{"task": "translate", "text": "a", "file": "/etc/passwd"}', "'file': allowed are task, text, options"),
        (b'{"task": "shell", "text": "a"}', "task should be one of translate, not 'shell'"),
        (b'{"task": ["translate"], "text": "a"}', "task should be a valid string, not ['translate']"),
        (b'{"task": "translate"}', "the request has no text"),
        (b'{"task": "translate", "text": " "}', "text should have at least one character"),
        (b'{"task": "translate", "text": "' + b"a" * 20_001 + b'"}', "text should have at most 20000 characters"),
        (with_options(b"[]"), "options should be an object, not []"),
        (with_options(b'{"beams": 4}'), "'beams' (did you mean beam?): allowed are beam, ablate, target_prefix"),
        (with_options(b'{"beam": 99}'), "options.beam should be less than or equal to 16, not 99"),
        (with_options(b'{"beam": 0}'), "options.beam should be greater than or equal to 1, not 0"),
        (with_options(b'{"beam": true}'), "options.beam should be a valid integer, not True"),
        (with_options(b'{"beam": "4"}'), "options.beam should be a valid integer, not '4'"),
        (with_options(b'{"beam": 4.0}'), "options.beam should be a valid integer, not 4.0"),
        (
            with_options(b'{"ablate": "encoder.0.self:1"}'),
            "options.ablate should be a valid array, not 'encoder.0.self:1'",
        ),
        (with_options(b'{"ablate": [1]}'), "options.ablate.0 should be a valid string, not 1"),
        (
            with_options(b'{"target_prefix": ["' + b"a" * 257 + b'"]}'),
            "options.target_prefix.0 should have at most 256 characters",
        ),
        (
            with_options(b'{"target_prefix": [' + b'"a", ' * 4_096 + b'"a"]}'),
            "options.target_prefix should have at most 4096 items",
        ),
        (with_options(b'{"ablate":' * 20 + b"1" + b"}" * 20), "options.ablate should be a valid array"),
    ],
)
def test_wrong_requests_are_refused_with_what_is_allowed(body: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        read_request(body, ["translate"])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_without_the_extra_the_message_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "regard.server.app")
    with pytest.raises(UsageError, match=r"needs fastapi: pip install 'regard\[serve\]'"):
        serve([whole_record()], open_browser=False)


def test_a_port_in_use_is_reported() -> None:
    with bind_loopback(0) as listener:
        listener.listen()
        with pytest.raises(UsageError, match="cannot be bound"):
            bind_loopback(listener.getsockname()[1])
