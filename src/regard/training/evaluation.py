"""An evaluation on validation data, and the protocol of what makes one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from regard.models.base import Model
from regard.models.layers.lora import is_lora_weight
from regard.training.snapshots import AttentionSnapshot

ModelT = TypeVar("ModelT", bound=Model)
EvaluationResult = tuple[
    dict[str, float],  # metrics
    tuple[float, ...],  # sort key; the larger is the better
    list[tuple[str, str, str]],  # samples: input, reference, prediction
]


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

    def __init__(self, model: ModelT, device: str) -> None:
        self.model: ModelT = model.to(device).eval()
        self.lora_weights: dict[str, Tensor] = {}  # A and B of the loaded weights, which have them merged

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights to evaluate; A and B of LoRA among them are kept apart."""
        self.lora_weights = {name: tensor.clone() for name, tensor in weights.items() if is_lora_weight(name)}
        self.model.load_state_dict({name: tensor for name, tensor in weights.items() if not is_lora_weight(name)})

    def evaluate(self) -> Evaluation:
        """Evaluate the loaded weights on validation data."""
        start = time.perf_counter()
        metrics, sort_key, samples = self.compute_metrics()
        seconds = time.perf_counter() - start
        return Evaluation(metrics, sort_key, samples=samples, seconds=seconds, attention=self.attention_snapshot())

    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Attention of one validation text, the same at every evaluation; None for a model without attention."""
        return None

    def compute_metrics(self) -> EvaluationResult:
        """Compute metrics on validation data, their sort key, and samples."""
        raise NotImplementedError
