"""Target: size and speed of the page in a real browser, with 12 layers × 12 heads, as a file and served.

Texts have up to 2,048 tokens. For a key press, the time until its effect is drawn is measured, with the weights that
are fetched from the server. Keys are pressed with a short pause between them, and heads are clicked a moment after the
pointer arrives; at the end the selection moves through heads without any pause. Reported beside this: the browser's own
measure from the key to the next paint, the longest task that blocked the page, and all work that followed.

python -m benchmarks.targets.page                # needs chromium and the dev extra
python -m benchmarks.targets.page --tokens 128
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.server.app import create_app
from regard.server.store import RecordStore
from regard.view.codec import Weights
from regard.view.page import bundle, page
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from tests.server.running import running
from tests.view.browser import Seen, started

LAYERS = 12
HEADS = 12
HEAD_SIZE = 64
MAX_FILE_TOKENS = 128  # longer texts are served
LIMITS = {
    "file (bytes)": 3_000_000,
    "script (bytes)": 200_000,
    "first view (ms)": 1000.0,
    "hover (ms of work)": 16.0,
    "any key (ms to drawn)": 100.0,
    "any key (ms to paint)": 100.0,
    "longest task (ms)": 100.0,
}
OBSERVE_SCRIPT = """() => {
    window.presses = []; window.tasks = []; window.drawn = [];
    const wait = ({ timeStamp }) => {
        const check = () => requestAnimationFrame(() => {
            if (document.querySelector('[aria-busy=true]')) check();
            else setTimeout(() => window.drawn.push(performance.now() - timeStamp));
        });
        check();
    };
    for (const type of ['keydown', 'pointerup']) document.addEventListener(type, wait, true);
    const observe = (type, callback) => new PerformanceObserver(
        (list) => list.getEntries().forEach(callback)
    ).observe({ type, durationThreshold: 16 });
    observe('event', (entry) => { if (entry.name === 'keydown') window.presses.push(entry.duration); });
    observe('longtask', (entry) => window.tasks.push(entry.duration));
}"""
HOVER_SCRIPT = """(count) => {
    const box = document.querySelector('.heatmap'), bounds = box.getBoundingClientRect(), durations = [];
    const position = (start, size, step) => start + size * (0.2 + 0.6 * (step % 30) / 30);
    for (let step = 0; step < count; step += 1) {
        const clientX = position(bounds.left, bounds.width, step * 7);
        const clientY = position(bounds.top, bounds.height, step * 11);
        const start = performance.now();
        box.dispatchEvent(new PointerEvent('pointermove', { clientX, clientY, bubbles: true }));
        document.body.getBoundingClientRect();
        durations.push(performance.now() - start);
    }
    return durations;
}"""
COLLECT_SCRIPT = "() => [window.drawn.splice(0), window.presses.splice(0), window.tasks.splice(0)]"
IS_DRAWN_SCRIPT = "() => window.drawn.length > 0"
FIRST_VIEW_SCRIPT = "performance.getEntriesByName('first view')[0].startTime"
HOVERS = 60
KEYS = ["]", "ArrowUp", "1", "2", "3", "w", "w", "n", "v", "v", "ArrowRight", "8", "3", "t"]
KEY_ROUNDS = 2
PAUSE = 300  # milliseconds between keys
FAST_HEADS = 5  # moved through without a pause, forwards and backwards
CLICKED_HEADS = [5, 140, 70, 33]  # far from one another
AIM_PAUSE = 200  # milliseconds between arriving at a head and the click


class QueryKeyWeights:
    """Attention weights that are computed from random queries and keys when they are read."""

    def __init__(self, tokens: int) -> None:
        rng = np.random.default_rng(0)
        shape = (LAYERS, HEADS, tokens, HEAD_SIZE)
        self.query = rng.normal(size=shape).astype(np.float16)
        self.key = rng.normal(size=shape).astype(np.float16)
        self.tokens = tokens

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return LAYERS, HEADS, self.tokens, self.tokens

    def rows(self, layer: int, head: int, rows: NDArray[np.int64]) -> Weights:
        query = self.query[layer, head, rows].astype(np.float32)
        scores = query @ self.key[layer, head].astype(np.float32).T
        scores *= 3 / np.sqrt(HEAD_SIZE)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        return np.asarray(scores / scores.sum(axis=-1, keepdims=True), dtype=np.float32)


def build_record(tokens: int) -> Record:
    """Record of an encoder with so many tokens; every fifth one continues a word."""
    subwords = [f" word{index}" if index % 5 else f"s{index}" for index in range(1, tokens - 1)]
    word_ids = np.cumsum([subword.startswith(" ") for subword in subwords]) - 1
    side = RecordText("".join(subwords).strip(), ("[CLS]", *subwords, "[SEP]"), (-1, *word_ids.tolist(), -1))
    layers = tuple(range(LAYERS))
    attention = AttentionRecord("encoder.self", "source", "source", QueryKeyWeights(tokens), layers)
    if tokens <= MAX_FILE_TOKENS:
        weights = attention.weights.astype(np.float16)
        attention = AttentionRecord("encoder.self", "source", "source", weights, layers)
    return Record(f"{tokens} tokens", {"source": side}, (attention,), task="embed")


class WorkClock:
    """Time that the page's main thread has worked: other programs do not lengthen it."""

    def __init__(self, page: Any) -> None:
        self.session = page.source_context.new_cdp_session(page)
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def milliseconds(self) -> float:
        metrics = self.session.send("Performance.getMetrics")["metrics"]
        values = {metric["name"]: metric["value"] for metric in metrics}
        return 1000 * float(values["TaskDuration"])


