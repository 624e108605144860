"""The page of a comparison in a browser: it loads nothing, reports no error, and fits light and dark screens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.report.comparison.page import page
from tests.report.comparison.test_page import build
from tests.view.browser import Seen, needs_browser, started

needs_browser()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as chromium:
        yield chromium


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_without_errors(browser: Any, scheme: str, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(build()), "utf-8")
    seen = Seen(browser, color_scheme=scheme, viewport={"width": 420, "height": 900})
    seen.page.goto(file.as_uri())
    assert seen.faults == []
    assert seen.asked == [file.as_uri()]
    assert seen.page.locator("tbody tr").count() == 3
    assert seen.page.locator("svg").count() == 5
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # the table scrolls by itself
    background = seen.page.evaluate("getComputedStyle(document.documentElement).colorScheme")
    assert background == "light dark"
