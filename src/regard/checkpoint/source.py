"""`ModelSource`: a model folder that was located, validated and read, whatever its format. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from regard.checkpoint.weights import Arrays, WeightReport, to_tensors
from regard.config.inference import DecodingConfig
from regard.config.models import BertConfig, GptConfig
from regard.config.rnn_models import TranslationModelConfig
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models.bert import Bert

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class PackedWeights:
    """Weights of an engine folder, packed for the engine."""

    precision: str
    arrays: list[Any]  # in the order of the engine's layout
    shortlist: Any = None  # target tokens that a translator may use


@dataclass(frozen=True, kw_only=True)
class ModelSource(Generic[ConfigT]):
    """What all model folders have; one class for each kind of model adds the rest."""

    path: Path  # folder that was read
    config: ConfigT
    metadata: dict[str, Any]  # task.json; empty for a folder from elsewhere
    hf_config: dict[str, Any]  # config.json as read, to be written back
    arrays: Arrays  # weights under our names, float32; empty for an engine folder
    packed: PackedWeights | None = None  # weights of an engine folder
    report: WeightReport = field(default_factory=WeightReport)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights as tensors, which share the memory of `arrays`."""
        return to_tensors(self.arrays)


@dataclass(frozen=True, kw_only=True)
class TranslatorSource(ModelSource[TranslationModelConfig]):
    """A translation model's folder."""

    source: Tokenizer
    target: Tokenizer
    decoding: DecodingConfig


@dataclass(frozen=True, kw_only=True)
class EncoderSource(ModelSource[BertConfig]):
    """An encoder's folder; weights of a head that it lacks are newly initialized."""

    tokenizer: Tokenizer
    labels: tuple[str, ...]  # of a label or token head
    problem_type: str  # single_label_classification, …; empty where the folder does not say
    max_length: int  # tokens of a sequence with its special tokens
    model_type: str  # in config.json

    def model(self) -> Bert:
        """Build the model with a copy of these weights."""
        from regard.models.base import uninitialized
        from regard.models.bert import Bert

        with uninitialized():
            model = Bert(self.config)
        model.load_state_dict({name: tensor.clone() for name, tensor in self.weights.items()}, assign=True)
        return model


@dataclass(frozen=True, kw_only=True)
class CausalSource(ModelSource[GptConfig]):
    """A causal language model's folder."""

    tokenizer: Tokenizer
