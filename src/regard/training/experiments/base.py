"""What a run must know of what it trains: how training goes, and a task's data, model, measures and folder.

What all jobs do alike: measure weights in a model of its own, keep the best as the run's model, choose its size.

The parts of labelled data – to learn, to validate, to test – read from a run's files or held out.

The tokenizer of a run: learned when it begins, the same one whenever it goes on.

Training a language model on running text: documents, a tokenizer, the model's size, and what is kept in the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.checkpoint.atomic import write_file
from regard.checkpoint.run_dir import RunDirectory
from regard.config.data import ReadConfig
from regard.config.runs import RunConfig
from regard.data.documents import Documents, hold_out_documents, read_documents
from regard.errors import ConfigError
from regard.models.base import Model, initialize_weights
from regard.tasks.base import Objective
from regard.tasks.baselines import ScoreGain
from regard.tasks.token_stream import TokenStream
from regard.text.tokenizer import Tokenizer
from regard.training.card import SummarizedConfig, model_card
from regard.training.distributed import Distributed
from regard.training.evaluation import Evaluation, Evaluator
from regard.training.listeners import Listener, notify
from regard.training.snapshots import AttentionSnapshot
from regard.training.verdict import TrivialBaseline, Verdict


@dataclass(frozen=True)
class RunContext:
    """One sitting of a run: its settings, its folder, who watches and who trains along, and when it began."""

    config: RunConfig
    directory: RunDirectory
    listeners: Sequence[Listener]
    distributed: Distributed
    started: float  # by time.monotonic(): when the command began, so that a time budget covers all of it

    def notify(self, text: str) -> None:
        """Tell the user something."""
        notify(self.listeners, "note", text=text)


@dataclass(frozen=True)
class RunPlan:
    """What will be trained, in words, and about how long it takes."""

    lines: list[str]
    parameters: int
    seconds: float


@dataclass(frozen=True)
class TrainingResult:
    """How training ended; what was measured is there only when nothing is left to do."""

    step: int
    reason: str  # "plan done", "patience", "target reached", or the signal that stopped it
    seconds: float
    metrics: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)  # for the run's record
    verdict: Verdict | None = None  # None while something is left to do


class TrainingProcedure(Protocol):
    """One way to train: reads its data when it is made, then chooses, plans and trains."""

    unit: str  # what is counted: step, pass
    digests: dict[str, str]  # of the data

    def resolve_settings(self) -> dict[str, Any]:
        """Return what is chosen when a run begins and kept for good."""
        ...

    def plan(self, chosen: Mapping[str, Any]) -> RunPlan:
        """Say what will be done."""
        ...

    def train(self, chosen: Mapping[str, Any]) -> TrainingResult:
        """Go on from the newest checkpoint until the plan is done or a signal comes."""
        ...


class Experiment(Protocol):
    """A task's data and model, read and chosen; every task has one file with its own."""

    digests: dict[str, str]  # of the data
    notes: list[str]  # for the user, before training starts
    hidden_size: int  # of the model
    tokens_per_epoch: int  # predictions in one pass over the data
    deadline: float  # by time.monotonic(): what is optional at the end of a run is left out after it
    is_pretrained: bool  # whether the model starts from another's weights
    preferred_settings: dict[str, float]  # settings of training that suit the task, where the user leaves the choice
    verdict: Verdict | None  # on the whole run, set before `finish`

    @property
    def task(self) -> Objective:
        """The training examples, batch by batch, and their loss."""
        ...

    def model(self) -> Model:
        """Return the model with its first weights."""
        ...

    def evaluator(self, device: str) -> Evaluator:
        """Return what measures weights."""
        ...

    def describe(self, num_parameters: int) -> list[str]:
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

    def save_best(self, evaluator: Any, evaluation: Evaluation, step: int) -> None:
        """Write the measured weights as the run's model."""
        ...

    def finalize(
        self, evaluator: Any, average: Mapping[str, Tensor] | None, step: int, best: Sequence[float], notify: Notify
    ) -> dict[str, Any]:
        """Choose between the best weights and the average of the last ones, write the choice, return its measures."""
        ...


ModelT = TypeVar("ModelT", bound=Model)
Notify = Callable[[str], object]  # tells the user something


def initialize_model(model: ModelT, seed: int, weights: Mapping[str, Tensor] | None = None) -> ModelT:
    """Return the model with its first weights: another's, or those that belong to a seed."""
    if weights is None:
        initialize_weights(model, seed)
    else:
        model.load_state_dict(dict(weights))
    return model


def load_best_weights(
    evaluator: Evaluator,
    saved: Mapping[str, Tensor],
    average: Mapping[str, Tensor] | None,
    best: Sequence[float],
    notify: Notify,
) -> bool:
    """Load the average of the last weights where it measures better than the best ones kept, else these.

    Returns whether it is the average.
    """
    if average is not None:
        evaluator.load(average)
        if list(evaluator.evaluate().sort_key) > [*best]:
            notify("the average of the last evaluations is best")
            return True
    evaluator.load(saved)
    return False


