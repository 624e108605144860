"""A run as it goes: a live bar in a terminal, plain lines in a log, JSON lines for programs.

A watcher has one method, `event(kind, facts)`; the kinds are those of `training.watch`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from regard.formatting import format_duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


Item = TypeVar("Item")
Write = Callable[[str], object]
EVERY = 10.0  # seconds between plain lines


def format_event(event: str, data: dict[str, Any]) -> list[str]:
    """Return an event as lines for people.

    >>> format_event("resume", {"step": 40})
    ['going on from step 40']
    >>> format_event("resume", {"step": 40, "unit": "pass"})
    ['going on from pass 40']
    """
    match event:
        case "plan":
            return [str(line) for line in data.get("lines", [])] or [str(data.get("text", ""))]
        case "resume":
            return [f"going on from {_place(data)}"]
        case "step":
            return [step_line(data)]
        case "evaluate":
            return evaluation_lines(data)
        case "note":
            return [str(data["text"])]
        case "stop":
            return _stop_lines(data)
    return []


def step_line(facts: dict[str, Any]) -> str:
    """Return where training stands, in one line.

    >>> step_line({"step": 3, "unit": "pass", "of": 9, "loss": 0.5, "error": 12.5, "questions_per_second": 812.0})
    'pass 3/9, loss 0.500, error 12.5 %, 812 questions/s'
    """
    of = f"/{facts['of']}" if facts.get("of") else ""
    return ", ".join([f"{_place(facts)}{of}", *_state(facts)])


def _place(facts: dict[str, Any]) -> str:
    """Return what is counted and how far it is: step 40, pass 3."""
    return f"{facts.get('unit', 'step')} {facts['step']}"


def _state(facts: dict[str, Any]) -> list[str]:
    """Return loss, error where it is known, speed and time left."""
    parts = [f"loss {facts['loss']:.3f}"]
    if "error" in facts:
        parts.append(f"error {facts['error']:.1f} %")
    parts += [
        f"{value:,.0f} {name.removesuffix('_per_second')}/s"
        for name, value in facts.items()
        if name.endswith("_per_second")
    ]
    if facts.get("seconds_left") is not None:
        parts.append(f"{format_duration(facts['seconds_left'])} left")
    return parts


def evaluation_lines(facts: dict[str, Any]) -> list[str]:
    """Return the scores and the sample translations of one evaluation."""
    star = " (best so far)" if facts.get("best") else ""
    lines = [f"{_place(facts)}: {format_metrics(facts['metrics'])}{star}"]
    for source, reference, hypothesis in facts.get("samples", []):
        lines += [f"    {source}", f"    → {hypothesis}"]
        lines += [] if hypothesis == reference else [f"    = {reference}"]
    return lines


def format_metrics(metrics: dict[str, Any]) -> str:
    """Return the numbers of a set of measures, in one line.

    >>> format_metrics({"bleu": 39.216, "bleu_signature": "…"})
    'bleu 39.22'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, int | float))


def _stop_lines(facts: dict[str, Any]) -> list[str]:
    at = f" at {_place(facts)}" if "step" in facts else ""
    advice = ["to go on: " + facts.get("command", "repeat the same command")] if facts.get("resumable") else []
    return [f"stopped{at} ({facts['reason']})" + ("; all is saved" if advice else ""), *advice]


class JsonListener:
    """Writes each event as one line of JSON."""

    def __init__(self, write: Write) -> None:
        self.write = write

    def on_event(self, kind: str, facts: dict[str, Any]) -> None:
        """Write the event."""
        self.write(json.dumps({"event": kind, **facts}, ensure_ascii=False, default=str))


class LogListener:
    """Writes events as lines; steps only every few seconds, so that a log stays readable."""

    def __init__(self, write: Write, *, every: float = EVERY) -> None:
        self.write, self.every = write, every
        self._next = 0.0

    def on_event(self, kind: str, facts: dict[str, Any]) -> None:
        """Write the event's lines, if it has any that are due."""
        if kind == "step":
            now = time.monotonic()
            if now < self._next:
                return
            self._next = now + self.every
        for line in format_event(kind, facts):
            self.write(line)


class ProgressBarListener:
    """Keeps one bar at the bottom of the terminal and writes everything else above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.progress: Progress = Progress(
            TextColumn("{task.fields[at]}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True, highlight=False),
            expand=True,
            transient=True,
        )
        self._task: TaskID | None = None
        self._best = ""

    def on_event(self, kind: str, facts: dict[str, Any]) -> None:
        """Move the bar, or write the event's lines above it."""
        if kind == "step":
            self._move(facts)
            return
        if kind == "evaluate" and facts.get("best"):
            self._best = f"best BLEU {facts['metrics']['bleu']:.2f}" if "bleu" in facts["metrics"] else ""
        if kind in ("stop", "done"):
            self.close()
        for line in format_event(kind, facts):
            self.progress.console.print(line, markup=False)

    def close(self) -> None:
        """Take the bar away."""
        self.progress.stop()

    def _move(self, facts: dict[str, Any]) -> None:
        shown = " · ".join([*_state(facts), *([self._best] if self._best else [])])
        if self._task is None:
            self.progress.start()
            self._task = self.progress.add_task("", total=1.0, at="", facts="")
        self.progress.update(self._task, completed=facts.get("fraction") or 0.0, at=_place(facts), facts=shown)


def with_progress(
    windows: Iterable[list[Item]], total: int, unit: str, write: Write, *, is_terminal: bool, interval: float = EVERY
) -> Iterator[Item]:
    """Pass on the items of windows, and show how many were done, at what rate, and how long the rest will take."""
    return _counted_live(windows, total, unit) if is_terminal else _counted_plain(windows, total, unit, write, interval)


def _counted_plain(windows: Iterable[list[Item]], total: int, what: str, write: Write, every: float) -> Iterator[Item]:
    done, start = 0, time.monotonic()
    due = start + every
    for window in windows:
        done += len(window)
        now = time.monotonic()
        if now >= due and done:
            due = now + every
            rate = done / (now - start)
            write(f"{done:,} of {total:,} {what}, {rate:,.1f}/s, {format_duration((total - done) / rate)} left")
        yield from window


def _counted_live(windows: Iterable[list[Item]], total: int, what: str) -> Iterator[Item]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn(f"{what}{{task.fields[rate]}}", markup=False),
        TimeRemainingColumn(),
    )
    done, start = 0, time.monotonic()
    with Progress(*columns, console=Console(stderr=True), expand=True, transient=True) as bar:
        task = bar.add_task(what, total=total, rate="")
        for window in windows:
            done += len(window)
            rate = done / max(1e-9, time.monotonic() - start)
            bar.update(task, completed=done, rate=f", {rate:,.1f}/s")
            yield from window
