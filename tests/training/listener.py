"""What runs are tested with: a watcher that remembers, and sudden deaths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


class Listener:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def on_event(self, kind: str, facts: dict[str, Any]) -> None:
        self.events.append((kind, facts))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [facts for found, facts in self.events if found == kind]


def sittings(task: type[Any], train: Callable[[], object], monkeypatch: pytest.MonkeyPatch, every: int = 11) -> int:
    """Train to the end although every so many batches something kills the run; return how often it was begun."""
    honest, calls = task.loss, 0

    def dying(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % every == 0:
            raise KeyboardInterrupt
        return honest(self, *arguments)

    monkeypatch.setattr(task, "loss", dying)
    for sitting in range(1, 10):
        try:
            train()
            return sitting
        except KeyboardInterrupt:
            continue
    raise AssertionError("it never ended")