@dataclass
class KeyTimes:
    """Longest times of each key, in milliseconds."""

    drawn: dict[str, float] = field(default_factory=dict)
    painted: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)
    longest_task: float = 0.0


def press_keys(browser: Seen, clock: WorkClock) -> KeyTimes:
    """Press every key that draws, with pauses."""
    times = KeyTimes()
    for key in KEYS * KEY_ROUNDS:
        work_before = clock.milliseconds()
        browser.page.keyboard.press(key)
        browser.page.wait_for_function(IS_DRAWN_SCRIPT)
        browser.settle()
        browser.page.wait_for_timeout(PAUSE)
        times.work[key] = max(times.work.get(key, 0.0), clock.milliseconds() - work_before)
        drawn, painted, tasks = browser.page.evaluate(COLLECT_SCRIPT)
        times.drawn[key] = max(times.drawn.get(key, 0.0), *drawn)
        times.painted[key] = max(times.painted.get(key, 0.0), *painted, 0.0)  # below 16 ms nothing is reported
        times.longest_task = max(times.longest_task, *tasks, 0.0)
    return times


def click_heads(browser: Seen) -> float:
    """Longest time from a click on a head until it is drawn."""
    longest = 0.0
    for index in CLICKED_HEADS:
        browser.page.locator(".square").nth(index).hover()
        browser.page.wait_for_timeout(AIM_PAUSE)
        browser.page.mouse.down()
        browser.page.mouse.up()
        browser.page.wait_for_function(IS_DRAWN_SCRIPT)
        longest = max(longest, *browser.page.evaluate(COLLECT_SCRIPT)[0])
        browser.page.wait_for_timeout(PAUSE)
    return longest


def move_through_heads(browser: Seen) -> tuple[list[float], float]:
    """Times until drawn and the longest time to the next paint, without pauses between keys."""
    drawn_times = []
    longest_paint = 0.0
    for key in ["3", *"[" * FAST_HEADS, *"]" * FAST_HEADS]:
        browser.page.keyboard.press(key)
        browser.page.wait_for_function(IS_DRAWN_SCRIPT)
        drawn, painted, _ = browser.page.evaluate(COLLECT_SCRIPT)
        drawn_times.append(drawn[0])
        longest_paint = max(longest_paint, *painted, 0.0)
    return drawn_times, longest_paint