class ReadCounts(Protocol):
    """What was read from files, some of it perhaps rejected."""

    @property
    def num_read(self) -> int: ...
    @property
    def rejected(self) -> int: ...
    @property
    def reject_file(self) -> str: ...


def rejection_notes(rows: ReadCounts, split: str) -> list[str]:
    """Say how many rows a lenient reading left out, and where they are."""
    if not rows.rejected:
        return []
    return [f"{rows.rejected:,} of {rows.num_read:,} {split} rows are rejected: see {rows.reject_file}"]


Family = TypeVar("Family", bound=SummarizedConfig)
Measuring = TypeVar("Measuring", bound=Evaluator)
Size = TypeVar("Size")
EvaluationResult = tuple[dict[str, float], tuple[float, ...], list[tuple[str, str, str]]]  # measures, rank, samples


class ModelEvaluator(Generic[ModelT]):
    """A model of its own, float32, that receives the weights to be measured."""

    def __init__(self, model: ModelT, device: str) -> None:
        self.model: ModelT = model.to(device).eval()

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Take these weights."""
        self.model.load_state_dict(dict(named))

    def evaluate(self) -> Evaluation:
        """Measure them on validation data."""
        began = time.perf_counter()
        metrics, rank, samples = self.compute_metrics()
        return Evaluation(metrics, rank, samples, time.perf_counter() - began, self.attention_snapshot())

    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Return where the model looks at one text, the same every time; nothing where it has no attention."""
        return None

    def compute_metrics(self) -> EvaluationResult:
        """Return measures on validation data, what ranks them (the larger is the better), and samples."""
        raise NotImplementedError


class SavedModel(Protocol):
    """The model that a run's folder keeps."""

    @property
    def weights(self) -> dict[str, Tensor]: ...
    @property
    def task(self) -> dict[str, Any]: ...


