"""Notebook output: a static image, an interactive frame where scripts run, bounded size; the example notebooks run."""

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


class ParsedHtml(HTMLParser):
    """The elements of an HTML fragment, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    def attributes_of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for element_tag, attributes in self.elements if element_tag == tag]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


def decode_image(attributes: dict[str, str | None]) -> tree.Element:
    """The SVG in the data URL of an `img` element."""
    prefix, _, encoded = (attributes["src"] or "").partition(",")
    assert prefix == "data:image/svg+xml;base64"
    return tree.fromstring(base64.b64decode(encoded).decode())


def test_a_cell_shows_an_image_and_hides_the_frame_until_a_script_runs() -> None:
    bundle = NotebookOutput(whole_record(), "matrix")._repr_mimebundle_()
    assert list(bundle) == ["text/html", "image/svg+xml", "text/plain"]
    html = ParsedHtml(bundle["text/html"])
    assert html.tags == ["div", "div", "img", "iframe", "script"]
    assert all("hidden" not in attributes for _, attributes in html.elements[:3])
    (frame,) = html.attributes_of("iframe")
    assert "hidden" in frame
    assert frame["sandbox"] == "allow-scripts allow-downloads"
    (image,) = html.attributes_of("img")
    assert decode_image(image).tag.endswith("svg")
    page = frame["srcdoc"] or ""
    assert page.startswith("<!doctype html>")
    assert "Content-Security-Policy" in page
    assert "http:" not in bundle["text/html"].replace("http://www.w3.org", "")
    assert "decoder.1.cross:2" in bundle["text/plain"]


def test_the_frame_opens_in_the_state_of_the_image() -> None:
    output = NotebookOutput(whole_record(), "lines", attention="encoder.0.self:1", token="animal", words=True)
    (frame,) = ParsedHtml(output._repr_mimebundle_()["text/html"]).attributes_of("iframe")
    page = frame["srcdoc"] or ""
    view, _ = json.JSONDecoder().raw_decode(page.partition('"view":')[2])
    best = view.pop("best")
    assert best is None or (best["layer"], best["head"]) != (0, 1)
    assert view == {
        "attention": "encoder.self",
        "layer": 0,
        "head": 1,
        "unit": "word",
        "q": 1,
        "view": "lines",
    }


def test_a_cell_stays_small_and_names_what_it_omits() -> None:
    num_words = 128
    text = RecordText.from_subwords("x", [f"word{index}" for index in range(num_words)], range(num_words))
    weights = distributions((4, 12, num_words, num_words), 1)
    attention = AttentionRecord("encoder.self", "source", "source", weights, (0, 1, 2, 3))
    record = Record("x", {"source": text}, (attention,))
    bundle = NotebookOutput(record, "heads")._repr_mimebundle_()
    assert sum(len(content.encode()) for content in bundle.values()) <= MAX_CELL_BYTES
    figure = NotebookOutput(record, "matrix").figure
    static_html = mimebundle(record, figure, {}, max_bytes=300_000)["text/html"]
    assert "iframe" not in static_html
    assert "too large for a cell" in static_html
    assert ParsedHtml(static_html).tags.count("img") == 1


def test_hostile_texts_stay_inside_the_frame() -> None:
    num_frames = 0
    for record in hostile_records(hostile_strings(), each=25):
        bundle = NotebookOutput(record, "matrix")._repr_mimebundle_()
        html = ParsedHtml(bundle["text/html"])
        if "too large for a cell" in html.text:
            assert html.tags == ["div", "img", "p", "small"]
            continue
        num_frames += 1
        assert html.tags == ["div", "div", "img", "iframe", "script"]
        assert html.text.startswith("for(const box of")
        assert "owned" not in html.text
        attribute_names = {name for _, attributes in html.elements for name in attributes}
        assert attribute_names == {"data-regard", "alt", "style", "src", "hidden", "sandbox", "title", "srcdoc"}
        tree.fromstring(bundle["image/svg+xml"])
    assert num_frames > 3


def test_a_notebook_is_detected_without_importing_ipython() -> None:
    assert not in_notebook()
    code = "import sys; from regard.view.notebook import in_notebook; in_notebook(); print('IPython' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_GUARD)
    assert process.stdout.strip() == "False", process.stderr


def run_notebook(name: str, replacements: Mapping[str, str] | None = None) -> Any:
    """Run an example notebook headless, with parts of its code replaced."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: notebooks are not run")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: notebooks are not run")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: notebooks are not run")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for old, new in (replacements or {}).items():
        assert sum(cell.source.count(old) for cell in notebook.cells) == 1, f"{name} has {old} once"
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    client = nbclient.NotebookClient(notebook, timeout=HANG_GUARD, kernel_name="python3", resources=resources)
    client.execute()
    return notebook


