"""Text classifiers of any family, trained from scratch with a tokenizer of their own: model config and run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.config.settings import AUTO, MAX_SIZE, Config, knob
from regard.config.task_runs import (
    EXTENSION,
    FEATURES,
    LABEL_COLUMNS,
    LORA_SETTINGS,
    ONE_LANGUAGE,
    PAIR_COLUMNS,
    FineTunedRun,
    without_label_smoothing,
)
from regard.config.training import DistillationConfig, TrainingConfig


@dataclass(frozen=True, kw_only=True)
class TextClassifierConfig(Config):
    """Base of the configs of families that classify texts; a subclass sets the default of `family`."""

    family: str = knob("", "Model family.")
    vocab_size: int = knob(AUTO, "Vocabulary size; auto: from the tokenizer.", low=1, high=MAX_SIZE)
    num_labels: int = knob(AUTO, "Number of labels; auto: from the data.", low=1, high=MAX_SIZE)
    hidden_size: int = knob(128, "Hidden size.", low=1, high=MAX_SIZE)

    def summary(self) -> str:
        """Describe the model in one line."""
        return f"{self.family}, hidden size {self.hidden_size}, {self.num_labels} labels"


@dataclass(frozen=True, kw_only=True)
class TextClassifierRun(FineTunedRun):
    """A text classifier that is trained from scratch; a subclass sets the default of `task`, and the config `model`."""

    excluded: ClassVar[tuple[str, ...]] = (
        *(*PAIR_COLUMNS, *LABEL_COLUMNS, *ONE_LANGUAGE, EXTENSION, *LORA_SETTINGS),
        *("pretrained", "trainable.layer_lr_decay"),
        *(*FEATURES, "fine_tuning.feature_cache_mb", "fine_tuning.freeze_encoder"),
        *("fine_tuning.random_init", "fine_tuning.lm_weight", "fine_tuning.baseline"),
        *(f"distillation.{setting.path}" for setting in DistillationConfig.knobs()),
        *("model.vocab_size", "model.num_labels"),  # the data decides them
    )

    training: TrainingConfig = knob(without_label_smoothing, "Training.")
    model: TextClassifierConfig = knob(TextClassifierConfig, "Model.")
