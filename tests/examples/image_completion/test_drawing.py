"""Images side by side: every pixel is drawn, and captions cannot break out of the page."""

from __future__ import annotations

import xml.etree.ElementTree as tree

import numpy as np

from examples.image_completion.drawing import to_html, to_svg, to_terminal

IMAGES = [("given", np.array([[0, 16], [-1, -1]])), ("<b>&", np.array([[0, 16], [8, 4]]))]


def test_shades_stand_side_by_side() -> None:
    assert to_terminal(IMAGES) == ["given  <b>&", "  ██     ██", "····   ▒▒░░"]


def test_the_svg_is_sound_and_has_every_pixel() -> None:
    root = tree.fromstring(to_svg(IMAGES))
    squares = [element for element in root if element.tag.endswith("rect")]
    assert len(squares) == 8
    assert [square.get("fill") for square in squares[:4]] == ["rgb(255,255,255)", "rgb(0,0,0)", "none", "none"]
    assert [element.text for element in root if element.tag.endswith("text")] == ["given", "<b>&"]


def test_the_page_loads_and_runs_nothing() -> None:
    page = to_html(IMAGES, "a <i>title</i>")
    assert "<script" not in page and "default-src 'none'" in page
    assert "<b>" not in page and "<i>" not in page
