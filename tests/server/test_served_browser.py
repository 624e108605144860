"""The served page in a real browser: opened once by its token, weights one by one, new records from a model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the served page needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the served page needs the extra `serve`")

from regard.server.app import create_app
from regard.server.store import RecordStore
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from tests.scale import PAGE_GUARD
from tests.server.running import running
from tests.view.browser import Seen, needs_browser, started
from tests.view.hostile import hostile_records, hostile_strings
from tests.view.samples import distributions, whole_record

needs_browser()
ASKED: list[tuple[str, str, Mapping[str, Any]]] = []


def run(task: str, text: str, options: Mapping[str, Any]) -> Record:
    ASKED.append((task, text, options))
    return whole_record(text, f"Antwort {len(ASKED)}", id=f"new{len(ASKED)}", title=text)


def long_record(count: int = 300) -> Record:
    side = RecordText(" ".join(["word"] * count), tuple([" word"] * count), tuple(range(count)))
    seen = AttentionRecord("encoder.self", "source", "source", distributions((2, 2, count, count), 1), (0, 1))
    return Record("a long text", {"source": side}, (seen,), id="long")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as found:
        yield found


@pytest.fixture
def seen(browser: Any) -> Iterator[Seen]:
    made = Seen(browser, accept_downloads=True)
    yield made
    made.close()


def test_a_served_page_fetches_runs_and_compares(seen: Seen) -> None:
    with running(create_app([whole_record(), long_record()], run, token="once", title="served")) as port:
        home = f"http://127.0.0.1:{port}"
        seen.open(f"{home}/newest?token=once#view=align")
        assert "token" not in seen.page.url and seen.page.url.startswith(f"{home}/r/{whole_record().id}#view=align")
        assert seen.text(".query-label") == "Das"
        seen.keys("ArrowUp")
        assert any("/a/decoder.cross/0/2" in one for one in seen.asked)
        with seen.page.expect_download() as found:
            seen.keys("f")
        assert found.value.suggested_filename == "align.svg"
        assert any("figure.svg?view=align" in one for one in seen.asked)

        seen.page.fill(".run-text", "zwei Hunde")
        seen.page.click(".run-form button")
        seen.page.wait_for_function("() => document.querySelector('.texts').innerText.includes('Antwort 1')")
        assert ASKED[-1] == ("translate", "zwei Hunde", {})
        seen.settle()
        seen.page.locator("body").click(position={"x": 3, "y": 300})
        seen.keys("4", "ArrowRight")
        seen.page.click(".bar-list li button >> nth=0")
        seen.page.wait_for_function("() => document.querySelector('.texts').innerText.includes('Antwort 2')")
        assert ASKED[-1] == ("translate", "zwei Hunde", {"prefix": ["Antw", " other"]})
        seen.settle()
        seen.page.locator("body").click(position={"x": 3, "y": 300})
        seen.keys("8")
        seen.page.click(".switches button >> nth=1")
        seen.page.click("text=Run without 1")
        seen.page.wait_for_function("() => document.querySelector('.stage').dataset.view === 'compare'")
        assert ASKED[-1][2] == {"off": ["decoder.0.cross:1"]}

        seen.open(f"{home}/r/long#view=flow")
        seen.page.wait_for_selector(".stage .heatmap")
        assert any("/flow/encoder.self" in one for one in seen.asked)
        seen.page.goto(home)
        assert "a long text" in seen.text("body")


def test_what_may_be_asked_for_next_is_brought_beforehand(seen: Seen) -> None:
    side = RecordText("two dogs", (" two", " dogs"), (0, 1))
    weights = AttentionRecord("encoder.self", "source", "source", distributions((4, 4, 2, 2), 1), (0, 1, 2, 3))
    with running(create_app([Record("small", {"source": side}, (weights,), id="small")], token="once")) as port:

        def matrices() -> set[str]:
            return {one.split("encoder.self/")[-1] for one in seen.asked if "/a/" in one}

        def brought(count: int) -> set[str]:
            until = time.monotonic() + PAGE_GUARD
            while len(matrices()) < count and time.monotonic() < until:
                seen.page.wait_for_timeout(20)
            return matrices()

        seen.open(f"http://127.0.0.1:{port}/newest?token=once#view=align&layer=1&heads=1")
        around = {"1/1", "1/2", "0/1", "1/0", "2/1"}
        assert brought(5) == around
        seen.page.locator(".square").nth(15).hover()
        assert brought(6) == around | {"3/3"}
        seen.page.mouse.down()
        seen.page.mouse.up()
        seen.settle()
        assert seen.text(".site").startswith("encoder.3.self:3")
        assert brought(8) == around | {"3/3", "3/2", "2/3"}


def test_the_page_follows_a_training(seen: Seen) -> None:
    first = whole_record(made={"model": "run", "epoch": 1}, id="e1")
    shelf = RecordStore()
    with running(create_app(shelf, token="once", is_live=True)) as port:
        seen.page.goto(f"http://127.0.0.1:{port}/newest?token=once")
        assert "no record yet" in seen.text("body")
        shelf.replace(first)
        seen.page.wait_for_selector("html[data-ready]")
        seen.settle()
        formed = replace(first.attention[0], kept=np.ascontiguousarray(first.attention[0].weights[:, ::-1]))
        shelf.replace(
            replace(first, id="e2", made={"model": "run", "epoch": 2}, attention=(formed, *first.attention[1:]))
        )
        seen.page.wait_for_function("() => document.querySelector('.about').textContent.includes('epoch 2')")
        seen.keys("9")
        assert seen.count(".stage input[type=range]") == 1
        seen.page.select_option(".stage select", index=1)
        seen.settle()
        assert seen.count(".stage .heatmap") == 3  # both, and their difference


def test_hostile_strings_stay_text_when_served(seen: Seen) -> None:
    records = hostile_records(hostile_strings(100))
    with running(create_app(records, token="once", title="<script>window.owned=1</script>")) as port:
        seen.open(f"http://127.0.0.1:{port}/newest?token=once#unit=piece")
        for key in "14.1":
            seen.keys(key)
        assert seen.page.evaluate("window.owned") is None and not seen.count("img, iframe, base")
        seen.page.goto(f"http://127.0.0.1:{port}/")
        assert seen.page.evaluate("window.owned") is None and not seen.count("script, img, iframe, base")
        assert seen.count("ol.records li") == 2
