"""What a run must know of what it trains: how training goes, and a task's data, model, measures and folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from torch import Tensor

from regard.checkpoint.directory import RunDirectory
from regard.config.run import RunConfig
from regard.models.base import Model, start_weights
from regard.tasks.base import Task
from regard.training.distributed import Distributed
from regard.training.looked import Looked
from regard.training.verdict import TrivialBaseline, Verdict
from regard.training.watch import Watcher, tell


@dataclass(frozen=True)
class Sitting:
    """One sitting of a run: its settings, its folder, who watches and who trains along, and when it began."""

    config: RunConfig
    directory: RunDirectory
    watchers: Sequence[Watcher]
    distributed: Distributed
    started: float  # by time.monotonic(): when the command began, so that a time budget covers all of it

    def say(self, text: str) -> None:
        """Tell the user something."""
        tell(self.watchers, "note", text=text)


@dataclass(frozen=True)
class Plan:
    """What will be trained, in words, and about how long it takes."""

    lines: list[str]
    parameters: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """How training ended; what was measured is there only when nothing is left to do."""

    step: int
    reason: str  # "plan done", "patience", "target reached", or the signal that stopped it
    seconds: float
    metrics: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # for the run's record
    verdict: Verdict | None = None  # None while something is left to do


class Training(Protocol):
    """One way to train: reads its data when it is made, then chooses, plans and trains."""

    unit: str  # what is counted: step, pass
    digests: dict[str, str]  # of the data

    def choose(self) -> dict[str, Any]:
        """Return what is chosen when a run begins and kept for good."""
        ...

    def plan(self, chosen: Mapping[str, Any]) -> Plan:
        """Say what will be done."""
        ...

    def train(self, chosen: Mapping[str, Any]) -> Outcome:
        """Go on from the newest checkpoint until the plan is done or a signal comes."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """What was measured, some samples, and the seconds it took."""

    metrics: dict[str, float]
    rank: tuple[float, ...]  # what decides between evaluations; the larger is the better
    samples: list[tuple[str, str, str]]  # given, wanted, said
    seconds: float
    looked: Looked | None = None  # where the model looked at one text, the same every time


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
    deadline: float  # by time.monotonic(): what is optional at the end of a run is left out after it
    goes_on: bool  # whether the model starts from another's weights
    wishes: dict[str, float]  # settings of training that suit the task, where the user leaves the choice
    verdict: Verdict | None  # on the whole run, set before `finish`

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

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads or writes, to estimate its time."""
        ...

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation data only."""
        ...

    def closing_seconds(self, evaluation: float) -> float:
        """Estimate the seconds that `finish` takes, given those of one evaluation."""
        ...

    def trivial_baselines(self) -> Sequence[TrivialBaseline]:
        """Validation scores of rules that know training statistics only: a run must beat all of them."""
        ...

    def keep(self, evaluator: Any, found: Evaluation, step: int) -> None:
        """Write the measured weights as the run's model."""
        ...

    def finish(
        self, evaluator: Any, average: Mapping[str, Tensor] | None, step: int, best: Sequence[float], say: Say
    ) -> dict[str, Any]:
        """Choose between the best weights and the average of the last ones, write the choice, return its measures."""
        ...


Made = TypeVar("Made", bound=Model)
Say = Callable[[str], object]  # tells the user something


def started(model: Made, seed: int, weights: Mapping[str, Tensor] | None = None) -> Made:
    """Return the model with its first weights: another's, or those that belong to a seed."""
    if weights is None:
        start_weights(model, seed)
    else:
        model.load_state_dict(dict(weights))
    return model


def load_better(
    evaluator: Evaluator,
    kept: Mapping[str, Tensor],
    average: Mapping[str, Tensor] | None,
    best: Sequence[float],
    say: Say,
) -> bool:
    """Load the average of the last weights where it measures better than the best ones kept, else these.

    Returns whether it is the average.
    """
    if average is not None:
        evaluator.load(average)
        if list(evaluator.measure().rank) > [*best]:
            say("the average of the last evaluations is best")
            return True
    evaluator.load(kept)
    return False


class Rows(Protocol):
    """What was read from files, some of it perhaps rejected."""

    @property
    def read(self) -> int: ...
    @property
    def rejected(self) -> int: ...
    @property
    def reject_file(self) -> str: ...


def rejection_notes(rows: Rows, name: str) -> list[str]:
    """Say how many rows a lenient reading left out, and where they are."""
    if not rows.rejected:
        return []
    return [f"{rows.rejected:,} of {rows.read:,} {name} rows are rejected: see {rows.reject_file}"]
