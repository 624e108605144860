"""Images side by side in the terminal, in SVG and in HTML: every pixel is drawn, captions are escaped."""

from __future__ import annotations

import xml.etree.ElementTree as tree

import numpy as np

from examples.image_completion.drawing import to_html, to_svg, to_terminal

INPUT = np.array([[0, 16], [-1, -1]])
COMPLETION = np.array([[0, 16], [8, 4]])
IMAGES = [("input", INPUT), ("<b>&", COMPLETION)]


def test_the_terminal_shows_shades_side_by_side() -> None:
    assert to_terminal(IMAGES) == ["input  <b>&", "  ██     ██", "····   ▒▒░░"]


def test_the_svg_is_well_formed_and_has_every_pixel() -> None:
    root = tree.fromstring(to_svg(IMAGES))
    pixels = [element for element in root if element.tag.endswith("rect")]
    assert len(pixels) == 8
    assert [pixel.get("fill") for pixel in pixels[:4]] == ["rgb(255,255,255)", "rgb(0,0,0)", "none", "none"]
    captions = [element.text for element in root if element.tag.endswith("text")]
    assert captions == ["input", "<b>&"]


def test_the_page_runs_no_script_and_escapes_its_captions() -> None:
    page = to_html(IMAGES, "a <i>title</i>")
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert "<b>" not in page
    assert "<i>" not in page