def measure_page(chromium: Any, address: str) -> dict[str, float]:
    """Open a page, hover over its matrix, press keys and click heads; return how long everything took."""
    browser = Seen(chromium)
    clock = WorkClock(browser.page)
    browser.page.goto(address)
    browser.page.wait_for_selector("html[data-ready]")
    browser.settle()
    first_view = float(browser.page.evaluate(FIRST_VIEW_SCRIPT))
    opening_work = clock.milliseconds()
    browser.keys("3")
    hover_times = browser.page.evaluate(HOVER_SCRIPT, HOVERS)
    work_before = clock.milliseconds()
    browser.page.evaluate(HOVER_SCRIPT, HOVERS)
    hover_work = (clock.milliseconds() - work_before) / HOVERS
    browser.page.evaluate(OBSERVE_SCRIPT)
    times = press_keys(browser, clock)
    browser.keys("3")
    times.drawn["a head clicked"] = click_heads(browser)
    fast_times, fast_paint = move_through_heads(browser)
    browser.close()
    for caption, by_key in (
        ("until drawn", times.drawn),
        ("to the next paint", times.painted),
        ("of all work", times.work),
    ):
        print(f"   keys (ms {caption}):", ", ".join(f"{key} {ms:.0f}" for key, ms in by_key.items()))
    fast = ", ".join(f"{ms:.0f}" for ms in fast_times)
    print(f"   heads without a pause (ms until drawn): {fast}; to the next paint at most {fast_paint:.0f}")
    return {
        "first view (ms)": first_view,
        "opening (ms of work)": opening_work,
        "hover (ms)": statistics.median(hover_times),
        "hover (ms of work)": hover_work,
        "any key (ms to drawn)": max(times.drawn.values()),
        "any key (ms to paint)": max(times.painted.values()),
        "longest task (ms)": times.longest_task,
        "any key (ms of work)": max(times.work.values()),
    }


def measure_file(chromium: Any, record: Record) -> dict[str, float]:
    """Figures of a page that is a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page([record], title="benchmark"), encoding="utf-8")
        figures = measure_page(chromium, file.as_uri())
        sizes = {"file (bytes)": file.stat().st_size, "script (bytes)": len(bundle().encode())}
    return figures | sizes


def measure_server(chromium: Any, record: Record) -> dict[str, float]:
    """Figures of a page that is served."""
    shelf = RecordStore([record])
    shelf.json_bytes(record.id)  # as `serve` does before it prints the address
    with running(create_app(shelf, token="benchmark")) as port:
        return measure_page(chromium, f"http://127.0.0.1:{port}/r/{record.id}?token=benchmark")


def find_limit(page_name: str, figure: str) -> float | None:
    """Limit of a figure: those of keys hold for the longest text, those of opening and hovering for shorter ones."""
    is_longest = "2048" in page_name
    is_of_short_texts = figure in ("hover (ms of work)", "first view (ms)")
    if is_longest == is_of_short_texts and "bytes" not in figure:
        return None
    return LIMITS.get(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[128, 512, 2048])
    arguments = parser.parse_args()
    pages: dict[str, dict[str, float]] = {}
    with started() as chromium:
        for tokens in arguments.tokens:
            record = build_record(tokens)
            if tokens <= MAX_FILE_TOKENS:
                pages[f"{tokens} tokens, a file"] = measure_file(chromium, record)
            else:
                pages[f"{tokens} tokens, served"] = measure_server(chromium, record)
    is_met = True
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for page_name, figures in pages.items():
        print(page_name)
        for figure, value in figures.items():
            limit = find_limit(page_name, figure)
            verdict = ""
            if limit is not None:
                verdict = f"   limit {limit:,.0f}" + ("" if value <= limit else "  MISSED")
                is_met &= value <= limit
            print(f"  {figure:<22}{value:>12,.1f}{verdict}")
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
