"""An evaluation on validation data, and the protocol of what makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from regard.models.base import Model
from regard.training.snapshots import AttentionSnapshot


@dataclass(frozen=True)
class Evaluation:
    """Metrics, samples and duration of one evaluation."""

    metrics: dict[str, float]
    sort_key: tuple[float, ...]  # compares evaluations; the larger is the better
    samples: list[tuple[str, str, str]]  # input, reference, prediction
    seconds: float
    attention: AttentionSnapshot | None = None  # of one text, the same at every evaluation


class Evaluator(Protocol):
    """A separate model that receives the weights to evaluate."""

    @property
    def model(self) -> Model:
        """The model with the weights to evaluate."""
        ...

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Load weights by name."""
        ...

    def evaluate(self) -> Evaluation:
        """Evaluate the loaded weights on validation data."""
        ...
