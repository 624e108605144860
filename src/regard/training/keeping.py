"""What all jobs do alike: measure weights in a model of its own, keep the best as the run's model, choose its size."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.config.run import RunConfig
from regard.errors import ConfigError
from regard.models.base import Model
from regard.training.card import Described, model_card
from regard.training.job import Evaluation, Evaluator, Say, load_better
from regard.training.looked import Looked
from regard.training.verdict import TrivialBaseline, Verdict

Made = TypeVar("Made", bound=Model)
Family = TypeVar("Family", bound=Described)
Measuring = TypeVar("Measuring", bound=Evaluator)
Size = TypeVar("Size")
Measured = tuple[dict[str, float], tuple[float, ...], list[tuple[str, str, str]]]  # measures, rank, samples


class ModelEvaluator(Generic[Made]):
    """A model of its own, float32, that receives the weights to be measured."""

    def __init__(self, model: Made, device: str) -> None:
        self.model: Made = model.to(device).eval()

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Take these weights."""
        self.model.load_state_dict(dict(named))

    def measure(self) -> Evaluation:
        """Measure them on validation data."""
        began = time.perf_counter()
        metrics, rank, samples = self.measured()
        return Evaluation(metrics, rank, samples, time.perf_counter() - began, self.looked())

    def looked(self) -> Looked | None:
        """Return where the model looks at one text, the same every time; nothing where it has no attention."""
        return None

    def measured(self) -> Measured:
        """Return measures on validation data, what ranks them (the larger is the better), and samples."""
        raise NotImplementedError


class Kept(Protocol):
    """The model that a run's folder keeps."""

    @property
    def weights(self) -> dict[str, Tensor]: ...
    @property
    def task(self) -> dict[str, Any]: ...


class KeepingJob(Generic[Family, Measuring]):
    """A job that writes its best weights as the run's model while it trains, and chooses once more in the end.

    What is its own: how the model is saved and opened, what must be known to use it, and how it is scored in the end.
    """

    config: RunConfig
    folder: Path
    model_config: Family  # as it is written
    digests: dict[str, str]
    name: str  # of the task that its folder is for
    concludes = True  # whether what is kept is scored once more in the end
    deadline = math.inf  # by time.monotonic(): what is optional at the end of a run is left out after it
    verdict: Verdict | None = None  # on the whole run, set before `finish`

    def facts(self, evaluator: Measuring) -> dict[str, Any]:
        """Return what must be known to use the model."""
        return {}

    def trivial_baselines(self) -> Sequence[TrivialBaseline]:
        """Validation scores of rules that know training statistics only: a run must beat all of them."""
        return []

    def save(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        raise NotImplementedError

    def kept(self) -> Kept:
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
        scored = evaluation if self.concludes else 0.0
        return scored + (evaluation if self.config.training.average else 0.0)

    def conclude(self, evaluator: Measuring, say: Say) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the measures of the model that is kept, and facts for its folder."""
        return measured_on("valid", evaluator.measure().metrics), {}

    def keep(self, evaluator: Measuring, found: Evaluation, step: int) -> None:
        """Write the measured weights as the run's model."""
        self._write(evaluator, step, measured_on("valid", found.metrics), {})

    def finish(
        self, evaluator: Measuring, average: Mapping[str, Tensor] | None, step: int, best: Sequence[float], say: Say
    ) -> dict[str, Any]:
        """Choose between the best weights and the average on validation data, score the choice, write it."""
        kept = self.kept()
        averaged = load_better(evaluator, kept.weights, average, best, say)
        if not averaged and not self.concludes:
            metrics, facts = dict(kept.task["metrics"]), dict[str, Any]()
        else:
            metrics, facts = self.conclude(evaluator, say)
        self._write(evaluator, step if averaged else int(kept.task["step"]), metrics, facts)
        return metrics

    def _write(self, evaluator: Measuring, step: int, metrics: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        facts = {"step": step, "data": self.digests, "metrics": dict(metrics), **self.facts(evaluator), **more}
        if self.verdict is not None:
            facts["verdict"] = self.verdict.to_dict()
        card = model_card(self.config, self.model_config, evaluator.model.parameter_count(), facts, use_as=self.name)
        self.save(evaluator.model.state_dict(), facts, card)


def spread_indices(count: int, share: float) -> NDArray[np.int64]:
    """Return the indices of a share of so many examples, at least one, spread evenly over all of them.

    >>> spread_indices(10, 0.4).tolist()
    [0, 3, 6, 9]
    """
    return np.linspace(0, count - 1, max(1, round(share * count))).astype(np.int64)


def measured_on(part: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return measures under the name of the data that they were made on.

    >>> measured_on("valid", {"loss": 1.5})
    {'valid_loss': 1.5}
    """
    return {f"{part}_{name}": value for name, value in metrics.items()}


def chosen_size(
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

    >>> chosen_size("auto", {"tiny": 1, "base": 9}, amount=50, sizes=((100, "tiny"),), largest="base", where="here")
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
