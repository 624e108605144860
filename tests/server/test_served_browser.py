"""The served page in a real browser: opened once by its token, matrices one by one, new records from a model."""

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
REQUESTS: list[tuple[str, str, Mapping[str, Any]]] = []


def run(task: str, text: str, options: Mapping[str, Any]) -> Record:
    REQUESTS.append((task, text, options))
    return whole_record(text, f"Antwort {len(REQUESTS)}", id=f"new{len(REQUESTS)}", title=text)


def long_record(count: int = 300) -> Record:
    text = RecordText(" ".join(["word"] * count), tuple([" word"] * count), tuple(range(count)))
    attention = AttentionRecord("encoder.self", "source", "source", distributions((2, 2, count, count), 1), (0, 1))
    return Record("a long text", {"source": text}, (attention,), id="long")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as instance:
        yield instance


@pytest.fixture
def tab(browser: Any) -> Iterator[Seen]:
    opened = Seen(browser, accept_downloads=True)
    yield opened
    opened.close()


def test_a_served_page_fetches_runs_and_compares(tab: Seen) -> None:
    with running(create_app([whole_record(), long_record()], run, token="once", title="served")) as port:
        home = f"http://127.0.0.1:{port}"
        tab.open(f"{home}/newest?token=once#view=matrix")
        assert "token" not in tab.page.url and tab.page.url.startswith(f"{home}/r/{whole_record().id}#view=matrix")
        assert tab.text(".query-label") == "Das"
        tab.keys("ArrowUp")
        assert any("/a/decoder.cross/0/2" in url for url in tab.asked)
        with tab.page.expect_download() as download:
            tab.keys("f")
        assert download.value.suggested_filename == "matrix.svg"
        assert any("figure.svg?view=matrix" in url for url in tab.asked)

        tab.page.fill(".run-text", "zwei Hunde")
        tab.page.click(".run-form button")
        tab.page.wait_for_function("() => document.querySelector('.texts').innerText.includes('Antwort 1')")
        assert REQUESTS[-1] == ("translate", "zwei Hunde", {})
        tab.settle()
        tab.page.locator("body").click(position={"x": 3, "y": 300})
        tab.keys("4", "ArrowRight")
        tab.page.click(".bar-list li button >> nth=0")
        tab.page.wait_for_function("() => document.querySelector('.texts').innerText.includes('Antwort 2')")
        assert REQUESTS[-1] == ("translate", "zwei Hunde", {"target_prefix": ["Antw", " other"]})
        tab.settle()
        tab.page.locator("body").click(position={"x": 3, "y": 300})
        tab.keys("8")
        tab.page.click(".switches button >> nth=1")
        tab.page.click("text=Run without 1")
        tab.page.wait_for_function("() => document.querySelector('.stage').dataset.view === 'compare'")
        assert REQUESTS[-1][2] == {"ablate": ["decoder.0.cross:1"]}

        tab.open(f"{home}/r/long#view=flow")
        tab.page.wait_for_selector(".stage .heatmap")
        assert any("/flow/encoder.self" in url for url in tab.asked)
        tab.page.goto(home)
        assert "a long text" in tab.text("body")


def test_the_address_has_no_query_before_the_weights_arrive(tab: Seen) -> None:
    held: list[Any] = []
    is_holding = True
    tab.page.route("**/a/**", lambda route: held.append(route) if is_holding else route.continue_())
    with running(create_app([whole_record()], token="once")) as port:
        tab.page.goto(f"http://127.0.0.1:{port}/newest?token=once#view=matrix")
        tab.page.wait_for_function("() => location.hash.includes('attention=')")
        assert "&q=" not in tab.page.url
        is_holding = False
        for route in held:
            route.continue_()
        tab.page.wait_for_selector(".stage .heatmap")
        tab.keys("ArrowRight")
        tab.page.wait_for_function("() => location.hash.includes('&q=1')")


def test_neighbouring_matrices_are_prefetched(tab: Seen) -> None:
    text = RecordText("two dogs", (" two", " dogs"), (0, 1))
    attention = AttentionRecord("encoder.self", "source", "source", distributions((4, 4, 2, 2), 1), (0, 1, 2, 3))
    with running(create_app([Record("small", {"source": text}, (attention,), id="small")], token="once")) as port:

        def fetched() -> set[str]:
            return {url.split("encoder.self/")[-1] for url in tab.asked if "/a/" in url}

        def wait_for(count: int) -> set[str]:
            deadline = time.monotonic() + PAGE_GUARD
            while len(fetched()) < count and time.monotonic() < deadline:
                tab.page.wait_for_timeout(20)
            return fetched()

        tab.open(f"http://127.0.0.1:{port}/newest?token=once#view=matrix&layer=1&heads=1")
        neighbourhood = {"1/1", "1/2", "0/1", "1/0", "2/1"}
        assert wait_for(5) == neighbourhood
        tab.page.locator(".square").nth(15).hover()
        assert wait_for(6) == neighbourhood | {"3/3"}
        tab.page.mouse.down()
        tab.page.mouse.up()
        tab.settle()
        assert tab.text(".site").startswith("encoder.3.self:3")
        assert wait_for(8) == neighbourhood | {"3/3", "3/2", "2/3"}


def test_the_page_follows_a_training(tab: Seen) -> None:
    first = whole_record(provenance={"model": "run", "epoch": 1}, id="e1")
    store = RecordStore()
    with running(create_app(store, token="once", is_live=True)) as port:
        tab.page.goto(f"http://127.0.0.1:{port}/newest?token=once")
        assert "no record yet" in tab.text("body")
        store.replace(first)
        tab.page.wait_for_selector("html[data-ready]")
        tab.settle()
        reversed_heads = replace(first.attention[0], stored=np.ascontiguousarray(first.attention[0].weights[:, ::-1]))
        store.replace(
            replace(
                first,
                id="e2",
                provenance={"model": "run", "epoch": 2},
                attention=(reversed_heads, *first.attention[1:]),
            )
        )
        tab.page.wait_for_function("() => document.querySelector('.about').textContent.includes('epoch 2')")
        tab.keys("9")
        assert tab.count(".stage input[type=range]") == 1
        tab.page.select_option(".stage select", index=1)
        tab.settle()
        assert tab.count(".stage .heatmap") == 3  # both, and their difference


def test_hostile_strings_stay_text_when_served(tab: Seen) -> None:
    records = hostile_records(hostile_strings(100))
    with running(create_app(records, token="once", title="<script>window.owned=1</script>")) as port:
        tab.open(f"http://127.0.0.1:{port}/newest?token=once#unit=subword")
        for key in "14.1":
            tab.keys(key)
        assert tab.page.evaluate("window.owned") is None and not tab.count("img, iframe, base")
        tab.page.goto(f"http://127.0.0.1:{port}/")
        assert tab.page.evaluate("window.owned") is None and not tab.count("script, img, iframe, base")
        assert tab.count("ol.records li") == 2
