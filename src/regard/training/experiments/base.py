"""The protocol of an experiment, and what the experiments of all tasks share.

`BaseExperiment` saves the best weights as the run's model and chooses the final ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.checkpoint.adapters import Adapter, save_adapter, update_adapter
from regard.config.models import HEAD_PREFIXES
from regard.config.runs import BatchRun
from regard.metric_table import SPLITS
from regard.models import build_model
from regard.models.base import Model, ModelConfig, initialize_weights
from regard.registry import TASKS
from regard.tasks.base import Objective
from regard.tasks.baselines import ScoreGain
from regard.tasks.scoring import Scoring
from regard.text.tokenizer import Tokenizer
from regard.training.card import model_card
from regard.training.evaluation import Evaluation, Evaluator
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.pretrained import PretrainedModel
from regard.training.trainable import OUTPUT_PREFIX, Trainable, select_trainable
from regard.training.verdict import TrivialBaseline, Verdict
from regard.training.vocabulary import EMBEDDINGS, check_trained, describe_extension, extend_tokenizer

ModelT = TypeVar("ModelT", bound=Model)
ConfigT = TypeVar("ConfigT", bound=ModelConfig)
EvaluatorT = TypeVar("EvaluatorT", bound=Evaluator)
Notify = Callable[[str], object]  # shows a line of text to the user


class Experiment(Protocol):
    """Data, model, metrics and saving of one task."""

    deadline: float  # by time.monotonic(): optional work at the end of a run is skipped after it
    verdict: Verdict | None  # on the whole run, set before `finalize`

    # set by `prepare`
    digests: dict[str, str]  # of the data
    notes: list[str]  # for the user, before training starts
    hidden_size: int  # of the model
    tokens_per_epoch: int  # predictions in one epoch
    preferred_settings: dict[str, float]  # training settings that suit the task, where the user sets none

    def prepare(self) -> None:
        """Read the data, train tokenizers and build the objective; called once, before everything else."""
        ...

    def compute_digests(self, names: Collection[str]) -> dict[str, str]:
        """Digest the data and the models of these names as they are now, without preparing anything."""
        ...

    @property
    def metric(self) -> str:
        """Name of the metric that selects the best model; one that does not apply raises `UsageError`."""
        ...

    @property
    def is_pretrained(self) -> bool:
        """Whether training starts from pretrained weights."""
        ...

    @property
    def objective(self) -> Objective:
        """Batches of the training examples, and their loss."""
        ...

    def trainable(self) -> Trainable:
        """Build the model with its initial weights, and select the parameters that are trained."""
        ...

    def evaluator(self, device: str) -> Evaluator:
        """Build the evaluator on validation data."""
        ...

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        ...

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        ...

    @property
    def model_config(self) -> ModelConfig:
        """Config of the model."""
        ...

    def validation_tokens(self) -> int:
        """Count the tokens that one evaluation reads or generates, to estimate its duration."""
        ...

    def limit_validation(self, fraction: float) -> None:
        """Validate on this fraction of the validation data only."""
        ...

    def closing_seconds(self, evaluation_seconds: float) -> float:
        """Estimate the duration of `finalize` from that of one evaluation."""
        ...

    def trivial_baselines(self) -> Sequence[TrivialBaseline]:
        """Validation scores of rules that know training statistics only: a run must beat all of them."""
        ...

    def save_best(self, evaluator: Any, evaluation: Evaluation, step: int) -> None:
        """Write the evaluated weights as the run's model."""
        ...

    def finalize(
        self, evaluator: Any, average: Mapping[str, Tensor] | None, step: int, best: Sequence[float], notify: Notify
    ) -> dict[str, Any]:
        """Choose between the best weights and the average of the last ones, save the choice, return its metrics."""
        ...


def initialize_model(model: ModelT, seed: int, weights: Mapping[str, Tensor] | None = None) -> ModelT:
    """Load pretrained weights into the model, or draw random ones by the seed."""
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
    """Load the average of the last weights where it beats the sort key `best` of the saved ones, else the saved ones.

    Returns whether the average is loaded.
    """
    if average is not None:
        evaluator.load(average)
        if list(evaluator.evaluate().sort_key) > list(best):
            notify("the average of the last evaluations is best")
            return True
    evaluator.load(saved)
    return False


# ---- saving


class SavedModel(Protocol):
    """The run's model as it was saved."""

    @property
    def weights(self) -> dict[str, Tensor]: ...
    @property
    def metadata(self) -> dict[str, Any]: ...


