"""What a run must know of the task it trains: its data, its model, its measures, its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from regard.models.base import Model
from regard.tasks.base import Task


@dataclass(frozen=True)
class Evaluation:
    """What was measured, some samples, and the seconds it took."""

    metrics: dict[str, float]
    rank: tuple[float, ...]  # what decides between evaluations; the larger is the better
    samples: list[tuple[str, str, str]]  # given, wanted, said
    seconds: float


class Evaluator(Protocol):
    """A model of its own that receives the weights to be measured."""

    @property
    def model(self) -> Model:
        """The model that is measured."""
        ...

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Take these weights."""
        ...

    def measure(self) -> Evaluation:
        """Measure them on validation data."""
        ...


class Job(Protocol):
    """A task's data and model, read and chosen; every task has one file with its own."""

    digests: dict[str, str]  # of the data
    notes: list[str]  # for the user, before training starts
    width: int  # of the model
    tokens: int  # predictions in one pass over the data
    goes_on: bool  # whether the model starts from another's weights

    @property
    def task(self) -> Task:
        """The training examples, batch by batch, and their loss."""
        ...

    def model(self) -> Model:
        """Return the model with its first weights."""
        ...

    def evaluator(self, device: str) -> Evaluator:
        """Return what measures weights."""
        ...

    def lines(self, parameters: int) -> list[str]:
        """Say what the data and the model are, for people."""
        ...

    def keep(self, evaluator: Any, found: Evaluation, step: int) -> None:
        """Write the measured weights as the run's model."""
        ...

    def finish(
        self, evaluator: Any, average: Mapping[str, Tensor] | None, step: int, best: Sequence[float], say: Say
    ) -> dict[str, Any]:
        """Choose between the best weights and the average of the last ones, write the choice, return its measures."""
        ...


Say = Callable[[str], object]  # tells the user something