class BaseExperiment(Generic[Family, Measuring]):
    """A job that writes its best weights as the run's model while it trains, and chooses once more in the end.

    What is its own: how the model is saved and opened, what must be known to use it, and how it is scored in the end.
    """

    config: RunConfig
    folder: Path
    model_config: Family  # as it is written
    digests: dict[str, str]
    name: str  # of the task that its folder is for
    has_final_evaluation = True  # whether what is kept is scored once more in the end
    deadline = math.inf  # by time.monotonic(): what is optional at the end of a run is left out after it
    verdict: Verdict | None = None  # on the whole run, set before `finish`

    def metadata(self, evaluator: Measuring) -> dict[str, Any]:
        """Return what must be known to use the model."""
        return {}

    def trivial_baselines(self) -> Sequence[TrivialBaseline]:
        """Validation scores of rules that know training statistics only: a run must beat all of them."""
        return []

    def save(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        raise NotImplementedError

    def load_saved(self) -> SavedModel:
        """Return the run's model as it was written."""
        raise NotImplementedError

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads or writes, to estimate its time."""
        raise NotImplementedError

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation data only."""
        raise NotImplementedError

    def closing_seconds(self, evaluation: float) -> float:
        """Estimate the seconds that `finish` takes, given those of one evaluation."""
        scored = evaluation if self.has_final_evaluation else 0.0
        return scored + (evaluation if self.config.training.average_checkpoints else 0.0)

    def final_evaluation(self, evaluator: Measuring, notify: Notify) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the measures of the model that is kept, and facts for its folder."""
        return prefix_metrics("valid", evaluator.evaluate().metrics), {}

    def save_best(self, evaluator: Measuring, found: Evaluation, step: int) -> None:
        """Write the measured weights as the run's model."""
        self._write(evaluator, step, prefix_metrics("valid", found.metrics), {})

    def finalize(
        self,
        evaluator: Measuring,
        average: Mapping[str, Tensor] | None,
        step: int,
        best: Sequence[float],
        notify: Notify,
    ) -> dict[str, Any]:
        """Choose between the best weights and the average on validation data, score the choice, write it."""
        kept = self.load_saved()
        averaged = load_best_weights(evaluator, kept.weights, average, best, notify)
        if not averaged and not self.has_final_evaluation:
            metrics, facts = dict(kept.task["metrics"]), dict[str, Any]()
        else:
            metrics, facts = self.final_evaluation(evaluator, notify)
        self._write(evaluator, step if averaged else int(kept.task["step"]), metrics, facts)
        return metrics

    def _write(self, evaluator: Measuring, step: int, metrics: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        facts = {"step": step, "data": self.digests, "metrics": dict(metrics), **self.metadata(evaluator), **more}
        if self.verdict is not None:
            facts["verdict"] = self.verdict.to_dict()
        card = model_card(self.config, self.model_config, evaluator.model.num_parameters(), facts, use_as=self.name)
        self.save(evaluator.model.state_dict(), facts, card)


def spread_indices(count: int, share: float) -> NDArray[np.int64]:
    """Return the indices of a share of so many examples, at least one, spread evenly over all of them.

    >>> spread_indices(10, 0.4).tolist()
    [0, 3, 6, 9]
    """
    return np.linspace(0, count - 1, max(1, round(share * count))).astype(np.int64)


def prefix_metrics(split: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return measures under the name of the data that they were made on.

    >>> prefix_metrics("valid", {"loss": 1.5})
    {'valid_loss': 1.5}
    """
    return {f"{split}_{name}": value for name, value in metrics.items()}


def choose_preset(
    name: str,
    presets: Mapping[str, Size],
    *,
    amount: int,
    sizes: Sequence[tuple[int, str]],
    largest: str,
    what: str = "tokens",
    where: str,
) -> tuple[Size | None, str]:
    """Return the preset of this name, and why; nothing for `custom`, where settings give the sizes.

    For `auto`, `sizes` says up to which amount of data which one is chosen; beyond all it is the largest.

    >>> choose_preset("auto", {"tiny": 1, "base": 9}, amount=50, sizes=((100, "tiny"),), largest="base", where="here")
    (1, 'tiny, for 50 tokens')
    """
    if name == "custom":
        return None, "as given"
    reason = "as asked"
    if name == "auto":
        name = next((size for most, size in sizes if amount < most), largest)
        reason = f"{name}, for {amount:,} {what}"
    if name not in presets:
        raise ConfigError(f"preset must be one of {', '.join(presets)} {where}, not {name}")
    return presets[name], reason


class ReadExamples(ReadCounts, Protocol):
    """Examples that were read from files."""

    @property
    def digest(self) -> str: ...
    def __len__(self) -> int: ...


Data = TypeVar("Data", bound=ReadExamples)


@dataclass(frozen=True)
class DataSplits(Generic[Data]):
    """Examples to learn, to validate and to test with."""

    train: Data
    valid: Data
    test: Data | None
    notes: list[str] = field(default_factory=list)  # what was rejected, what is held out

    @property
    def digests(self) -> dict[str, str]:
        """Of each part."""
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: part.digest for name, part in named.items() if part is not None}

    @classmethod
    def read(
        cls,
        config: RunConfig,
        read: Callable[[Sequence[str], ReadConfig], Data],
        check: Callable[[Data], object],
        hold_out: Callable[[Data], tuple[Data, Data]],
        held_out: str,
    ) -> DataSplits[Data]:
        """Read a run's files; the training examples are checked before some are held out, where that is needed.

        `held_out` is how that is told, after the number of examples.
        """
        notes: list[str] = []

        def part(files: Sequence[str], name: str) -> Data:
            found = read(files, config.data.read)
            notes.extend(rejection_notes(found, name))
            return found

        train = part(config.data.train, "training")
        check(train)
        if config.data.valid:
            valid = part(config.data.valid, "validation")
        else:
            train, valid = hold_out(train)
            notes.append(f"validation: {len(valid):,} {held_out}")
        test = part([config.fine_tuning.test], "test") if config.fine_tuning.test else None
        return cls(train, valid, test, notes)


def load_or_train_tokenizer(folder: Path, train: Callable[[], Tokenizer]) -> Tokenizer:
    """Return the tokenizer that a run's folder keeps; where the run has only begun, make it and keep it."""
    place = folder / "tokenizers" / "text.json"
    if place.exists() and (folder / "run.json").exists():
        return Tokenizer.from_json(place.read_text("utf-8"), where=str(place))
    tokenizer = train()
    write_file(place, tokenizer.to_json().encode())
    return tokenizer


@dataclass(frozen=True)
class DocumentSplits:
    """Running text to learn and to measure on, and what is to be said of it."""

    train: Documents
    valid: Documents
    notes: list[str]

    @property
    def digests(self) -> dict[str, str]:
        """Of the data."""
        return {"train": self.train.digest, "valid": self.valid.digest}

    def line(self, train: TokenStream, valid: TokenStream, around: int = 0) -> str:
        """Say how much there is; `around` special tokens stand around a row."""
        return (
            f"data: {len(self.train):,} documents, {len(train.ids):,} tokens in rows of {train.length + around}; "
            f"validation {len(self.valid):,} documents, {len(valid.ids):,} tokens"
        )


def read_document_splits(config: RunConfig) -> DocumentSplits:
    """Return the texts of a run; where no validation text is given, some documents are held out."""
    notes: list[str] = []

    def read(files: Sequence[str], name: str) -> Documents:
        found = read_documents(files, config.data.read, config.documents.document_boundary)
        notes.extend(rejection_notes(found, name))
        return found

    train = read(config.data.train, "training")
    if config.data.valid:
        return DocumentSplits(train, read(config.data.valid, "validation"), notes)
    train, valid = hold_out_documents(train, config.training.seed)
    notes.append(f"validation: {len(valid):,} of the documents are held out (chosen by the seed)")
    return DocumentSplits(train, valid, notes)


def report_gain(
    gain: ScoreGain, baseline: float, split: str, metric: str, notify: Notify, *, source: str = "attention"
) -> dict[str, float]:
    """Say what `who` gives over a baseline on the data of this name; return it as measures."""
    notify(f"{split}: {metric} {baseline:.2f}; {gain.describe(source)}")
    return {f"{split}_baseline": baseline, f"{split}_gain": gain.points, f"{split}_gain_interval": gain.interval}
