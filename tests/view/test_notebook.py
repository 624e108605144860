"""Notebooks: a static picture first, a frame where scripts run, a small cell, nothing that breaks out."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import xml.etree.ElementTree as tree
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.view.notebook import MAX_CELL_BYTES, NotebookOutput, in_notebook, mimebundle
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from tests.scale import HANG_GUARD, PAGE_GUARD
from tests.view.browser import browser_program, started
from tests.view.hostile import hostile_records, hostile_strings
from tests.view.samples import distributions, whole_record

NOTEBOOKS = Path(__file__).parent.parent.parent / "examples" / "notebooks"


class Elements(HTMLParser):
    """The elements of a piece of HTML, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.said += data


def picture(attributes: dict[str, str | None]) -> tree.Element:
    kind, _, data = (attributes["src"] or "").partition(",")
    assert kind == "data:image/svg+xml;base64"
    return tree.fromstring(base64.b64decode(data).decode())


def test_a_cell_has_a_picture_that_is_seen_and_a_frame_that_is_not_until_a_script_runs() -> None:
    made = NotebookOutput(whole_record(), "align")._repr_mimebundle_()
    assert list(made) == ["text/html", "image/svg+xml", "text/plain"]
    found = Elements(made["text/html"]).found
    assert [tag for tag, _ in found] == ["div", "div", "img", "iframe", "script"]
    assert all("hidden" not in attributes for _, attributes in found[:3])
    assert "hidden" in found[3][1] and found[3][1]["sandbox"] == "allow-scripts allow-downloads"
    assert picture(found[2][1]).tag.endswith("svg")
    page = found[3][1]["srcdoc"] or ""
    assert page.startswith("<!doctype html>") and "Content-Security-Policy" in page
    assert "http:" not in made["text/html"].replace("http://www.w3.org", "")
    assert "decoder.1.cross:2" in made["text/plain"]


def test_the_frame_opens_with_what_the_picture_shows() -> None:
    made = NotebookOutput(
        whole_record(), "look", attention="encoder.0.self:1", token="animal", words=True
    )._repr_mimebundle_()
    page = next(attributes["srcdoc"] or "" for tag, attributes in Elements(made["text/html"]).found if tag == "iframe")
    view = json.loads("{" + page.partition('"view":{')[2].partition("}")[0] + "}")
    assert view == {
        "attn": "encoder.self",
        "layer": 0,
        "head": 1,
        "measured": False,
        "unit": "word",
        "q": 1,
        "view": "look",
    }


def test_a_cell_stays_small_and_says_what_it_leaves_out() -> None:
    count = 128
    side = RecordText.from_subwords("x", [f"word{number}" for number in range(count)], range(count))
    seen = AttentionRecord("encoder.self", "source", "source", distributions((4, 12, count, count), 1), (0, 1, 2, 3))
    record = Record("x", {"source": side}, (seen,))
    made = NotebookOutput(record, "heads")._repr_mimebundle_()
    assert sum(len(text.encode()) for text in made.values()) <= MAX_CELL_BYTES
    shown = NotebookOutput(record, "align").figure
    small = mimebundle(record, shown, {}, max_tokens=300_000)
    assert "iframe" not in small["text/html"] and "too large for a cell" in small["text/html"]
    assert np.sum([tag == "img" for tag, _ in Elements(small["text/html"]).found]) == 1


def test_hostile_texts_stay_inside() -> None:
    framed = 0
    for record in hostile_records(hostile_strings(), each=25):
        made = NotebookOutput(record, "align")._repr_mimebundle_()
        parsed = Elements(made["text/html"])
        if "too large for a cell" in parsed.said:
            assert [tag for tag, _ in parsed.found] == ["div", "img", "p", "small"]
            continue
        framed += 1
        assert [tag for tag, _ in parsed.found] == ["div", "div", "img", "iframe", "script"]
        assert parsed.said.startswith("for(const box of") and "owned" not in parsed.said
        assert set().union(*(attributes for _, attributes in parsed.found)) == {
            *("data-regard", "alt", "style", "src", "hidden", "sandbox", "title", "srcdoc")
        }
        tree.fromstring(made["image/svg+xml"])
    assert framed > 3


