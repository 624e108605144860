"""Progress of training and inference: a live bar on a terminal, log lines elsewhere, JSON lines for programs.

Listeners have one method, `on_event(event, data)`; `regard.training.listeners` lists the events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from regard.formatting import format_duration
from regard.metric_table import METRICS, format_metrics

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


Item = TypeVar("Item")
Write = Callable[[str], object]
LOG_INTERVAL = 10.0  # seconds between log lines
MIN_BAR_WIDTH = 8  # columns


def format_event(event: str, data: dict[str, Any]) -> list[str]:
    """Format an event as readable lines.

    >>> format_event("resume", {"step": 40})
    ['resuming from step 40']
    >>> format_event("resume", {"step": 40, "unit": "epoch"})
    ['resuming from epoch 40']
    """
    match event:
        case "plan":
            return [str(line) for line in data.get("lines", [])] or [str(data.get("text", ""))]
        case "resume":
            return [f"resuming from {_format_step(data)}"]
        case "step":
            return [step_line(data)]
        case "evaluate":
            return evaluation_lines(data)
        case "note":
            return [str(data["text"])]
        case "stop":
            return _stop_lines(data)
        case "done":
            return [f"finished at {_format_step(data)}: {'; '.join(format_metrics(data['metrics']))}"]
    return []


def step_line(data: dict[str, Any]) -> str:
    """Format the state of training as one line.

    >>> step = {"step": 3, "unit": "epoch", "of": 9, "loss": 0.5, "error": 12.5, "learning_rate": 0.005}
    >>> step_line({**step, "questions_per_second": 812.0, "seconds_left": 65.0})
    'epoch 3/9, loss 0.500, error 12.5 %, learning rate 0.005, 812 questions/s, 1 min 05 s left'
    """
    total = f"/{data['of']}" if data.get("of") else ""
    return ", ".join([f"{_format_step(data)}{total}", *_training_state(data)])


def _format_step(data: dict[str, Any]) -> str:
    """Unit and count: step 40, epoch 3."""
    return f"{data.get('unit', 'step')} {data['step']}"


def _training_state(data: dict[str, Any]) -> list[str]:
    """Loss, error rate where it is known, learning rate, throughput and remaining time."""
    fragments = [f"loss {data['loss']:.3f}"]
    if "error" in data:
        fragments.append(f"error {data['error']:.1f} %")
    if "learning_rate" in data:
        fragments.append(f"learning rate {data['learning_rate']:.2g}")
    for name, rate in data.items():
        if name.endswith("_per_second"):
            fragments.append(f"{rate:,.0f} {name.removesuffix('_per_second')}/s")
    if data.get("seconds_left") is not None:
        fragments.append(f"{format_duration(data['seconds_left'])} left")
    return fragments


def evaluation_lines(data: dict[str, Any]) -> list[str]:
    """Format the metrics and the samples of one evaluation.

    >>> evaluation_lines({"step": 7, "metrics": {"loss": 1.5, "bleu": 33.333}, "best": True})
    ['step 7: validation loss 1.5000, BLEU 33.33 (new best)']
    """
    best = " (new best)" if data.get("best") else ""
    named = {f"valid_{name}" if name in METRICS else name: value for name, value in data["metrics"].items()}
    metrics = format_metrics(named)
    lines = [f"{_format_step(data)}: {'; '.join(metrics)}{best}"]
    for source, reference, hypothesis in data.get("samples", []):
        lines += [f"    {source}", f"    → {hypothesis}"]
        if hypothesis != reference:
            lines.append(f"    = {reference}")
    return lines


def _format_best(data: dict[str, Any]) -> str:
    """Best value so far of the metric that selects the model.

    >>> _format_best({"metric": "bleu", "metrics": {"loss": 1.5, "bleu": 39.216}})
    'best BLEU 39.22'
    """
    name = data["metric"]
    return f"best {METRICS[name.removeprefix('valid_')].format_value(data['metrics'][name])}"


def _stop_lines(data: dict[str, Any]) -> list[str]:
    step = f" at {_format_step(data)}" if "step" in data else ""
    line = f"stopped{step} ({data['reason']})"
    if not data.get("resumable"):
        return [line]
    command = data.get("command", "repeat the same command")
    return [f"{line}; checkpoint saved", f"to resume: {command}"]


class JsonListener:
    """Writes each event as one JSON object."""

    def __init__(self, write: Callable[[dict[str, Any]], object]) -> None:
        self.write = write

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        """Write the event."""
        self.write({"event": event, **data})


class LogListener:
    """Writes events as log lines; steps at most once per interval, so that a log stays readable."""

    def __init__(self, write: Write, *, interval: float = LOG_INTERVAL) -> None:
        self.write = write
        self.interval = interval
        self._next_step_time = 0.0

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        """Write the event's lines; skip a step that is not due yet."""
        if event == "step":
            now = time.monotonic()
            if now < self._next_step_time:
                return
            self._next_step_time = now + self.interval
        for line in format_event(event, data):
            self.write(line)


