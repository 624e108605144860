"""The page in a browser: views, keys, pointer, links, figures, themes, labels for screen readers, hostile texts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.view.figures.matrix_figure import confidence, coverage
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.selection import select_attention
from tests.view.browser import Seen, needs_browser, started, written
from tests.view.hostile import hostile_records, hostile_strings
from tests.view.samples import answered_record, distributions, sample_record, unscaled_sparse_record, whole_record

needs_browser()
VIEWS = ["lines", "heads", "matrix", "decoding", "math", "positions", "prediction", "flow", "compare"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a page of three records: a translation, the same with its heads reversed, an answer."""
    record = whole_record()
    reversed_heads = replace(record.attention[0], stored=record.attention[0].weights[:, ::-1])
    other = replace(record, id="other", title="another", attention=(reversed_heads, *record.attention[1:]))
    return written([record, other, answered_record()], tmp_path_factory.mktemp("page"))


@pytest.fixture
def tab(browser: Any) -> Iterator[Seen]:
    opened = Seen(browser, offline=True, accept_downloads=True)
    yield opened
    opened.close()


def read_weights(tab: Seen) -> np.ndarray:
    """Weights in the table of the page; a dot stands for zero."""
    rows = tab.page.eval_on_selector_all(
        "tbody tr", "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )
    return np.array([[0.0 if cell == "·" else float(cell) for cell in row] for row in rows])


def selected_option(tab: Seen, selector: str) -> str:
    return str(tab.page.eval_on_selector(selector, "list => list.selectedOptions[0].text"))


def test_every_view_is_drawn_and_has_a_table(tab: Seen, address: str) -> None:
    tab.open(f"{address}#with=1")
    for key, view in enumerate(VIEWS, start=1):
        tab.keys(str(key))
        assert tab.page.get_attribute(".stage", "data-view") == view
        assert not tab.count(".stage .notice"), view
        assert tab.count(".stage canvas, .stage svg, .stage .token, .stage .bar-list li"), view
        tab.keys("v")
        assert tab.count(".stage table tbody tr"), view
        assert tab.count(".stage table caption") == 1
        tab.keys("v")


def test_weights_shown_are_those_of_the_record(tab: Seen, address: str) -> None:
    tab.open(f"{address}#view=matrix&attention=decoder.cross&layer=0&heads=1&unit=subword&table=yes")
    weights = whole_record()["decoder.cross"].matrix(0, 1)
    displayed = read_weights(tab)
    assert displayed.shape == weights.shape
    assert np.abs(displayed - weights).max() < 0.006  # two digits, and the encoding of the page


def test_keys_select_words_layers_heads_and_records(tab: Seen, address: str) -> None:
    tab.open(address)
    assert tab.live("attends to").startswith("Das attends to The 1.00")
    tab.keys("ArrowRight")
    assert tab.live("Tier").startswith("Tier attends to")
    tab.keys("ArrowUp")
    assert "layer 0 head 2" in tab.live("layer 0")
    tab.keys("[", "[")
    assert "head 0" in tab.live("head 0")
    tab.keys("b")
    assert "layer 1 head 2" in tab.live("layer 1 head 2")
    tab.keys("k")
    assert tab.page.get_attribute(".map .segments button:last-child", "aria-pressed") == "true"
    tab.keys("Escape", ".")
    assert "another" in selected_option(tab, "select[aria-label=record]")
    tab.keys("?")
    assert tab.page.locator("dialog[open]").count() == 1
    tab.page.locator("dialog button").click()
    tab.keys("/")
    tab.page.keyboard.type("tired")
    assert tab.text(".query-label") == "tired"


def test_keys_switch_between_words_and_subwords_and_hide_special_tokens(tab: Seen, address: str) -> None:
    tab.open(f"{address}#view=lines&attention=encoder.self")
    assert tab.count(".lines-view .from .token") == 6  # five words and the end token
    tab.keys("w")
    assert tab.count(".lines-view .from .token") == 8  # animal and tired are two subwords each
    tab.keys("x")
    assert tab.count(".lines-view .from .token") == 7
    tab.keys("w")
    assert tab.count(".lines-view .from .token") == 5


def test_a_key_cycles_through_the_normalisations(tab: Seen, address: str) -> None:
    tab.open(f"{address}#view=matrix&layer=0&heads=0")
    normalisations = []
    for _ in range(4):
        normalisations.append(selected_option(tab, "select[aria-label^=normalisation]"))
        tab.keys("n")
    assert normalisations == ["raw", "linear", "row max", "without specials"]


def test_the_pointer_shows_a_weight_and_a_click_pins_the_query(tab: Seen, address: str) -> None:
    tab.open(f"{address}#view=matrix")
    row = tab.page.locator(".label.row[data-row='1']").bounding_box()
    other_row = tab.page.locator(".label.row[data-row='3']").bounding_box()
    column = tab.page.locator(".label.column[data-column='1']").bounding_box()
    assert row and other_row and column
    x = column["x"] + column["width"] / 2
    tab.page.mouse.move(x, row["y"] + row["height"] / 2)
    tab.settle()
    assert tab.text(".tip").split() == ["Tier", "→", "animal", "1.00"]
    assert tab.text(".query-label") == "Tier"
    tab.page.mouse.down()
    tab.page.mouse.up()
    tab.page.mouse.move(x, other_row["y"] + other_row["height"] / 2)
    tab.settle()
    assert tab.text(".query-label") == "Tier"  # pinned: the pointer does not change the query
    tab.keys("Escape", "1")
    tab.page.hover(".lines-view .from .token:nth-child(3)")
    assert tab.text(".query-label") == "war"
    assert tab.count(".lines-view svg path")
    tab.page.click(".lines-view .from .token:nth-child(3)")
    tab.page.click(".lines-view .from .token:nth-child(5)", modifiers=["Shift"])
    assert tab.text(".query-label") == "war müde"
    tab.page.wait_for_function("() => location.hash.includes('pin=2%2C4')")


def test_two_selected_heads_have_two_colours(tab: Seen, address: str) -> None:
    tab.open(f"{address}#view=lines&layer=0&heads=0")
    tab.page.click('.square[data-layer="0"][data-head="1"]', modifiers=["Shift"])
    tab.settle()
    assert tab.count('.square[aria-selected="true"]') == 2
    assert tab.count(".inspector .site .dot") == 2
    strokes = tab.page.eval_on_selector_all(
        ".lines-view svg path", "paths => paths.map(path => path.getAttribute('stroke'))"
    )
    assert len(set(strokes)) == 2


def test_a_link_restores_the_state_and_an_invalid_one_does_no_harm(tab: Seen, address: str) -> None:
    tab.open(
        f"{address}#view=matrix&attention=encoder.self&layer=0&heads=0,2&q=3&unit=subword&norm=max&theme=dark&transposed=yes"
    )
    assert tab.text(".query-label").lstrip("▁") == "was"
    assert tab.count('.square[aria-selected="true"]') == 2
    assert tab.page.get_attribute("html", "data-theme") == "dark"
    tab.keys("ArrowDown", "2", "t")
    tab.page.wait_for_function("() => location.hash.includes('view=heads') && location.hash.includes('theme=light')")
    link = tab.page.url
    assert "layer=1" in link
    assert "heads=0%2C2" in link
    assert "norm=max" in link
    tab.open(link)
    assert tab.page.get_attribute(".stage", "data-view") == "heads"
    tab.open(f"{address}#view=nothing&attention=none&layer=99&heads=77&q=999&pin=500&with=9&record=40")
    assert not tab.count(".stage .notice")


@pytest.mark.parametrize("view", ["matrix", "lines", "decoding"])
def test_a_figure_is_saved_with_its_text_as_text(tab: Seen, address: str, view: str, tmp_path: Path) -> None:
    tab.open(f"{address}#view={view}")
    with tab.page.expect_download() as download:
        tab.keys("f")
    assert download.value.suggested_filename == f"{view}.svg"
    download.value.save_as(tmp_path / "figure.svg")
    root = ElementTree.parse(tmp_path / "figure.svg").getroot()
    assert root.tag.endswith("svg")
    assert "Tier" in " ".join(root.itertext())
    assert "javascript" not in (tmp_path / "figure.svg").read_text(encoding="utf-8")


def test_themes_follow_the_system_and_the_switch(browser: Any, address: str) -> None:
    tab = Seen(browser, offline=True, color_scheme="dark")
    tab.open(address)
    background = "getComputedStyle(document.body).backgroundColor"
    assert tab.page.evaluate(background) == "rgb(19, 21, 26)"
    tab.keys("t")
    assert tab.page.evaluate(background) == "rgb(252, 252, 250)"
    tab.close()


def test_every_control_has_a_label_for_screen_readers(tab: Seen, address: str) -> None:
    tab.open(f"{address}#with=1")
    unlabelled = """() => [...document.querySelectorAll(
        'button, input, select, [role=grid], [role=gridcell], [role=img], nav, aside')]
        .filter((control) => control.offsetParent !== null)
        .filter((control) => !(control.getAttribute('aria-label') || control.textContent.trim()))
        .map((control) => control.outerHTML.slice(0, 120))"""
    for key in range(1, 10):
        tab.keys(str(key))
        assert tab.page.evaluate(unlabelled) == []
    tab.keys("3")
    grid = tab.page.locator(".heatmap[role=grid]")
    assert grid.get_attribute("aria-rowcount") == "6"
    assert grid.get_attribute("aria-colcount") == "6"
    tab.page.locator(".heatmap [role=gridcell]").focus()
    tab.keys("ArrowDown", "ArrowRight")
    cell_label = tab.page.locator(".heatmap [role=gridcell]").get_attribute("aria-label")
    assert (cell_label or "").split() == ["Tier", "→", "animal", "1.00"]
    tab.page.locator(".square[tabindex='0']").focus()
    tab.keys("ArrowUp")
    assert tab.page.evaluate("document.activeElement.dataset.layer") == "0"


def test_every_control_has_a_tooltip(tab: Seen, address: str) -> None:
    tab.open(f"{address}#with=1")
    without_tooltip = """() => [...document.querySelectorAll('button, input, select, abbr')]
        .filter((control) => control.offsetParent !== null && !control.matches('.token'))
        .filter((control) => (control.title || '').length < 5)
        .map((control) => control.outerHTML.slice(0, 120))"""
    for key in range(1, 10):
        tab.keys(str(key))
        assert tab.page.evaluate(without_tooltip) == [], key
    tab.open(f"{address}#view=prediction&record=2")
    assert tab.page.evaluate(without_tooltip) == []
    for text in ("entropy", "special tokens", "temperature"):
        assert text in tab.page.eval_on_selector("dialog", "dialog => dialog.textContent")


def test_each_view_begins_with_what_it_is(tab: Seen, address: str) -> None:
    tab.open(address)
    first = "document.querySelector('.main').firstElementChild"
    explanations = set()
    for key in range(1, 10):
        tab.keys(str(key))
        explanations.add(tab.page.evaluate(f"{first}.querySelector('summary').textContent"))
    assert len(explanations) == len(VIEWS)
    assert all(explanation.startswith("What is this? ") for explanation in explanations)
    tab.page.click("summary")
    assert "not why the model gave its output" in tab.text(".what-is-this")
    tab.keys("3")
    assert "Rows are queries, columns are keys" in tab.text(".what-is-this")
    assert tab.page.evaluate(f"{first}.open")  # it stays open


def test_the_page_and_the_figure_score_an_alignment_alike(tab: Seen, address: str) -> None:
    tab.open(f"{address}#view=matrix&attention=decoder.cross&layer=0&heads=1&unit=subword")
    selection = select_attention(whole_record(), "decoder.cross", 0, 1)
    scores = tab.text(".stage > .note:last-child")
    assert f"Coverage {100 * coverage(selection):.0f} %" in scores
    assert f"confidence {100 * confidence(selection):.0f} %" in scores


def test_tokens_and_thumbnails_are_one_tab_stop_and_the_focus_follows_the_arrows(tab: Seen, address: str) -> None:
    tab.open(f"{address}#view=lines")
    stops = "[...document.querySelectorAll('.stage .token, .stage .thumb')].filter((node) => node.tabIndex === 0)"
    focused = "document.activeElement.textContent"
    assert tab.page.evaluate(f"{stops}.map((node) => node.textContent)") == ["Das"]
    tab.page.focus(".from .token[aria-pressed=true]")
    tab.keys("ArrowRight", "ArrowRight")
    assert tab.page.evaluate(focused) == "war"
    tab.keys("4")
    tab.page.focus(".stage .token[aria-pressed=true]")
    tab.keys("ArrowRight")
    assert tab.page.evaluate(f"{stops}.length") == 1
    assert "step 2 of 6" in tab.text(".stage")
    tab.keys("2")
    assert tab.page.evaluate(f"{stops}.length") == 1


def test_a_control_keeps_the_focus_when_it_is_used(tab: Seen, address: str) -> None:
    tab.open(f"{address}#view=lines")
    focused = "document.activeElement.textContent"
    tab.page.focus(".view-list button:nth-child(3)")
    tab.keys("Enter")
    assert tab.page.get_attribute(".stage", "data-view") == "matrix"
    assert "Matrix" in tab.page.evaluate(focused)
    tab.page.focus("text=Transpose")
    for is_pressed in ("true", "false"):
        tab.keys("Space")
        assert tab.page.evaluate(focused) == "Transpose"
        assert tab.page.evaluate("document.activeElement.getAttribute('aria-pressed')") == is_pressed
    tab.page.focus("text=No special")
    tab.keys("Enter")
    assert tab.page.evaluate(focused) == "No special"


def test_the_computed_weights_sum_to_one_and_space_walks_through_the_computation(tab: Seen, address: str) -> None:
    tab.open(f"{address}#view=math&attention=encoder.self&layer=1&heads=2")
    weights = tab.page.eval_on_selector_all(
        ".math-table .weight", "cells => cells.map(cell => Number(cell.textContent))"
    )
    assert abs(sum(weights) - 1) < 0.03
    tab.page.locator("body").click(position={"x": 5, "y": 5})
    tab.keys("Space")
    assert tab.text(".math-steps [aria-pressed=true]") == "1 query"
    tab.keys("Space", "Space")
    assert tab.text(".math-steps [aria-pressed=true]") == "3 score"


def test_the_computation_shows_the_weights_and_the_scaling_of_the_model(tab: Seen, tmp_path: Path) -> None:
    record = unscaled_sparse_record()
    (head,) = record.qkv
    tab.open(f"{written([record], tmp_path)}#view=math&attention=encoder.self&layer=1&heads=2")
    tab.page.wait_for_selector(".math-table")
    header = tab.page.eval_on_selector_all(".math-table thead th", "cells => cells.map(cell => cell.textContent)")
    assert header[2:4] == ["q · k", "no scaling + bias"]
    weights = tab.page.eval_on_selector_all(".math-table .weight", "cells => cells.map(cell => cell.textContent)")
    assert weights[:2] == [".75", ".25"]
    assert "√" not in tab.text(".stage") and "sparsemax" in tab.text(".math-steps")
    other_score = replace(record, qkv=(replace(head, scale=None, temperature=2.0),))
    tab.open(f"{written([other_score], tmp_path)}#view=math&attention=encoder.self&layer=1&heads=2")
    tab.page.wait_for_selector(".math-table")
    header = tab.page.eval_on_selector_all(".math-table thead th", "cells => cells.map(cell => cell.textContent)")
    assert header[2:4] == ["score", "× 0.5"]


def test_arrows_walk_through_decoding_steps_and_beams_are_drawn(tab: Seen, address: str) -> None:
    tab.open(f"{address}#view=decoding")
    tab.keys("ArrowRight", "ArrowRight")
    assert "step 3 of 6" in tab.text(".stage")
    assert tab.count(".stage .token.later") == 3
    assert tab.count(".beams .beam") == 12
    assert tab.count(".beams .beam.on") == 6
    assert tab.count(".stage .bar-list .selected") == 1


def test_answers_are_highlighted_in_their_passage(tab: Seen, address: str) -> None:
    tab.open(f"{address}#view=prediction&record=2")
    assert tab.text(".token.in-span") == "anim"
    assert tab.count(".plot") == 2
    tab.page.hover(".answer >> nth=1")
    tab.settle()
    assert tab.count(".token.in-span") == 3
    assert "no answer in the passage: 5" in tab.text(".stage")


def test_a_view_explains_what_the_record_lacks(tab: Seen, tmp_path: Path) -> None:
    tab.open(written([sample_record()], tmp_path))
    for key in (4, 5, 6, 7, 9):
        tab.keys(str(key))
        assert len(tab.text(".stage .notice")) > 30
    without_attention = Record("nothing", {"source": RecordText("a b", ("a", "b"), (0, 1))}, ())
    tab.open(written([without_attention], tmp_path))
    for key in range(1, 10):
        tab.keys(str(key), "v", "v")
        assert len(tab.text(".stage .notice")) > 30


def test_right_to_left_texts_run_from_the_right(tab: Seen, tmp_path: Path) -> None:
    source = RecordText("القط نام", ("القط", " نام"), (0, 1), direction="rtl")
    target = RecordText("the cat", ("the", " cat"), (0, 1))
    weights = np.array([[[[0.9, 0.1], [0.1, 0.9]]]], dtype=np.float32)
    attention = AttentionRecord("decoder.cross", "target", "source", weights, (0,))
    record = Record("", {"source": source, "target": target}, (attention,))
    tab.open(f"{written([record], tmp_path)}#view=matrix")
    labels = tab.page.eval_on_selector_all(
        ".label.column", "labels => labels.map(label => [Number(label.getAttribute('x')), label.textContent])"
    )
    _, rightmost = max(labels)
    assert rightmost == "القط"
    tab.open(f"{written([record], tmp_path)}#view=lines&form=text")
    assert tab.page.get_attribute(".running p", "dir") == "rtl"


def test_a_phone_shows_one_column_that_does_not_overflow(browser: Any, address: str) -> None:
    tab = Seen(browser, offline=True, viewport={"width": 390, "height": 800}, has_touch=True, reduced_motion="reduce")
    tab.open(f"{address}#with=1")
    for key, view in enumerate(VIEWS, start=1):
        tab.keys(str(key))
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390, view
    assert tab.page.evaluate("getComputedStyle(document.querySelector('.columns')).display") == "block"
    tab.close()


@pytest.mark.parametrize("has_residual", [True, False])
def test_the_flow_is_the_rollout_through_all_layers(tab: Seen, tmp_path: Path, has_residual: bool) -> None:
    text = RecordText("a b c d", ("a", " b", " c", " d"), (0, 1, 2, 3))
    weights = distributions((10, 8, 4, 4), 1)
    attention = AttentionRecord(
        "encoder.self",
        "source",
        columns="source",
        stored=weights,
        layers=tuple(range(10)),
        has_residual=has_residual,
    )
    record = Record("deep", {"source": text}, (attention,))
    tab.open(f"{written([record], tmp_path)}#view=flow&table=yes")
    tab.keys("v")
    tab.page.wait_for_selector(".stage .heatmap")
    tab.keys("v")
    displayed = tab.page.eval_on_selector_all("tbody td", "cells => cells.map(cell => Number(cell.textContent))")
    rollout = np.eye(4)
    for layer_weights in weights.astype(np.float64):
        mean_weights = layer_weights.mean(axis=0)
        rollout = (mean_weights / 2 + np.eye(4) / 2 if has_residual else mean_weights) @ rollout
    assert np.abs(np.array(displayed).reshape(4, 4) - rollout).max() < 0.01


def test_long_texts_have_few_labels_and_a_truncated_table(tab: Seen, tmp_path: Path) -> None:
    num_words = 600
    text = RecordText(" ".join(["word"] * num_words), tuple([" word"] * num_words), tuple(range(num_words)))
    weights = distributions((1, 2, num_words, num_words), 1)
    attention = AttentionRecord("encoder.self", "source", "source", weights, (0,))
    record = Record("long", {"source": text}, (attention,))
    tab.open(f"{written([record], tmp_path)}#view=matrix")
    assert tab.count(".label") < 200
    for _ in range(9):
        tab.page.click("button[aria-label='zoom in']")
    tab.settle()
    assert tab.page.evaluate(
        "(() => { const box = document.querySelector('.heatmap'); return box.scrollWidth > 4 * box.clientWidth; })()"
    )
    assert tab.count(".label") < 200
    tab.keys("1")
    assert tab.count(".running .token") == num_words
    tab.keys("v")
    assert tab.count("tbody tr") == 100
    assert "the first 100 of" in tab.text("caption")


DOCUMENT_TAGS = {"script", "style", "meta", "link", "title", "noscript"}


def test_hostile_strings_stay_text(tab: Seen, tmp_path: Path) -> None:
    strings = hostile_strings(500)
    assert len(set(strings)) == 500
    plain_tags = tags_of_all_records(tab, [whole_record(), whole_record()], "plain", tmp_path)
    assert tab.page.evaluate("window.owned") is None
    hostile_tags = tags_of_all_records(tab, hostile_records(strings), strings[0], tmp_path)
    assert tab.page.evaluate("window.owned") is None
    assert hostile_tags <= plain_tags | DOCUMENT_TAGS, hostile_tags - plain_tags
    assert tab.count("script") == 2
    assert not tab.count("a, img, iframe, base")
    body_text = tab.page.evaluate("document.body.innerText")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f]", body_text)
    with tab.page.expect_download() as download:
        tab.keys("1", "f")
    download.value.save_as(tmp_path / "figure.svg")
    svg_tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(tmp_path / "figure.svg").iter()}
    assert svg_tags <= {"svg", "rect", "text", "image", "path", "title", "polyline", "line"}