class BaseExperiment(Generic[ConfigT, EvaluatorT]):
    """Experiment that saves its best weights as the run's model during training, and chooses the final ones at the end.

    Subclasses define what is prepared, how the model is saved and loaded, what metadata inference needs, and the final
    evaluation.
    """

    has_final_evaluation = True  # whether the final weights are evaluated once more
    deadline = math.inf  # by time.monotonic(): optional work at the end of a run is skipped after it
    verdict: Verdict | None = None  # on the whole run, set before `finalize`

    # set by `prepare`
    pretrained: PretrainedModel | None = None  # where training starts from pretrained weights
    tokens_per_epoch: int  # predictions in one epoch
    model_config: ConfigT  # as it is saved
    reason: str  # why the model config was chosen
    hidden_size: int  # of the model

    def __init__(self, config: BatchRun, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.notes: list[str] = []  # for the user, before training starts
        self.digests: dict[str, str] = {}  # of the data
        self.preferred_settings: dict[str, float] = {}  # that suit the task, where the user sets none

    @property
    def name(self) -> str:
        """Name of the task."""
        return self.config.task

    @property
    def scoring(self) -> Scoring:
        """Metrics of the task, and the one that the run requests."""
        return Scoring.for_run(self.name, self.config.training.metric)

    @property
    def prediction_kind(self) -> str:
        """Kind of the predictions, by which metrics apply; by default the first one of the task."""
        return next(iter(TASKS[self.name].metrics), "")

    @property
    def metric(self) -> str:
        """Name of the metric that selects the best model; one that does not apply raises `UsageError`."""
        self.scoring.check(self.prediction_kind)
        return self.scoring.main(self.prediction_kind)

    def prepare(self) -> None:
        """Read the data, train tokenizers and build the objective; called once, before everything else."""
        raise NotImplementedError

    def read_splits(self) -> DataSplits[Any]:
        """Read the examples of all splits."""
        raise NotImplementedError

    def digest_model(self, name: str) -> str:
        """Digest the model that the run starts from (`start`) or reads (`features`)."""
        raise NotImplementedError

    def compute_digests(self, names: Collection[str]) -> dict[str, str]:
        """Digest the data and the models of these names as they are now, without preparing anything."""
        models = self.config.models.keys()
        digests = {} if models >= {*names} else self.read_splits().digests
        return {**digests, **{name: self.digest_model(name) for name in models & {*names}}}

    @property
    def is_pretrained(self) -> bool:
        """Whether training starts from pretrained weights."""
        return bool(self.config.pretrained)

    def trainable(self) -> Trainable:
        """Build the model with its initial weights, and select the parameters that are trained."""
        config = self.config
        trainable = select_trainable(
            self.model(),
            config.trainable,
            config.lora,
            seed=config.training.seed,
            trained=self.trained_beside_lora,
        )
        if config.tokenizer.extend:
            check_trained(trainable.model, config.trainable.freeze)
        return trainable

    def extend_vocabulary(self, tokenizer: Tokenizer, texts: Sequence[str]) -> Tokenizer:
        """Extend the pretrained model's tokenizer if the config says so, and note by how many subwords."""
        if not self.config.tokenizer.extend:
            return tokenizer
        extended = extend_tokenizer(tokenizer, self.config.tokenizer, texts)
        self.notes.append(describe_extension(tokenizer, extended, texts))
        return extended

    @property
    def trained_beside_lora(self) -> tuple[str, ...]:
        """Beginnings of the names of weights that are trained besides LoRA: the head, and an extended vocabulary."""
        return (*HEAD_PREFIXES, *EMBEDDINGS, OUTPUT_PREFIX) if self.config.tokenizer.extend else HEAD_PREFIXES

    @property
    def stored_beside_lora(self) -> tuple[str, ...]:
        """Beginnings of the names of weights that an adapter stores whole: those that differ from the base model's."""
        return self.trained_beside_lora

    def model(self) -> Model:
        """Build the model with its initial weights: pretrained ones, or random ones by the seed."""
        model: Model = build_model(self.model_config)
        weights = self.pretrained.weights if self.pretrained is not None else None
        return initialize_model(model, self.config.training.seed, weights)

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        return ", ".join(self.config.data.train)

    def describe_model(self, num_parameters: int) -> str:
        """Describe the model for the user, and why its config was chosen."""
        return f"model: {num_parameters / 1e6:.2f} M parameters, {self.model_config.summary()} ({self.reason})"

    def metadata(self, evaluator: EvaluatorT) -> dict[str, Any]:
        """Entries of task.json that inference needs."""
        return {}

    def trivial_baselines(self) -> Sequence[TrivialBaseline]:
        """Validation scores of rules that know training statistics only: a run must beat all of them."""
        return []

    def save(self, weights: Mapping[str, Tensor], metadata: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        raise NotImplementedError

    def load_saved(self) -> SavedModel:
        """Load the run's model."""
        raise NotImplementedError

    def validation_tokens(self) -> int:
        """Count the tokens that one evaluation reads or generates, to estimate its duration."""
        raise NotImplementedError

    def limit_validation(self, fraction: float) -> None:
        """Validate on this fraction of the validation data only."""
        raise NotImplementedError

    def closing_seconds(self, evaluation_seconds: float) -> float:
        """Estimate the duration of `finalize` from that of one evaluation."""
        final_evaluation = evaluation_seconds if self.has_final_evaluation else 0.0
        average_evaluation = evaluation_seconds if self.config.training.average_checkpoints else 0.0
        return final_evaluation + average_evaluation

    def final_evaluation(self, evaluator: EvaluatorT, notify: Notify) -> tuple[dict[str, Any], dict[str, Any]]:
        """Compute the metrics of the final model, and further entries of task.json."""
        return prefix_metrics("valid", evaluator.evaluate().metrics), {}

    def save_best(self, evaluator: EvaluatorT, evaluation: Evaluation, step: int) -> None:
        """Write the evaluated weights as the run's model."""
        self._save_evaluated(evaluator, step, prefix_metrics("valid", evaluation.metrics), {})

    def finalize(
        self,
        evaluator: EvaluatorT,
        average: Mapping[str, Tensor] | None,
        step: int,
        best: Sequence[float],
        notify: Notify,
    ) -> dict[str, Any]:
        """Choose between the best weights and the average on validation data, evaluate the choice, save it."""
        saved = self.load_saved()
        is_average = load_best_weights(evaluator, saved.weights, average, best, notify)
        if is_average or self.has_final_evaluation:
            metrics, metadata = self.final_evaluation(evaluator, notify)
        else:
            metrics = dict(saved.metadata["metrics"])
            metadata = {}
        self._save_evaluated(evaluator, step if is_average else int(saved.metadata["step"]), metrics, metadata)
        return metrics

    def _save_evaluated(
        self, evaluator: EvaluatorT, step: int, metrics: Mapping[str, Any], extra_metadata: Mapping[str, Any]
    ) -> None:
        metadata: dict[str, Any] = {
            "step": step,
            "data_digests": self.digests,
            "metric": self.metric,
            "metrics": dict(metrics),
        }
        metadata |= self.metadata(evaluator)
        metadata |= extra_metadata
        if self.verdict is not None:
            metadata["verdict"] = self.verdict.to_dict()
        num_parameters = evaluator.model.num_parameters()
        card = model_card(self.config, self.model_config, num_parameters, metadata)
        self.save(evaluator.model.state_dict(), metadata, card)
        if self.config.lora.rank and self.config.lora.keep_adapter:
            self._save_adapter(evaluator)

    def _save_adapter(self, evaluator: EvaluatorT) -> None:
        """Write the adapter of the saved model to the folder `adapter` of the run."""
        if not evaluator.lora_weights:  # the evaluator has the weights of the saved model, and so has its adapter
            update_adapter(self.folder)
            return
        lora = self.config.lora
        adapter = Adapter(
            base=self.config.pretrained,
            rank=lora.rank,
            alpha=lora.alpha,
            dropout=lora.dropout,
            targets=lora.target_parts,
            lora_weights=evaluator.lora_weights,
            trained=self.stored_beside_lora,
        )
        save_adapter(self.folder, self.model_config, evaluator.model.state_dict(), adapter)


# ---- helpers of several experiments


def subsample_indices(count: int, fraction: float) -> NDArray[np.int64]:
    """Indices of a fraction of `count` examples, at least one, spread evenly over all of them.

    >>> subsample_indices(10, 0.4).tolist()
    [0, 3, 6, 9]
    """
    return np.linspace(0, count - 1, max(1, round(fraction * count))).astype(np.int64)


def prefix_metrics(split: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Prefix the names of metrics with the split that they are computed on.

    >>> prefix_metrics("valid", {"loss": 1.5})
    {'valid_loss': 1.5}
    """
    return {f"{split}_{name}": value for name, value in metrics.items()}


def report_gain(
    gain: ScoreGain, baseline: float, split: str, metric: str, notify: Notify, *, source: str = "attention"
) -> dict[str, float]:
    """Report what `source` gains over a baseline on a split; return score, gain and interval as metrics."""
    notify(f"{SPLITS[split]}: {metric} {baseline:.2f}; {gain.describe(source)}")
    return {f"{split}_baseline": baseline, f"{split}_gain": gain.points, f"{split}_gain_interval": gain.interval}
