"""The served page over real HTTP on this machine: what it lets in, what it gives, what it refuses."""

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
from tests.server.running import running
from tests.view.samples import answered_record, whole_record

TOKEN = "a-token-for-the-tests"


def run(task: str, text: str, options: Mapping[str, Any]) -> Record:
    if text == "bad":
        raise UsageError("this text is not to its taste")
    return whole_record(text, "neu", id="new", made={"off": options.get("off", [])})


Answer = tuple[int, dict[str, str], bytes]


class Visitor:
    """Speaks HTTP to the server, with or without its cookie."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""

    def ask(
        self, path: str, method: str = "GET", body: object = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        given = {"Host": f"127.0.0.1:{self.port}", **({"Cookie": self.cookie} if self.cookie else {})}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        if data is not None and "Content-Type" not in given:
            given["Content-Type"] = "application/json"
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_GUARD)
        line.request(method, path, data, given)
        answer = line.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        line.close()
        return found


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running(create_app([whole_record(), answered_record()], run, token=TOKEN, title="tests")) as found:
        yield found


@pytest.fixture(scope="module")
def guest(port: int) -> Visitor:
    visitor = Visitor(port)
    status, headers, _ = visitor.ask(f"/newest?token={TOKEN}&view=align")
    assert (status, headers["location"]) == (303, "/newest?view=align")
    assert "HttpOnly" in headers["set-cookie"] and "SameSite=Strict" in headers["set-cookie"]
    visitor.cookie = headers["set-cookie"].partition(";")[0]
    return visitor


def test_without_the_token_nothing_is_given(port: int, guest: Visitor) -> None:
    stranger = Visitor(port)
    for path in ("/", "/records.json", "/app/page.js", "/newest?token=wrong", "/run"):
        status, _, body = stranger.ask(path)
        assert status == 403 and b"address that was printed" in body
    stranger.cookie = guest.cookie.partition("=")[0] + "=wrong"
    assert stranger.ask("/")[0] == 403


def test_the_token_opens_once(port: int, guest: Visitor) -> None:
    assert Visitor(port).ask(f"/?token={TOKEN}")[0] == 403
    assert guest.ask(f"/?token={TOKEN}")[0] == 303  # who is known already is let in


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "169.254.1.1:80"])
def test_other_names_of_this_machine_are_refused(guest: Visitor, host: str) -> None:
    status, headers, body = guest.ask("/records.json", Host=host)
    assert status in (400, 403)
    assert "answers to 127.0.0.1, localhost, [::1] only" in json.loads(body)["error"]
    assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST:{port}", "[::1]:{port}"])
def test_all_names_of_this_machine_are_known(guest: Visitor, host: str) -> None:
    assert guest.ask("/records.json", Host=host.format(port=guest.port))[0] == 200


def test_other_origins_are_refused_and_none_is_invited(guest: Visitor) -> None:
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{guest.port}", "http://127.0.0.1:1"):
        assert guest.ask("/records.json", Origin=origin)[0] == 403
    status, headers, _ = guest.ask("/records.json", Origin=f"http://127.0.0.1:{guest.port}")
    assert status == 200
    assert not [name for name in headers if name.startswith("access-control")]


def test_every_answer_carries_a_strict_policy(guest: Visitor) -> None:
    for path in ("/", "/records.json", "/app/page.css", "/nowhere"):
        _, headers, _ = guest.ask(path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_records_pages_and_modules_are_given(guest: Visitor) -> None:
    about = json.loads(guest.ask("/records.json")[2])
    assert [one["title"] for one in about["records"]][-2:] == ["The animal was too tired", "Who was tired?"]
    assert about["run"] and not about["live"]
    name = about["records"][-2]["id"]
    status, headers, page = guest.ask(f"/r/{name}")
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert (
        b'src="/app/page.js"' in page
        and name.encode() in page
        and not re.search(rb"<script(?![^>]* (src|type=.app))", page)
    )
    status, headers, script = guest.ask("/app/page.js")
    assert status == 200 and headers["content-type"].startswith("text/javascript") and b"import {" in script
    assert guest.ask("/app/page.html")[0] == guest.ask("/app/..%2fpage.py")[0] == 404
    assert b"Who was tired?" in guest.ask("/")[2]


def test_matrices_come_one_by_one_as_bytes(guest: Visitor) -> None:
    record = whole_record()
    values = json.loads(guest.ask(f"/r/{record.id}.json")[2])
    block = values["attention"][0]["blocks"][1]
    assert "data" not in block
    status, headers, body = guest.ask(f"{block['href']}/2")
    assert status == 200 and headers["content-type"] == "application/octet-stream"
    assert body == to_root8(record["decoder.cross"].matrix(1, 2)).tobytes()
    count = len(record.texts["source"].tokens)
    flow = np.frombuffer(guest.ask(f"/r/{record.id}/flow/encoder.self")[2], np.uint8).reshape(count, count)
    assert np.allclose(((flow / 255) ** 2).sum(axis=1), 1, atol=0.05)


def test_figures_are_drawn_by_python(guest: Visitor) -> None:
    status, headers, body = guest.ask(f"/r/{whole_record().id}/figure.svg?view=align&attn=decoder.cross&layer=1&head=2")
    assert status == 200 and headers["content-type"] == "image/svg+xml" and body.startswith(b"<svg")
    assert guest.ask(f"/r/{whole_record().id}/figure.svg?view=nothing")[0] == 422


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
def test_what_is_not_there_is_said(guest: Visitor, path: str, status: int, message: str) -> None:
    found, headers, body = guest.ask(path.replace("{id}", whole_record().id))
    assert found == status and headers["content-type"].startswith("application/json")
    assert message in json.loads(body)["error"]


def test_a_text_is_run_and_its_steps_arrive_as_lines(guest: Visitor) -> None:
    asked = {"task": "translate", "text": "zwei Hunde", "options": {"off": ["encoder.0.self:1"]}}
    status, headers, body = guest.ask("/run", "POST", asked)
    assert status == 200 and headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in body.splitlines()]
    assert lines[0] == {"state": "running"} and lines[-1] == {"id": "new"} and "step" in lines[1]
    assert json.loads(guest.ask("/records.json")[2])["records"][0]["made"]["off"] == ["encoder.0.self:1"]
    body = guest.ask("/run", "POST", {"task": "translate", "text": "bad"})[2]
    assert json.loads(body.splitlines()[-1]) == {"error": "this text is not to its taste"}


def test_the_same_text_again_stands_beside_the_first() -> None:
    shelf = RecordStore([whole_record(), whole_record()])
    shelf.add(whole_record())
    names = [one["id"] for one in shelf.summaries()]
    assert len(set(names)) == 3 and all(shelf.get(name).id == name for name in names)


def test_only_small_json_is_read(guest: Visitor) -> None:
    assert guest.ask("/run", "POST", b"task=translate", Content_Type="application/x-www-form-urlencoded")[0] == 415
    status, headers, body = guest.ask("/run", "POST", b"x" * 1_000_001)
    assert status == 413 and json.loads(body) == {"error": "too much at once: at most 1000000 bytes"}
    assert "default-src 'none'" in headers["content-security-policy"]
    assert guest.ask("/run", "DELETE")[0] == 405
    many = {f"X-Header-{number}": "x" for number in range(120)}
    assert guest.ask("/", **many)[0] == 431


def test_a_large_body_of_unknown_length_is_refused(guest: Visitor) -> None:
    line = http.client.HTTPConnection("127.0.0.1", guest.port, timeout=HANG_GUARD)
    headers = {"Cookie": guest.cookie, "Content-Type": "application/json"}
    line.request("POST", "/run", iter([b"x" * 500_000] * 3), headers, encode_chunked=True)
    answer = line.getresponse()
    assert answer.status == 413 and b"at most 1000000 bytes" in answer.read()
    line.close()


def test_a_body_that_does_not_end_is_given_up(guest: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.server.guard.BODY_SECONDS", 0.05)
    line = http.client.HTTPConnection("127.0.0.1", guest.port, timeout=HANG_GUARD)
    line.putrequest("POST", "/run")
    for name, value in (("Cookie", guest.cookie), ("Content-Type", "application/json"), ("Content-Length", "99")):
        line.putheader(name, value)
    line.endheaders(b'{"task": ')
    answer = line.getresponse()
    assert answer.status == 408 and b"did not arrive within" in answer.read()
    line.close()


def options(text: bytes) -> bytes:
    return b'{"task": "translate", "text": "a", "options": ' + text + b"}"


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
        (options(b"[]"), "options should be an object, not []"),
        (options(b'{"beams": 4}'), "'beams' (did you mean beam?): allowed are beam, off, prefix"),
        (options(b'{"beam": 99}'), "options.beam should be less than or equal to 16, not 99"),
        (options(b'{"beam": 0}'), "options.beam should be greater than or equal to 1, not 0"),
        (options(b'{"beam": true}'), "options.beam should be a valid integer, not True"),
        (options(b'{"beam": "4"}'), "options.beam should be a valid integer, not '4'"),
        (options(b'{"beam": 4.0}'), "options.beam should be a valid integer, not 4.0"),
        (options(b'{"off": "encoder.0.self:1"}'), "options.off should be a valid array, not 'encoder.0.self:1'"),
        (options(b'{"off": [1]}'), "options.off.0 should be a valid string, not 1"),
        (options(b'{"prefix": ["' + b"a" * 257 + b'"]}'), "options.prefix.0 should have at most 256 characters"),
        (options(b'{"prefix": [' + b'"a", ' * 4_096 + b'"a"]}'), "options.prefix should have at most 4096 items"),
        (options(b'{"off":' * 20 + b"1" + b"}" * 20), "options.off should be a valid array"),
    ],
)
def test_requests_to_a_model_are_closed(body: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        read_request(body, ["translate"])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "regard.server.app")
    with pytest.raises(UsageError, match=r"needs fastapi: pip install 'regard\[serve\]'"):
        serve([whole_record()], open_browser=False)


def test_a_port_in_use_is_said() -> None:
    with bind_loopback(0) as taken:
        taken.listen()
        with pytest.raises(UsageError, match="cannot be taken"):
            bind_loopback(taken.getsockname()[1])
