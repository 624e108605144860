"""A watcher that writes TensorBoard logs; the extra `tensorboard` has the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.errors import UsageError


class TensorBoardWatcher:
    """Writes losses, rates and measures into `RUN/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError("TensorBoard is not installed: pip install 'regard[tensorboard]'") from error
        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """Write what can be drawn."""
        if kind == "step":
            for name in facts:
                if name in ("loss", "error", "learning_rate") or name.endswith("_per_second"):
                    self.writer.add_scalar(f"training/{name}", facts[name], facts["step"])
        elif kind == "evaluate":
            for name, value in facts["metrics"].items():
                self.writer.add_scalar(f"validation/{name}", value, facts["step"])
            self.writer.flush()