class ProgressBarListener:
    """Shows a bar at the bottom of the terminal and writes everything else above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.progress: Progress = Progress(
            TextColumn("{task.fields[step]}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}", markup=False),
            console=Console(stderr=True, highlight=False),
            expand=True,
            transient=True,
        )
        self._task: TaskID | None = None
        self._best = ""

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        """Advance the bar, or write the event's lines above it."""
        if event == "step":
            self._advance(data)
            return
        if event == "evaluate" and data.get("best"):
            self._best = _format_best(data)
        if event in ("stop", "done"):
            self.close()
        for line in format_event(event, data):
            self.progress.console.print(line, markup=False)

    def close(self) -> None:
        """Remove the bar."""
        self.progress.stop()

    def _advance(self, data: dict[str, Any]) -> None:
        step = _format_step(data)
        width = self.progress.console.width - len(step) - MIN_BAR_WIDTH - 2
        state = fit_to_width([*_training_state(data), *filter(None, [self._best])], width)
        if self._task is None:
            self.progress.start()
            self._task = self.progress.add_task("", total=1.0, step="", state="")
        completed = data.get("fraction") or 0.0
        self.progress.update(self._task, completed=completed, step=step, state=state)


def fit_to_width(fragments: Sequence[str], width: int) -> str:
    """Join the fragments that fit; where there are too many, those in the middle are left out.

    >>> fit_to_width(["loss 2.5", "learning rate 0.1", "9 tokens/s", "1 min left", "best BLEU 30.00"], 42)
    'loss 2.5 · 1 min left · best BLEU 30.00'
    """
    shown = list(fragments)
    while len(shown) > 1 and len(" · ".join(shown)) > width:
        del shown[1]
    return " · ".join(shown)


def with_progress(
    windows: Iterable[list[Item]],
    total: int,
    unit: str,
    write: Write,
    *,
    is_terminal: bool,
    interval: float = LOG_INTERVAL,
) -> Iterator[Item]:
    """Yield the items of all windows; report how many are done, the rate and the remaining time."""
    if is_terminal:
        return _with_progress_bar(windows, total, unit)
    return _with_log_lines(windows, total, unit, write, interval)


def _with_log_lines(
    windows: Iterable[list[Item]], total: int, unit: str, write: Write, interval: float
) -> Iterator[Item]:
    done = 0
    start = time.monotonic()
    due = start + interval
    for window in windows:
        done += len(window)
        now = time.monotonic()
        if now >= due and done:
            due = now + interval
            rate = done / (now - start)
            write(f"{done:,} of {total:,} {unit}, {rate:,.1f}/s, {format_duration((total - done) / rate)} left")
        yield from window


def _with_progress_bar(windows: Iterable[list[Item]], total: int, unit: str) -> Iterator[Item]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn(f"{unit}{{task.fields[rate]}}", markup=False),
        TimeRemainingColumn(),
    )
    done = 0
    start = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), expand=True, transient=True) as bar:
        task = bar.add_task(unit, total=total, rate="")
        for window in windows:
            done += len(window)
            rate = done / max(1e-9, time.monotonic() - start)
            bar.update(task, completed=done, rate=f", {rate:,.1f}/s")
            yield from window
