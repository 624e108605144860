"""Events of a training run and their listeners."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from regard.errors import UsageError

PLOTTED_FIELDS = ("loss", "error", "learning_rate")  # of a step, besides rates per second


class Listener(Protocol):
    """Receives the events of a run; never changes it.

    Events: `plan`, `resume`, `step`, `evaluate`, `save`, `note`, `stop`, `done`.
    """

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        """Handle one event; its data are JSON values."""
        ...


def notify(listeners: Sequence[Listener], event: str, **data: Any) -> None:
    """Send an event to every listener."""
    for listener in listeners:
        listener.on_event(event, data)


class TensorBoardListener:
    """Writes losses, learning rates and metrics to `RUN/tensorboard`; needs the extra `tensorboard`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError("TensorBoard is not installed: pip install 'regard[tensorboard]'") from error
        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        """Write the numbers of a step or an evaluation."""
        if event == "step":
            for name in data:
                if name in PLOTTED_FIELDS or name.endswith("_per_second"):
                    self.writer.add_scalar(f"training/{name}", data[name], data["step"])
        elif event == "evaluate":
            for name, score in data["metrics"].items():
                self.writer.add_scalar(f"validation/{name}", score, data["step"])
            self.writer.flush()
