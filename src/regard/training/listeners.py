"""What a training run tells those who watch it.

A watcher that writes TensorBoard logs; the extra `tensorboard` has the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from regard.errors import UsageError


class Listener(Protocol):
    """Receives what happens; never changes it.

    Kinds: `plan`, `resume`, `step`, `evaluate`, `save`, `note`, `stop`, `done`.
    """

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        """Take one event with its facts, all plain values."""
        ...


def notify(listeners: Sequence[Listener], event: str, **data: Any) -> None:
    """Hand an event to every watcher."""
    for watcher in listeners:
        watcher.on_event(event, data)


class TensorBoardListener:
    """Writes losses, rates and measures into `RUN/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError("TensorBoard is not installed: pip install 'regard[tensorboard]'") from error
        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def on_event(self, kind: str, facts: dict[str, Any]) -> None:
        """Write what can be drawn."""
        if kind == "step":
            for name in facts:
                if name in ("loss", "error", "learning_rate") or name.endswith("_per_second"):
                    self.writer.add_scalar(f"training/{name}", facts[name], facts["step"])
        elif kind == "evaluate":
            for name, value in facts["metrics"].items():
                self.writer.add_scalar(f"validation/{name}", value, facts["step"])
            self.writer.flush()
