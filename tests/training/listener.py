"""Helpers for tests of runs: a listener that records events, and runs that are killed again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


class Listener:
    """Records every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        self.events.append((event, data))

    def of(self, event: str) -> list[dict[str, Any]]:
        """Data of all events of this name."""
        return [data for name, data in self.events if name == event]


def sittings(
    objective: type[Any], train: Callable[[], object], monkeypatch: pytest.MonkeyPatch, every: int = 11
) -> int:
    """Resume a run, killed at every `every`-th batch, until its end; return how often it was started."""
    original_loss = objective.loss
    calls = 0

    def interrupted_loss(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % every == 0:
            raise KeyboardInterrupt
        return original_loss(self, *arguments)

    monkeypatch.setattr(objective, "loss", interrupted_loss)
    for num_starts in range(1, 10):
        try:
            train()
            return num_starts
        except KeyboardInterrupt:
            continue
    raise AssertionError("the run never ended")
