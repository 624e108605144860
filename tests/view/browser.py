"""Chromium for tests: start it, open pages, press keys, collect errors and requests."""

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
    """Path of the first browser that is installed; empty without one."""
    paths = map(shutil.which, NAMES)
    return next((path for path in paths if path), "")


def needs_browser() -> Any:
    """Import Playwright, or skip the tests of the module that calls this."""
    if not browser_program():
        pytest.skip(f"no browser is installed ({', '.join(NAMES)}): pages are not opened", allow_module_level=True)
    return pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pages are not opened")


@contextmanager
def started() -> Iterator[Any]:
    """Start a headless browser and close it at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_program(), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Seen:
    """A page in the browser, with the errors and the requests that it caused."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.set_default_timeout(1000 * PAGE_GUARD)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", self._collect_message)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", self._dismiss_dialog)
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _collect_message(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def _dismiss_dialog(self, dialog: Any) -> None:
        self.faults.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def open(self, address: str) -> Seen:
        """Load a page and wait until it is drawn."""
        self.page.goto("about:blank")
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]")
        self.settle()
        return self

    def settle(self) -> None:
        """Wait until the weights are loaded and two animation frames have passed."""
        self.page.wait_for_function("() => !document.querySelector('[aria-busy=true]')")
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def keys(self, *names: str) -> None:
        """Press keys one after the other."""
        for name in names:
            self.page.keyboard.press(name)
        self.settle()

    def text(self, selector: str) -> str:
        """Text of the first element that matches."""
        return str(self.page.inner_text(selector))

    def count(self, selector: str) -> int:
        """Number of elements that match."""
        return int(self.page.locator(selector).count())

    def live(self, part: str) -> str:
        """The live region, which screen readers announce, once it contains `part`."""
        self.page.wait_for_function("(part) => document.getElementById('live').textContent.includes(part)", arg=part)
        return str(self.page.text_content("#live"))

    def close(self) -> None:
        """Close the page; fail on errors and on requests to other hosts."""
        self.context.close()
        assert not self.faults, self.faults
        local = ("file:", "data:", "blob:", "about:", "http://127.0.0.1")
        foreign = [address for address in self.asked if not address.startswith(local)]
        assert not foreign, foreign


def written(records: Sequence[Record], folder: Path, title: str = "Test page") -> str:
    """Write a page to a file and return its address."""
    file = folder / "page.html"
    file.write_text(page(records, title=title), encoding="utf-8")
    return file.as_uri()
