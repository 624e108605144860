"""A real browser for tests: one for all of them, without a network, and everything it complains about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from regard.view.page import page
from regard.view.record.record import Record
from tests.scale import PAGE_GUARD

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@cache
def browser_program() -> str:
    """The browser's program, or nothing."""
    return next((found for found in map(shutil.which, NAMES) if found), "")


def needs_browser() -> Any:
    """Import Playwright, or skip the tests of the module that calls this."""
    if not browser_program():
        pytest.skip(f"no browser here ({', '.join(NAMES)}): pages are not opened", allow_module_level=True)
    return pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pages are not opened")


@contextmanager
def started() -> Iterator[Any]:
    """A browser that is closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=browser_program(), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Seen:
    """A page in the browser and what went wrong in it."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.set_default_timeout(1000 * PAGE_GUARD)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.page.on(
            "console", lambda told: self.faults.append(told.text) if told.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda box: (self.faults.append(f"dialog {box.message}"), box.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, address: str) -> Seen:
        """Go to a page and wait until it is drawn."""
        self.page.goto("about:blank")
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]")
        self.settle()
        return self

    def settle(self) -> None:
        """Wait until what was asked for is drawn: weights have come, and a frame has passed."""
        self.page.wait_for_function("() => !document.querySelector('[aria-busy=true]')")
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def keys(self, *names: str) -> None:
        """Press keys one after the other."""
        for name in names:
            self.page.keyboard.press(name)
        self.settle()

    def text(self, selector: str) -> str:
        """The text of the first such element."""
        return str(self.page.inner_text(selector))

    def count(self, selector: str) -> int:
        """How many such elements there are."""
        return int(self.page.locator(selector).count())

    def live(self, part: str) -> str:
        """The line that screen readers are told, once it has a part."""
        self.page.wait_for_function("(part) => document.getElementById('live').textContent.includes(part)", arg=part)
        return str(self.page.text_content("#live"))

    def close(self) -> None:
        """Close it; nothing may have gone wrong, and nothing may have been asked of another machine."""
        self.context.close()
        assert not self.faults, self.faults
        foreign = [
            one for one in self.asked if not one.startswith(("file:", "data:", "blob:", "about:", "http://127.0.0.1"))
        ]
        assert not foreign, foreign


def written(records: Sequence[Record], folder: Path, title: str = "Seen in a test") -> str:
    """The address of a page that was written to a file."""
    file = folder / "page.html"
    file.write_text(page(records, title=title), encoding="utf-8")
    return file.as_uri()