def tags_of_all_records(tab: Seen, records: list[Record], title: str, folder: Path) -> set[str]:
    """Tags of all elements that the page shows: every view and table of the first record, some views of the others."""
    list_tags = "[...new Set([...document.querySelectorAll('*')].map((element) => element.tagName.toLowerCase()))]"
    tab.open(f"{written(records, folder, title)}#with=1&unit=subword")
    tags: set[str] = set()
    for index in range(len(records)):
        for key in "123456789v1v4v7v" if index == 0 else "147":
            tab.page.keyboard.press(key)
        tab.settle()
        tags |= set(tab.page.evaluate(list_tags))
        tab.page.keyboard.press(".")
    return tags


def test_a_head_that_aligns_the_decoder_input_is_shifted_by_one_row(tab: Seen, tmp_path: Path) -> None:
    record = replace(whole_record(), view={"shift": 1})
    tab.open(f"{written([record], tmp_path)}#view=matrix&unit=subword&table=yes")
    weights = record["decoder.cross"].matrix(1, 2)
    displayed = read_weights(tab)
    assert np.array_equal(displayed[:-1], weights[1:])  # this head's weights are ones and zeros
    assert not displayed[-1].any()
    assert "after this token was generated" in tab.page.inner_text("body")
    tab.keys("[")  # other heads are not shifted
    assert "while this token is generated" in tab.page.inner_text("body")
