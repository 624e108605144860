"""Pictures side by side: every pixel is drawn, and names cannot break out of the page."""

from __future__ import annotations

import xml.etree.ElementTree as tree

import numpy as np

from regard.view.pictures import lines, page, svg

SHOWN = [("given", np.array([[0, 16], [-1, -1]])), ("<b>&", np.array([[0, 16], [8, 4]]))]


def test_shades_stand_side_by_side() -> None:
    assert lines(SHOWN) == ["given  <b>&", "  ██     ██", "····   ▒▒░░"]


def test_the_svg_is_sound_and_has_every_pixel() -> None:
    root = tree.fromstring(svg(SHOWN))
    found = [part for part in root if part.tag.endswith("rect")]
    assert len(found) == 8
    assert [part.get("fill") for part in found[:4]] == ["rgb(255,255,255)", "rgb(0,0,0)", "none", "none"]
    assert [part.text for part in root if part.tag.endswith("text")] == ["given", "<b>&"]


def test_the_page_loads_and_runs_nothing() -> None:
    made = page(SHOWN, "a <i>title</i>")
    assert "<script" not in made and "default-src 'none'" in made
    assert "<b>" not in made and "<i>" not in made
