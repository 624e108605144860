"""Events of a training run and their listeners."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, Protocol, TypedDict

from regard.errors import UsageError
from regard.training.verdict import VerdictDict

PLOTTED_FIELDS = ("loss", "error", "learning_rate")  # of a step, besides rates per second


class PlanEvent(TypedDict):
    """A run is about to train."""

    event: Literal["plan"]
    lines: list[str]  # for people
    parameters: int  # 0 for several seeds
    seconds: float | None  # estimate; null without a limit


class ResumeEvent(TypedDict):
    """An interrupted run resumes."""

    event: Literal["resume"]
    step: int
    unit: NotRequired[str]  # of `step`: step (the default) or epoch


class StepEvent(TypedDict):
    """Progress of the training, at most every half second."""

    event: Literal["step"]
    step: int
    unit: NotRequired[str]  # of `step`: step (the default) or epoch
    of: int | None  # steps in all, where a number of steps limits the run
    epoch: int
    fraction: float  # of the plan
    loss: float  # in training
    error: NotRequired[float]  # of a memory network, in training, in percent
    learning_rate: float
    tokens_per_second: NotRequired[float]  # by the task, one of these
    predictions_per_second: NotRequired[float]
    questions_per_second: NotRequired[float]
    texts_per_second: NotRequired[float]
    windows_per_second: NotRequired[float]
    words_per_second: NotRequired[float]
    seconds_left: float | None  # null until it can be estimated


class EvaluateEvent(TypedDict):
    """The model was evaluated on validation data."""

    event: Literal["evaluate"]
    step: int
    unit: NotRequired[str]  # of `step`: step (the default) or epoch
    metrics: dict[str, float]
    metric: str  # that selects the best model
    samples: list[list[str]]  # input, reference, prediction
    best: bool  # whether it is the best evaluation so far


class SaveEvent(TypedDict):
    """A checkpoint was saved."""

    event: Literal["save"]
    step: int


class NoteEvent(TypedDict):
    """A message for people."""

    event: Literal["note"]
    text: str


class StopEvent(TypedDict):
    """A signal stopped the run."""

    event: Literal["stop"]
    reason: str  # the signal
    step: int
    unit: str
    resumable: bool


class DoneEvent(TypedDict):
    """The run is finished."""

    event: Literal["done"]
    folder: str
    step: int
    unit: str  # of `step`: step, epoch or seed
    reason: str
    seconds: float
    metrics: dict[str, Any]
    verdict: VerdictDict | None


TrainingEvent = PlanEvent | ResumeEvent | StepEvent | EvaluateEvent | SaveEvent | NoteEvent | StopEvent | DoneEvent


class Listener(Protocol):
    """Receives the events of a run (`TrainingEvent`); never changes it."""

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