def cell_outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def output_text(notebook: Any) -> str:
    return "\n".join(output.get("text") or output["data"]["text/plain"] for output in cell_outputs(notebook))


def test_the_notebook_about_attention_runs() -> None:
    text = output_text(run_notebook("attention"))
    assert text.count("True") == 2
    assert "tensor([1.0000, 1.0000, 1.0000, 1.0000])" in text
    assert "causal() & (window(2) | global_tokens(0))" in text
    assert "'encoder.0.self': (1, 2, 4, 4)" in text


def correct_without(text: str) -> dict[str, int]:
    """Parse how many translations are correct without each attention site."""
    lines = [line.split() for line in text.splitlines() if line.endswith(" of 50")]
    return {fields[0]: int(fields[-3]) for fields in lines}


def test_the_notebook_about_training_runs() -> None:
    text = output_text(run_notebook("training", {"steps=300": "steps=5"}))
    assert " of 50 exactly right" in text
    assert [*correct_without(text)] == ["encoder.0.self", "decoder.0.self", "decoder.0.cross"]


@pytest.mark.slow
def test_the_translator_of_the_notebook_learns_a_crossing_alignment() -> None:
    text = output_text(run_notebook("training"))
    num_correct = correct_without(text)
    assert int(text.partition(" of 50 exactly right")[0].split()[-1]) > 45
    assert "(1, 3), (2, 2)" in text  # big: grande, red: rojo
    assert [*num_correct] == ["encoder.0.self", "decoder.0.self", "decoder.0.cross"]
    assert num_correct["decoder.0.cross"] < 10


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notebook about views, run headless and exported as HTML."""
    nbconvert = pytest.importorskip("nbconvert", reason="nbconvert is not installed: the notebook is not exported")
    notebook = run_notebook("seeing")
    assert sum(len(json.dumps(output)) for output in cell_outputs(notebook)) < 5 * 2 * MAX_CELL_BYTES
    html, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    path = tmp_path_factory.mktemp("exported") / "seeing.html"
    path.write_text(html, encoding="utf-8")
    return path


def test_the_notebook_about_views_runs_and_its_export_shows_five_views(exported: Path) -> None:
    images = ParsedHtml(exported.read_text(encoding="utf-8")).attributes_of("img")
    figures = [decode_image(image) for image in images if (image.get("src") or "").startswith("data:image/svg+xml")]
    titles = [(image.get("alt") or "").partition(":")[0] for image in images]
    views = ["matrix", "lines", "heads", "decoding", "flow"]
    assert [title for title in titles if title in views] == views
    assert len(figures) == 5


@pytest.mark.skipif(not browser_program(), reason="no browser is installed: the exported notebook is not opened")
@pytest.mark.parametrize("scripts", [True, False])
def test_an_export_shows_frames_with_scripts_and_images_without(exported: Path, scripts: bool) -> None:
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pages are not opened")
    with started() as browser:
        context = browser.new_context(java_script_enabled=scripts, offline=True)
        page = context.new_page()
        page.set_default_timeout(1000 * PAGE_GUARD)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(exported.as_uri(), wait_until="commit")
        page.wait_for_selector("[data-regard]", state="attached")
        images = page.locator("[data-regard] img")
        frames = page.locator("[data-regard] iframe")
        assert images.count() == frames.count() == 5
        if scripts:
            frames.first.wait_for(state="visible")
            assert not images.first.is_visible()
            page.frame_locator("[data-regard] iframe >> nth=0").locator("html[data-ready]").wait_for(state="attached")
            assert not [error for error in errors if "regard" in error.lower()]
        else:
            assert all(images.nth(index).is_visible() for index in range(5))
            assert not frames.first.is_visible()
            assert images.first.bounding_box()["width"] > 200
        context.close()
