"""What a training run tells those who watch it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Watcher(Protocol):
    """Receives what happens; never changes it.

    Kinds: `plan`, `resume`, `step`, `evaluate`, `save`, `note`, `stop`, `done`.
    """

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """Take one event with its facts, all plain values."""
        ...


def tell(watchers: Sequence[Watcher], kind: str, **facts: Any) -> None:
    """Hand an event to every watcher."""
    for watcher in watchers:
        watcher.event(kind, facts)
