"""The page in a real browser: every view, keys, pointing, links, figures, themes, names for screen readers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from tests.view.browser import Seen, needs_browser, started, written
from tests.view.hostile import hostile_records, hostile_strings
from tests.view.samples import answered_record, distributions, sample_record, whole_record

needs_browser()
VIEWS = ["look", "heads", "align", "steps", "maths", "place", "verdict", "flow", "compare"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    whole = whole_record()
    turned = replace(whole.attention[0], kept=whole.attention[0].weights[:, ::-1])
    other = replace(whole, id="other", title="another", attention=(turned, *whole.attention[1:]))
    return written([whole, other, answered_record()], tmp_path_factory.mktemp("page"))


@pytest.fixture
def seen(browser: Any) -> Iterator[Seen]:
    made = Seen(browser, offline=True, accept_downloads=True)
    yield made
    made.close()


def test_every_view_is_drawn_and_has_a_table(seen: Seen, address: str) -> None:
    seen.open(f"{address}#with=1")
    for number, view in enumerate(VIEWS, start=1):
        seen.keys(str(number))
        assert seen.page.get_attribute(".stage", "data-view") == view
        assert not seen.count(".stage .notice"), view
        assert seen.count(".stage canvas, .stage svg, .stage .token, .stage .bar-list li"), view
        seen.keys("v")
        assert seen.count(".stage table tbody tr"), view
        assert seen.count(".stage table caption") == 1
        seen.keys("v")


def test_weights_shown_are_those_of_the_record(seen: Seen, address: str) -> None:
    seen.open(f"{address}#view=align&attn=decoder.cross&layer=0&heads=1&unit=piece&table=yes")
    weights = whole_record()["decoder.cross"].matrix(0, 1)
    shown = seen.page.eval_on_selector_all(
        "tbody tr", "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )
    values = np.array([[0.0 if cell == "·" else float(cell) for cell in row] for row in shown])
    assert values.shape == weights.shape
    assert np.abs(values - weights).max() < 0.006  # two digits, and the page's code


def test_keys_move_through_words_layers_and_heads(seen: Seen, address: str) -> None:
    seen.open(address)
    assert seen.live("looks at").startswith("Das looks at The 1.00")
    seen.keys("ArrowRight")
    assert seen.live("Tier").startswith("Tier looks at")
    seen.keys("ArrowUp")
    assert "layer 0 head 2" in seen.live("layer 0")
    seen.keys("[", "[")
    assert "head 0" in seen.live("head 0")
    seen.keys("b")
    assert "layer 1 head 2" in seen.live("layer 1 head 2")
    seen.keys("k")
    assert seen.page.get_attribute(".map .segments button:last-child", "aria-pressed") == "true"
    seen.keys("Escape", ".")
    assert "another" in seen.page.eval_on_selector("select[aria-label=record]", "one => one.selectedOptions[0].text")
    seen.keys("?")
    assert seen.page.locator("dialog[open]").count() == 1
    seen.page.locator("dialog button").click()
    seen.keys("/")
    seen.page.keyboard.type("tired")
    assert seen.text(".query-label") == "tired"


def test_words_pieces_and_specials(seen: Seen, address: str) -> None:
    seen.open(f"{address}#view=look&attn=encoder.self")
    assert seen.count(".lines-view .from .token") == 6  # five words and the end mark
    seen.keys("w")
    assert seen.count(".lines-view .from .token") == 8  # animal and tired are two pieces each
    seen.keys("x")
    assert seen.count(".lines-view .from .token") == 7
    seen.keys("w")
    assert seen.count(".lines-view .from .token") == 5


def test_normalisations_are_named(seen: Seen, address: str) -> None:
    seen.open(f"{address}#view=align&layer=0&heads=0")
    names = []
    for _ in range(4):
        names.append(
            seen.page.eval_on_selector("select[aria-label^=normalisation]", "one => one.selectedOptions[0].text")
        )
        seen.keys("n")
    assert names == ["raw", "linear", "row max", "without specials"]


def test_pointing_tells_and_a_click_pins(seen: Seen, address: str) -> None:
    seen.open(f"{address}#view=align")
    row, other = (seen.page.locator(f".label.row[data-row='{place}']").bounding_box() for place in (1, 3))
    column = seen.page.locator(".label.column[data-column='1']").bounding_box()
    assert row and other and column
    x = column["x"] + column["width"] / 2
    seen.page.mouse.move(x, row["y"] + row["height"] / 2)
    seen.settle()
    assert seen.text(".tip").split() == ["Tier", "→", "animal", "1.00"]
    assert seen.text(".query-label") == "Tier"
    seen.page.mouse.down()
    seen.page.mouse.up()
    seen.page.mouse.move(x, other["y"] + other["height"] / 2)
    seen.settle()
    assert seen.text(".query-label") == "Tier"  # pinned: pointing elsewhere does not look from there
    seen.keys("Escape", "1")
    seen.page.hover(".lines-view .from .token:nth-child(3)")
    assert seen.text(".query-label") == "war"
    assert seen.count(".lines-view svg path")
    seen.page.click(".lines-view .from .token:nth-child(3)")
    seen.page.click(".lines-view .from .token:nth-child(5)", modifiers=["Shift"])
    assert seen.text(".query-label") == "war müde"
    seen.page.wait_for_function("() => location.hash.includes('pin=2%2C4')")


def test_several_heads_have_a_colour_and_a_number_each(seen: Seen, address: str) -> None:
    seen.open(f"{address}#view=look&layer=0&heads=0")
    seen.page.click('.square[data-layer="0"][data-head="1"]', modifiers=["Shift"])
    seen.settle()
    assert seen.count('.square[aria-selected="true"]') == 2
    assert seen.count(".inspector .site .dot") == 2
    assert (
        len(
            set(
                seen.page.eval_on_selector_all(
                    ".lines-view svg path", "all => all.map(one => one.getAttribute('stroke'))"
                )
            )
        )
        == 2
    )


def test_a_link_brings_one_to_the_same_place(seen: Seen, address: str) -> None:
    seen.open(f"{address}#view=align&attn=encoder.self&layer=0&heads=0,2&q=3&unit=piece&norm=max&theme=dark&turned=yes")
    assert seen.text(".query-label").lstrip("▁") == "was"
    assert seen.count('.square[aria-selected="true"]') == 2
    assert seen.page.get_attribute("html", "data-theme") == "dark"
    seen.keys("ArrowDown", "2", "t")
    seen.page.wait_for_function("() => location.hash.includes('view=heads') && location.hash.includes('theme=light')")
    link = seen.page.url
    assert "layer=1" in link and "heads=0%2C2" in link and "norm=max" in link
    seen.open(link)
    assert seen.page.get_attribute(".stage", "data-view") == "heads"
    seen.open(f"{address}#view=nothing&attn=none&layer=99&heads=77&q=999&pin=500&with=9&record=40")
    assert not seen.count(".stage .notice")


@pytest.mark.parametrize("view", ["align", "look", "steps"])
def test_a_figure_is_saved_with_its_text_as_text(seen: Seen, address: str, view: str, tmp_path: Path) -> None:
    seen.open(f"{address}#view={view}")
    with seen.page.expect_download() as found:
        seen.keys("f")
    assert found.value.suggested_filename == f"{view}.svg"
    found.value.save_as(tmp_path / "figure.svg")
    root = ElementTree.parse(tmp_path / "figure.svg").getroot()
    words = " ".join(text for text in root.itertext())
    assert root.tag.endswith("svg") and "Tier" in words
    assert "javascript" not in (tmp_path / "figure.svg").read_text(encoding="utf-8")


def test_themes_follow_the_system_and_the_switch(browser: Any, address: str) -> None:
    seen = Seen(browser, offline=True, color_scheme="dark")
    seen.open(address)
    ground = "getComputedStyle(document.body).backgroundColor"
    assert seen.page.evaluate(ground) == "rgb(19, 21, 26)"
    seen.keys("t")
    assert seen.page.evaluate(ground) == "rgb(252, 252, 250)"
    seen.close()


def test_names_for_screen_readers(seen: Seen, address: str) -> None:
    seen.open(f"{address}#with=1")
    nameless = """() => [...document.querySelectorAll(
        'button, input, select, [role=grid], [role=gridcell], [role=img], nav, aside')]
        .filter((one) => one.offsetParent !== null && !(one.getAttribute('aria-label') || one.textContent.trim()))
        .map((one) => one.outerHTML.slice(0, 120))"""
    for number in range(1, 10):
        seen.keys(str(number))
        assert seen.page.evaluate(nameless) == []
    seen.keys("3")
    grid = seen.page.locator(".heatmap[role=grid]")
    assert (grid.get_attribute("aria-rowcount"), grid.get_attribute("aria-colcount")) == ("6", "6")
    seen.page.locator(".heatmap [role=gridcell]").focus()
    seen.keys("ArrowDown", "ArrowRight")
    cell = seen.page.locator(".heatmap [role=gridcell]").get_attribute("aria-label")
    assert (cell or "").split() == ["Tier", "→", "animal", "1.00"]
    seen.page.locator(".square[tabindex='0']").focus()
    seen.keys("ArrowUp")
    assert seen.page.evaluate("document.activeElement.dataset.layer") == "0"


def test_maths_adds_up_and_steps_with_space(seen: Seen, address: str) -> None:
    seen.open(f"{address}#view=maths&attn=encoder.self&layer=1&heads=2")
    weights = seen.page.eval_on_selector_all(".math-table .weight", "all => all.map(one => Number(one.textContent))")
    assert abs(sum(weights) - 1) < 0.03
    seen.page.locator("body").click(position={"x": 5, "y": 5})
    seen.keys("Space")
    assert seen.text(".math-steps [aria-pressed=true]") == "1 query"
    seen.keys("Space", "Space")
    assert seen.text(".math-steps [aria-pressed=true]") == "3 score"


def test_steps_walk_and_beams_are_drawn(seen: Seen, address: str) -> None:
    seen.open(f"{address}#view=steps")
    seen.keys("ArrowRight", "ArrowRight")
    assert "step 3 of 6" in seen.text(".stage")
    assert seen.count(".stage .token.later") == 3
    assert seen.count(".beams .beam") == 12 and seen.count(".beams .beam.on") == 6
    assert seen.count(".stage .bar-list .selected") == 1


def test_answers_are_shown_in_their_passage(seen: Seen, address: str) -> None:
    seen.open(f"{address}#view=verdict&record=2")
    assert seen.text(".token.in-span") == "anim"
    assert seen.count(".plot") == 2
    seen.page.hover(".answer >> nth=1")
    seen.settle()
    assert seen.count(".token.in-span") == 3
    assert "no answer in the passage: 5" in seen.text(".stage")


def test_what_a_record_lacks_is_said_in_words(seen: Seen, tmp_path: Path) -> None:
    seen.open(written([sample_record()], tmp_path))
    for number in (4, 5, 6, 7, 9):
        seen.keys(str(number))
        assert len(seen.text(".stage .notice")) > 30
    bare = Record("nothing", {"source": RecordText("a b", ("a", "b"), (0, 1))}, ())
    seen.open(written([bare], tmp_path))
    for number in range(1, 10):
        seen.keys(str(number), "v", "v")
        assert len(seen.text(".stage .notice")) > 30


def test_right_to_left_texts_run_from_the_right(seen: Seen, tmp_path: Path) -> None:
    source = RecordText("القط نام", ("القط", " نام"), (0, 1), direction="rtl")
    weights = np.array([[[[0.9, 0.1], [0.1, 0.9]]]], dtype=np.float32)
    target = RecordText("the cat", ("the", " cat"), (0, 1))
    record = Record(
        "", {"source": source, "target": target}, (AttentionRecord("decoder.cross", "target", "source", weights, (0,)),)
    )
    seen.open(f"{written([record], tmp_path)}#view=align")
    places = seen.page.eval_on_selector_all(
        ".label.column", "all => all.map(one => [one.textContent, Number(one.getAttribute('x'))])"
    )
    assert sorted(places, key=lambda one: -one[1])[0][0] == "القط"
    seen.open(f"{written([record], tmp_path)}#view=look&form=text")
    assert seen.page.get_attribute(".running p", "dir") == "rtl"


def test_a_phone_has_one_column_and_nothing_sticks_out(browser: Any, address: str) -> None:
    seen = Seen(browser, offline=True, viewport={"width": 390, "height": 800}, has_touch=True, reduced_motion="reduce")
    seen.open(f"{address}#with=1")
    for number, view in enumerate(VIEWS, start=1):
        seen.keys(str(number))
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390, view
    assert seen.page.evaluate("getComputedStyle(document.querySelector('.columns')).display") == "block"
    seen.close()


def test_attention_is_followed_through_many_layers(seen: Seen, tmp_path: Path) -> None:
    side = RecordText("a b c d", ("a", " b", " c", " d"), (0, 1, 2, 3))
    weights = distributions((10, 8, 4, 4), 1)
    record = Record(
        "deep", {"source": side}, (AttentionRecord("encoder.self", "source", "source", weights, tuple(range(10))),)
    )
    seen.open(f"{written([record], tmp_path)}#view=flow&table=yes")
    seen.keys("v")
    seen.page.wait_for_selector(".stage .heatmap")
    seen.keys("v")
    shown = seen.page.eval_on_selector_all("tbody td", "cells => cells.map(cell => Number(cell.textContent))")
    rolled = np.eye(4)
    for layer in weights.astype(np.float64):
        rolled = (layer.mean(axis=0) / 2 + np.eye(4) / 2) @ rolled
    assert np.abs(np.array(shown).reshape(4, 4) - rolled).max() < 0.01


def test_long_texts_are_drawn_in_part(seen: Seen, tmp_path: Path) -> None:
    count = 600
    side = RecordText(" ".join(["word"] * count), tuple([" word"] * count), tuple(range(count)))
    record = Record(
        "long",
        {"source": side},
        (AttentionRecord("encoder.self", "source", "source", distributions((1, 2, count, count), 1), (0,)),),
    )
    seen.open(f"{written([record], tmp_path)}#view=align")
    assert seen.count(".label") < 200
    for _ in range(9):
        seen.page.click("button[aria-label='zoom in']")
    seen.settle()
    assert seen.page.evaluate(
        "(() => { const box = document.querySelector('.heatmap'); return box.scrollWidth > 4 * box.clientWidth; })()"
    )
    assert seen.count(".label") < 200
    seen.keys("1")
    assert seen.count(".running .token") == count
    seen.keys("v")
    assert seen.count("tbody tr") == 100 and "the first 100 of" in seen.text("caption")


OURS = {"script", "style", "meta", "link", "title", "noscript"}


def test_hostile_strings_stay_text(seen: Seen, tmp_path: Path) -> None:
    strings = hostile_strings(500)
    assert len(set(strings)) == 500
    before = set()
    for title in ("plain", strings[0]):
        records = [whole_record(), whole_record()] if title == "plain" else hostile_records(strings)
        seen.open(f"{written(records, tmp_path, title)}#with=1&unit=piece")
        found = set()
        for place in range(len(records)):
            for key in (
                "123456789v1v4v7v" if place == 0 else "147"
            ):  # every view and tables; where all texts are, for all
                seen.page.keyboard.press(key)
            seen.settle()
            found |= set(
                seen.page.evaluate(
                    "[...new Set([...document.querySelectorAll('*')].map((one) => one.tagName.toLowerCase()))]"
                )
            )
            seen.page.keyboard.press(".")
        assert seen.page.evaluate("window.owned") is None
        if title == "plain":
            before = found
        assert found <= before | OURS, found - before
    assert seen.count("script") == 2 and not seen.count("a, img, iframe, base")
    shown = seen.page.evaluate("document.body.innerText")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f]", shown)
    with seen.page.expect_download() as download:
        seen.keys("1", "f")
    download.value.save_as(tmp_path / "figure.svg")
    tags = {one.tag.rpartition("}")[2] for one in ElementTree.parse(tmp_path / "figure.svg").iter()}
    assert tags <= {"svg", "rect", "text", "image", "path", "title", "polyline", "line"}


def test_an_aligning_head_that_looks_back_is_read_one_row_later(seen: Seen, tmp_path: Path) -> None:
    record = replace(whole_record(), view={"shift": 1})
    seen.open(f"{written([record], tmp_path)}#view=align&unit=piece&table=yes")
    weights = record["decoder.cross"].matrix(1, 2)
    shown = seen.page.eval_on_selector_all(
        "tbody tr", "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )
    values = np.array([[0.0 if cell == "·" else float(cell) for cell in row] for row in shown])
    assert np.array_equal(values[:-1], weights[1:])  # this head's weights are ones and zeros
    assert not values[-1].any()
    assert "once this was written" in seen.page.inner_text("body")
    seen.keys("[")  # any other head is read as it looked
    assert "while producing this" in seen.page.inner_text("body")
