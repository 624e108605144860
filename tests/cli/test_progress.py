from __future__ import annotations

import json
import time
from typing import Any

import pytest

from regard.cli.progress import JsonListener, LogListener, ProgressBarListener, format_event, with_progress

STEP = {"step": 7, "of": 11, "loss": 2.5, "tokens_per_second": 1234.5, "seconds_left": 65, "fraction": 7 / 11}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("plan", {"lines": ["data: 13 pairs", "model: 0.1 M"], "parameters": 5}),
    ("resume", {"step": 3}),
    ("step", {**STEP, "learning_rate": 0.1}),
    ("step", {**STEP, "of": None, "seconds_left": None, "fraction": 0.0}),
    ("evaluate", {"step": 7, "metrics": {"loss": 1.5, "bleu": 33.333}, "samples": [("[b]x", "y", "z")], "best": True}),
    ("save", {"step": 7}),
    ("note", {"text": "[red]a note"}),
    ("stop", {"reason": "SIGINT", "step": 8, "resumable": True}),
    ("done", {"step": 8, "metrics": {}}),
]


def test_plain_lines_say_all_but_repeat_no_step() -> None:
    lines: list[str] = []
    watcher = LogListener(lines.append)
    for kind, facts in EVENTS:
        watcher.on_event(kind, facts)
    assert lines == [
        "data: 13 pairs",
        "model: 0.1 M",
        "going on from step 3",
        "step 7/11, loss 2.500, 1,234 tokens/s, 1 min 05 s left",
        "step 7: loss 1.5, bleu 33.33 (best so far)",
        "    [b]x",
        "    → z",
        "    = y",
        "[red]a note",
        "stopped at step 8 (SIGINT); all is saved",
        "to go on: repeat the same command",
    ]


def test_steps_come_again_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines: list[str] = []
    watcher = LogListener(lines.append, every=0.05)
    for _ in range(4):
        watcher.on_event("step", STEP)
        now += 0.04
        watcher.on_event("step", STEP)
        now += 0.02
    assert len(lines) == 4


def test_a_right_sample_shows_no_reference() -> None:
    facts = {"step": 1, "metrics": {}, "samples": [("a", "b", "b")]}
    assert format_event("evaluate", facts)[1:] == ["    a", "    → b"]


def test_events_as_json_are_one_line_each() -> None:
    lines: list[str] = []
    watcher = JsonListener(lines.append)
    for kind, facts in EVENTS:
        watcher.on_event(kind, facts)
    assert [json.loads(line)["event"] for line in lines] == [kind for kind, _ in EVENTS]
    assert json.loads(lines[2])["loss"] == 2.5


def test_the_live_bar_takes_every_event_and_leaves_marks_in_texts_alone(capfd: pytest.CaptureFixture[str]) -> None:
    watcher = ProgressBarListener()
    for kind, facts in EVENTS:
        watcher.on_event(kind, facts)
    watcher.close()
    out, error = capfd.readouterr()
    assert out == ""
    assert "[red]a note" in error
    assert "    [b]x" in error


@pytest.mark.parametrize("live", [True, False])
def test_counting_passes_everything_on_in_order(live: bool, capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    windows = [list(range(11)), [], list(range(11, 23))]
    assert list(with_progress(windows, 23, "texts", lines.append, is_terminal=live, interval=0.0)) == list(range(23))
    assert capfd.readouterr().out == ""
    assert live or [line.split(", ")[0] for line in lines] == ["11 of 23 texts", "11 of 23 texts", "23 of 23 texts"]
