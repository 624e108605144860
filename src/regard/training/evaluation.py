"""An evaluation on validation data, and the protocol of what makes one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from regard.models.base import Model
from regard.models.layers.lora import is_lora_weight
from regard.tasks.predictions import Predictions
from regard.tasks.scoring import Scoring
from regard.training.snapshots import AttentionSnapshot

ModelT = TypeVar("ModelT", bound=Model)
Samples = list[tuple[str, str, str]]  # input, reference, prediction


@dataclass(frozen=True)
class Evaluation:
    """Metrics, samples and duration of one evaluation."""

    metrics: dict[str, float]
    sort_key: tuple[float, ...]  # compares evaluations; the larger is the better
    metric: str  # name of the metric that selects the best model, the first in the sort key
    samples: Samples
    seconds: float
    attention: AttentionSnapshot | None = None  # of one text, the same at every evaluation


class Evaluator(Protocol):
    """A separate model that receives the weights to evaluate."""

    @property
    def model(self) -> Model:
        """The model with the weights to evaluate."""
        ...

    @property
    def lora_weights(self) -> Mapping[str, Tensor]:
        """A and B of LoRA by name, where the loaded weights have them merged; otherwise empty."""
        ...

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Load weights by name."""
        ...

    def evaluate(self) -> Evaluation:
        """Evaluate the loaded weights on validation data."""
        ...


class ModelEvaluator(Generic[ModelT]):
    """Evaluates weights in a float32 model of its own."""

    def __init__(self, model: ModelT, device: str, scoring: Scoring) -> None:
        self.model: ModelT = model.to(device).eval()
        self.scoring = scoring
        self.lora_weights: dict[str, Tensor] = {}  # A and B of the loaded weights, which have them merged

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights to evaluate; A and B of LoRA among them are kept apart."""
        self.lora_weights = {name: tensor.clone() for name, tensor in weights.items() if is_lora_weight(name)}
        self.model.load_state_dict({name: tensor for name, tensor in weights.items() if not is_lora_weight(name)})

    def evaluate(self) -> Evaluation:
        """Evaluate the loaded weights on validation data."""
        start = time.perf_counter()
        predictions, samples = self.predict()
        metrics = self.scoring.compute(predictions)
        seconds = time.perf_counter() - start
        return Evaluation(
            metrics,
            self.scoring.sort_key(metrics, predictions.kind),
            metric=self.scoring.main(predictions.kind),
            samples=samples,
            seconds=seconds,
            attention=self.attention_snapshot(),
        )

    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Attention of one validation text, the same at every evaluation; None for a model without attention."""
        return None

    def predict(self) -> tuple[Predictions, Samples]:
        """Predict the validation data; also return samples."""
        raise NotImplementedError
