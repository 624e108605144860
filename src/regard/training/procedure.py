"""What the parts of a run share, and the protocol of the procedures that train."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypedDict

from regard.checkpoint.run_dir import RunDirectory
from regard.config.runs import RunConfig
from regard.errors import CheckpointError
from regard.training.distributed import Distributed
from regard.training.listeners import Listener, notify
from regard.training.verdict import Verdict


@dataclass(frozen=True)
class RunContext:
    """What all parts of a run share: config, directory, listeners, processes, and when the command started."""

    config: RunConfig
    directory: RunDirectory
    listeners: Sequence[Listener]
    distributed: Distributed
    start_time: float  # by time.monotonic(): start of the command, so that a time budget covers all of it

    def notify(self, text: str) -> None:
        """Send a note for the user to the listeners."""
        notify(self.listeners, "note", text=text)


class ModelSummaryDict(TypedDict):
    """JSON form of a `ModelSummary`."""

    architecture: str
    parameters: int
    data: str


@dataclass(frozen=True)
class ModelSummary:
    """What a run trains, in a few words."""

    architecture: str
    parameters: int
    data: str  # size of the training data

    def to_dict(self) -> ModelSummaryDict:
        """Convert to JSON values."""
        return {"architecture": self.architecture, "parameters": self.parameters, "data": self.data}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None, *, where: str = "") -> Self | None:
        """Build from the JSON values of a run, read from `where`; None where it has no summary."""
        if not values:
            return None
        if not isinstance(values, Mapping) or values.keys() != ModelSummaryDict.__annotations__.keys():
            raise CheckpointError(
                f"{where}: summary: an object with {', '.join(ModelSummaryDict.__annotations__)} is needed"
            )
        return cls(**values)


@dataclass(frozen=True)
class RunPlan:
    """Description of a run for the user, with an estimate of its duration."""

    lines: list[str]
    num_parameters: int
    seconds: float


@dataclass(frozen=True)
class TrainingResult:
    """How training ended; metrics, metadata, verdict and summary are set only when the run is complete."""

    step: int
    reason: str  # "plan done", "patience", "target reached", or the signal that stopped it
    seconds: float
    metric: str = ""  # name of the metric that selected the model
    metrics: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)  # for run.json
    verdict: Verdict | None = None
    summary: ModelSummary | None = None


class TrainingProcedure(Protocol):
    """One way to train: it prepares the data, resolves settings, plans and trains."""

    unit: str  # what is counted: step, epoch
    resolved_names: frozenset[str]  # of the settings that `resolve_settings` chooses
    digests: dict[str, str]  # of the data, once it is prepared

    def prepare(self) -> None:
        """Read the data and build what is trained on it; called once, before everything else."""
        ...

    def compute_digests(self, names: Collection[str]) -> dict[str, str]:
        """Digest the data and the models of these names as they are now, without preparing anything."""
        ...

    def resolve_settings(self) -> dict[str, Any]:
        """Choose the settings that are fixed when a run starts."""
        ...

    def plan(self, resolved: Mapping[str, Any]) -> RunPlan:
        """Describe the run."""
        ...

    def train(self, resolved: Mapping[str, Any]) -> TrainingResult:
        """Resume from the latest checkpoint and train until the plan is done or a signal arrives."""
        ...
