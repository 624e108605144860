"""The run config of questions about stories: memory networks, RNNs and Transformers over the whole story."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from regard.config.data import DataConfig, TokenizerConfig
from regard.config.models import FRESH_ENCODER_PRESETS, BertConfig
from regard.config.rnn_models import RNN_TEXT_PRESETS, MemoryNetworkConfig, RnnClassifierConfig, RnnTextConfig
from regard.config.settings import Config, knob
from regard.config.task_runs import (
    ENCODER_OF_THE_DATA,
    LABEL_COLUMNS,
    LORA_SETTINGS,
    PAIR_COLUMNS,
    SPAN_HEAD,
    TABLE_SETTINGS,
    TEXT_COLUMNS,
    EncoderRun,
    layers_and_sizes,
    preset_knob,
)
from regard.config.training import (
    BATCH_TRAINING_SETTINGS,
    MEMORY_TRAINING_SETTINGS,
    DistillationConfig,
    FineTuningConfig,
    StoryTrainingConfig,
    TrainableConfig,
)
from regard.errors import ConfigError

MEMORY_NETWORK = "memory-network"
SEQUENCE_MODELS = ("rnn", "transformer")  # architectures that read story and question as one sequence


def _settings(group: str, config: type[Config]) -> tuple[str, ...]:
    return tuple(f"{group}.{setting.path}" for setting in config.knobs())


def _story_data() -> DataConfig:
    return DataConfig(max_length=512)


def _story_rnn() -> RnnClassifierConfig:
    """The LSTM baseline of Weston et al. 2015: it reads forwards, and its last state decides."""
    return RnnClassifierConfig(pooling="last", dropout=0.1, encoder=RnnTextConfig(directions="one", dropout=0.1))


def _story_encoder() -> BertConfig:
    return BertConfig(norm_placement="pre", pooling="first", pooler=False, dropout=0.1)


@dataclass(frozen=True, kw_only=True)
class StoryQARun(EncoderRun):
    """A model that answers questions about stories."""

    architecture_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {"training.restarts": 1} for name in SEQUENCE_MODELS
    }
    architecture_settings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "memory_network.": (MEMORY_NETWORK,),
        **dict.fromkeys((f"training.{name}" for name in MEMORY_TRAINING_SETTINGS), (MEMORY_NETWORK,)),
        "rnn_classifier.": ("rnn",),
        "transformer.": ("transformer",),
        **dict.fromkeys(("preset", "data.max_length"), SEQUENCE_MODELS),
        **dict.fromkeys((f"training.{name}" for name in BATCH_TRAINING_SETTINGS), SEQUENCE_MODELS),
    }
    excluded: ClassVar[tuple[str, ...]] = (
        *(*PAIR_COLUMNS, *TEXT_COLUMNS, *LABEL_COLUMNS, *TABLE_SETTINGS, "pretrained", "allow_unused"),
        *(*LORA_SETTINGS, *_settings("tokenizer", TokenizerConfig), *_settings("trainable", TrainableConfig)),
        *_settings("distillation", DistillationConfig),
        *(path for path in _settings("fine_tuning", FineTuningConfig) if path != "fine_tuning.test"),
        *(*ENCODER_OF_THE_DATA, SPAN_HEAD, "training.tune_length_penalty"),
        *(f"rnn_classifier.encoder.{name}" for name in ("num_feature_layers", "feature_size")),
    )
    descriptions: ClassVar[Mapping[str, str]] = {
        **EncoderRun.descriptions,
        "data.max_length": "Maximum tokens of story and question with --arch rnn or transformer, special tokens "
        "included; of a longer story the first sentences are left out and counted.",
        "fine_tuning.test": "Test file of stories, scored at the end.",
    }
    preset_sizes: ClassVar[tuple[str, ...]] = (
        *EncoderRun.preset_sizes,
        *("rnn_classifier.encoder.embedding_size", "rnn_classifier.encoder.hidden_size"),
    )

    task: str = knob("story-qa", "Task to train.", choices=("story-qa",))
    architecture: str = knob(
        MEMORY_NETWORK,
        "Model architecture: memory network, or an RNN or Transformer over story and question as one sequence.",
        choices=(MEMORY_NETWORK, *SEQUENCE_MODELS),
    )
    preset: str = preset_knob(
        {
            "rnn_classifier": {name: (size.num_layers, size.hidden_size) for name, size in RNN_TEXT_PRESETS.items()},
            "transformer": layers_and_sizes(FRESH_ENCODER_PRESETS),
        }
    )
    data: DataConfig = knob(_story_data, "Data files.")
    training: StoryTrainingConfig = knob(StoryTrainingConfig, "Training.")
    memory_network: MemoryNetworkConfig = knob(MemoryNetworkConfig, "Memory network.")
    rnn_classifier: RnnClassifierConfig = knob(
        _story_rnn, "Model with --arch rnn; the preset sets its sizes unless it is custom."
    )
    transformer: BertConfig = knob(
        _story_encoder, "Model with --arch transformer; the preset sets its sizes unless it is custom."
    )

    def check(self) -> None:
        super().check()
        if self.architecture == MEMORY_NETWORK:
            self._check_memory_network()
        elif self.training.restarts > 1 and self.training.workers > 1:
            raise ConfigError("several restarts are trained one after another by one process: leave out --workers")

    def _check_memory_network(self) -> None:
        training = self.training
        if training.precision == "bf16":
            raise ConfigError("training.precision (bf16): memory networks are trained in float32: leave it out")
        if training.epochs != int(training.epochs):
            raise ConfigError(f"training.epochs ({training.epochs:g}) of a memory network must be a whole number")
        if training.metric == "loss":
            raise ConfigError("training.metric (loss) is not computed for a memory network: choose accuracy or error")
        if self.memory_network.time_encoding == "none" and "training.random_noise" in self.changed_settings():
            raise ConfigError(
                f"training.random_noise ({training.random_noise:g}) shifts the ages of sentences, which a memory "
                "network without time encoding does not know: leave it out, or set memory_network.time_encoding"
            )
