"""Progress of training and inference: log lines, JSON lines, and the live bar."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from regard.cli.output import json_line
from regard.cli.progress import JsonListener, LogListener, ProgressBarListener, format_event, with_progress

STEP = {"step": 7, "of": 11, "loss": 2.5, "tokens_per_second": 1234.5, "seconds_left": 65, "fraction": 7 / 11}
EVALUATION = {
    "step": 7,
    "metric": "bleu",
    "metrics": {"loss": 1.5, "bleu": 33.333},
    "samples": [("[b]x", "y", "z")],
    "best": True,
}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("plan", {"lines": ["data: 13 pairs", "model: 0.1 M"], "parameters": 5}),
    ("resume", {"step": 3}),
    ("step", {**STEP, "learning_rate": 0.1}),
    ("step", {**STEP, "of": None, "seconds_left": None, "fraction": 0.0}),
    ("evaluate", EVALUATION),
    ("save", {"step": 7}),
    ("note", {"text": "[red]a note"}),
    ("stop", {"reason": "SIGINT", "step": 8, "resumable": True}),
    ("done", {"step": 8, "metrics": {"valid_bleu": 34.0, "valid_bleu_signature": "…", "test_bleu": 32.0}}),
]


def test_log_lines_have_every_event_but_repeat_no_step() -> None:
    lines: list[str] = []
    listener = LogListener(lines.append)
    for event, data in EVENTS:
        listener.on_event(event, data)
    assert lines == [
        "data: 13 pairs",
        "model: 0.1 M",
        "resuming from step 3",
        "step 7/11, loss 2.500, learning rate 0.1, 1,234 tokens/s, 1 min 05 s left",
        "step 7: validation loss 1.5000, BLEU 33.33 (new best)",
        "    [b]x",
        "    → z",
        "    = y",
        "[red]a note",
        "stopped at step 8 (SIGINT); checkpoint saved",
        "to resume: repeat the same command",
        "finished at step 8: validation BLEU 34.00; test BLEU 32.00",
    ]


def test_steps_are_logged_once_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines: list[str] = []
    listener = LogListener(lines.append, interval=0.05)
    for _ in range(4):
        listener.on_event("step", STEP)
        now += 0.04
        listener.on_event("step", STEP)
        now += 0.02
    assert len(lines) == 4


def test_a_correct_sample_is_shown_without_its_reference() -> None:
    data = {"step": 1, "metrics": {}, "samples": [("a", "b", "b")]}
    assert format_event("evaluate", data)[1:] == ["    a", "    → b"]


def test_events_as_json_are_one_object_each() -> None:
    events: list[dict[str, Any]] = []
    listener = JsonListener(events.append)
    for event, data in EVENTS:
        listener.on_event(event, data)
    assert events == [{"event": event, **data} for event, data in EVENTS]


def test_json_has_no_infinity() -> None:
    assert json_line({"loss": math.inf, "losses": [1.5, math.nan]}) == '{"loss": null, "losses": [1.5, null]}'


def test_the_live_bar_shows_every_event_and_does_not_interpret_markup(capfd: pytest.CaptureFixture[str]) -> None:
    listener = ProgressBarListener()
    for event, data in EVENTS:
        listener.on_event(event, data)
    listener.close()
    out, error = capfd.readouterr()
    assert out == ""
    assert "[red]a note" in error
    assert "    [b]x" in error


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_yields_every_item_in_order(is_terminal: bool, capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    windows = [list(range(11)), [], list(range(11, 23))]
    assert list(with_progress(windows, 23, "texts", lines.append, is_terminal=is_terminal, interval=0.0)) == list(
        range(23)
    )
    assert capfd.readouterr().out == ""
    assert is_terminal or [line.split(", ")[0] for line in lines] == [
        "11 of 23 texts",
        "11 of 23 texts",
        "23 of 23 texts",
    ]