def test_no_notebook_is_needed_to_find_out_that_this_is_none() -> None:
    assert not in_notebook()
    code = "import sys, regard.view.notebook as one; one.in_notebook(); print('IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_GUARD)
    assert done.stdout.strip() == "False", done.stderr


def executed(name: str, replacements: Mapping[str, str] | None = None) -> Any:
    """Run one of the example notebooks without a screen, with parts of its code replaced."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: notebooks are not run")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: notebooks are not run")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: notebooks are not run")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for old, new in (replacements or {}).items():
        assert sum(cell.source.count(old) for cell in notebook.cells) == 1, f"{name} has {old} once"
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    nbclient.NotebookClient(
        notebook, timeout=HANG_GUARD, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOKS)}}
    ).execute()
    return notebook


def printed(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(output.get("text") or output["data"]["text/plain"] for output in outputs)


def test_attention_in_numbers_runs() -> None:
    said = printed(executed("attention"))
    assert said.count("True") == 2 and "tensor([1.0000, 1.0000, 1.0000, 1.0000])" in said
    assert "causal() & (window(2) | global_tokens(0))" in said and "'encoder.0.self': (1, 2, 4, 4)" in said


def right_without(said: str) -> dict[str, int]:
    """Read how many translations are right without an attention, by its site."""
    return {line.split()[0]: int(line.split()[-3]) for line in said.splitlines() if line.endswith(" of 50")}


def test_the_notebook_about_training_runs() -> None:
    said = printed(executed("training", {"steps=300": "steps=5"}))
    assert " of 50 exactly right" in said
    assert [*right_without(said)] == ["encoder.0.self", "decoder.0.self", "decoder.0.cross"]


@pytest.mark.slow
def test_the_translator_of_the_notebook_learns_to_look_crosswise() -> None:
    said = printed(executed("training"))
    right = right_without(said)
    assert int(said.partition(" of 50 exactly right")[0].split()[-1]) > 45
    assert "(1, 3), (2, 2)" in said  # big: grande, red: rojo
    assert [*right] == ["encoder.0.self", "decoder.0.self", "decoder.0.cross"] and right["decoder.0.cross"] < 10


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notebook of views, run without a screen, as HTML."""
    nbconvert = pytest.importorskip("nbconvert", reason="nbconvert is not installed: the notebook is not exported")
    notebook = executed("seeing")
    kept = [json.dumps(output) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum(map(len, kept)) < 5 * 2 * MAX_CELL_BYTES
    text, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    file = tmp_path_factory.mktemp("exported") / "seeing.html"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_notebook_runs_and_its_export_shows_five_views(exported: Path) -> None:
    found = [attributes for tag, attributes in Elements(exported.read_text(encoding="utf-8")).found if tag == "img"]
    drawn = [picture(one) for one in found if (one.get("src") or "").startswith("data:image/svg+xml")]
    titles = [one.get("alt") or "" for one in found]
    views = ("align", "look", "heads", "steps", "flow")
    assert [title.partition(":")[0] for title in titles if title.partition(":")[0] in views] == [*views]
    assert len(drawn) == 5


@pytest.mark.skipif(not browser_program(), reason="no browser here: the exported notebook is not opened")
@pytest.mark.parametrize("scripts", [True, False])
def test_pictures_without_scripts_and_pages_with_them(exported: Path, scripts: bool) -> None:
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pages are not opened")
    with started() as browser:
        context = browser.new_context(java_script_enabled=scripts, offline=True)
        page = context.new_page()
        page.set_default_timeout(1000 * PAGE_GUARD)
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(exported.as_uri(), wait_until="commit")
        page.wait_for_selector("[data-regard]", state="attached")
        pictures, frames = page.locator("[data-regard] img"), page.locator("[data-regard] iframe")
        assert pictures.count() == frames.count() == 5
        if scripts:
            frames.first.wait_for(state="visible")
            assert not pictures.first.is_visible()
            page.frame_locator("[data-regard] iframe >> nth=0").locator("html[data-ready]").wait_for(state="attached")
            assert not [fault for fault in faults if "regard" in fault.lower()]
        else:
            assert all(pictures.nth(place).is_visible() for place in range(5))
            assert not frames.first.is_visible()
            assert pictures.first.bounding_box()["width"] > 200
        context.close()
