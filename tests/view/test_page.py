from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from regard.errors import UsageError
from regard.view.page import embedded, page
from regard.view.record import Record
from tests.view.samples import sample_record

PAYLOADS = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "{{script}} {{data}}",
    "<!--<script>",
    "javascript:alert(1)",
    "\u2028\u2029\u202e&lt;b&gt;",
    "]]>{{title}}",
]


class Elements(HTMLParser):
    """Lists the elements of a page with their attributes, and the text of its scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open = False
        self.text: dict[int, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open = True

    def handle_endtag(self, tag: str) -> None:
        self.open = False

    def handle_data(self, data: str) -> None:
        place = len(self.elements) - 1
        if self.open:
            self.text[place] = self.text.get(place, "") + data

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, self.text.get(place, ""))
            for place, (name, attributes) in enumerate(self.elements)
            if name == tag
        ]


def parsed(text: str) -> Elements:
    found = Elements()
    found.feed(text)
    return found


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_page_is_whole_and_its_policy_allows_only_its_own_script_and_style() -> None:
    found = parsed(page([sample_record()], title="dates"))
    (policy,) = [one["content"] for one, _ in found.of("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    data, script = found.of("script")
    assert data[0]["type"] == "application/json"
    assert policy is not None
    assert f"script-src 'sha256-{digest(script[1])}'" in policy
    assert f"style-src 'sha256-{digest(found.of('style')[0][1])}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.search(r"^(import|export) ", script[1], re.MULTILINE)


def test_nothing_is_fetched_from_anywhere() -> None:
    text = page([sample_record()], title="dates")
    assert "http://" not in text and "https://" not in text
    for _, attributes in parsed(text).elements:
        assert "src" not in attributes
        assert attributes.get("href", "data:,") == "data:,"


def test_records_are_read_back_from_the_page() -> None:
    records = [sample_record(), sample_record("due cani", "zwei Hunde")]
    data = json.loads(parsed(page(records, title="two")).of("script")[0][1])
    assert data["regard"] == 1
    again = [Record.from_dict(one) for one in data["records"]]
    assert [one.texts for one in again] == [one.texts for one in records]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_never_becomes_markup(payload: str) -> None:
    plain = page([sample_record()], title="dates")
    attacked = page([sample_record(payload, payload, payload)], title=payload)
    assert [tag for tag, _ in parsed(attacked).elements] == [tag for tag, _ in parsed(plain).elements]
    data = json.loads(parsed(attacked).of("script")[0][1])
    assert data["title"] == payload
    assert data["records"][0]["texts"]["source"]["text"] == payload


def test_embedded_json_means_the_same() -> None:
    value = {"text": "<&>\u2028né", "number": 1.5}
    assert json.loads(embedded(value)) == value
    assert not set("<>&\u2028") & set(embedded(value))


def test_a_page_without_records_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one record"):
        page([], title="none")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium to open the page")
def test_a_browser_draws_the_page_and_runs_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    hostile = [sample_record(payload, payload) for payload in PAYLOADS]
    file.write_text(page([sample_record(), *hostile], title="dates <b>"), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=2000", "--enable-logging=stderr", "--dump-dom", f"file://{file}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = parsed(done.stdout)
    assert len(found.of("canvas")) == 1 + 1 + 6  # the matrix, the scale, a thumbnail for each head
    assert len([one for one, _ in found.of("button") if one.get("class") == "thumb"]) == 6
    assert found.of("h1")[0][1] == "dates <b>"
    assert not found.of("img") and not found.of("svg") and not found.of("b")[1:]
    assert not re.search(r"CONSOLE|Uncaught|Refused", done.stderr), done.stderr
    assert any("looks at" in text for _, text in found.of("p"))
