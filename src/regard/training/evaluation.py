"""What a run must know of what it trains: how training goes, and a task's data, model, measures and folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from regard.models.base import Model
from regard.training.snapshots import AttentionSnapshot


@dataclass(frozen=True)
class Evaluation:
    """What was measured, some samples, and the seconds it took."""

    metrics: dict[str, float]
    sort_key: tuple[float, ...]  # what decides between evaluations; the larger is the better
    samples: list[tuple[str, str, str]]  # given, wanted, said
    seconds: float
    attention: AttentionSnapshot | None = None  # where the model looked at one text, the same every time


class Evaluator(Protocol):
    """A model of its own that receives the weights to be measured."""

    @property
    def model(self) -> Model:
        """The model that is measured."""
        ...

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Take these weights."""
        ...

    def evaluate(self) -> Evaluation:
        """Measure them on validation data."""
        ...
