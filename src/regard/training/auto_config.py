"""Settings that a run chooses for its user: model size, batch size, learning rates and length of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from regard.components import OPTIMIZERS
from regard.config.models import TRANSFORMER_PRESETS
from regard.config.rnn_models import SEQ2SEQ_PRESETS, TranslationModelConfig
from regard.config.task_runs import TranslateRun
from regard.config.training import TrainingConfig
from regard.errors import ConfigError
from regard.tasks.translation import TokenizerPair
from regard.training.update_rules import UpdateRule

SMALL_ALPHABET = 512  # smaller vocabularies are letters or digits rather than subwords
DEFAULT_TOKENS = 40_000_000  # target tokens of a whole training without a length set by the user
MUON_LEARNING_RATE = 0.02
PRETRAINED_LR_SCALE = 0.05  # factor on the learning rates of a model with pretrained weights
MIN_UPDATES = 1000  # below this number of updates, batches shrink towards MIN_BATCH_TOKENS
MIN_BATCH_TOKENS = 1024
SEQ2SEQ_PRESET_SETTINGS = ("embedding_size", "hidden_size", "num_layers", "dropout")


def choose_translation_model(
    config: TranslateRun, tokenizers: TokenizerPair, target_tokens: int
) -> tuple[TranslationModelConfig, str]:
    """Choose the model for this data; return its config and the reason."""
    preset = config.preset
    reason = "custom" if preset == "custom" else "requested"
    if preset == "auto":
        preset = _choose_preset(target_tokens, tokenizers.target.vocab_size)
        reason = f"{preset}, for {target_tokens:,} target tokens"
        if preset == "micro":
            reason += f" from a vocabulary of {tokenizers.target.vocab_size}"
    model = _preset_model(config, preset)
    overrides = {
        "source_vocab_size": tokenizers.source.vocab_size,
        "target_vocab_size": tokenizers.target.vocab_size,
        "pad_id": tokenizers.target.pad_id,
        "eos_id": tokenizers.target.eos_id,
        "bos_id": tokenizers.target.bos_id,
        "share_embeddings": tokenizers.source.digest == tokenizers.target.digest,
        "max_positions": max(model.max_positions, 2 * config.data.max_length),
    }
    return model.override(overrides), reason


def _preset_model(config: TranslateRun, preset: str) -> TranslationModelConfig:
    """Model config of a preset; for a seq2seq model the preset sets only the sizes."""
    is_transformer = config.architecture == "transformer"
    if preset == "custom":
        return config.model if is_transformer else config.seq2seq
    presets = TRANSFORMER_PRESETS if is_transformer else SEQ2SEQ_PRESETS
    if preset not in presets:
        allowed = ", ".join(presets)
        raise ConfigError(f"preset must be one of {allowed} with --arch {config.architecture}, not {preset}")
    if is_transformer:
        return TRANSFORMER_PRESETS[preset]
    preset_config = SEQ2SEQ_PRESETS[preset]
    return config.seq2seq.override({name: getattr(preset_config, name) for name in SEQ2SEQ_PRESET_SETTINGS})


def _choose_preset(target_tokens: int, vocab_size: int) -> str:
    """Preset for this much data; letters and digits need less depth and less dropout than subwords."""
    if target_tokens < 1_500_000:
        return "micro" if vocab_size < SMALL_ALPHABET else "tiny"
    return "small" if target_tokens < 10_000_000 else "base"


def resolve_training_config(
    config: TrainingConfig,
    hidden_size: int,
    target_tokens: int,
    *,
    is_pretrained: bool = False,
    preferred: Mapping[str, float] = MappingProxyType({}),
) -> TrainingConfig:
    """Fill in every automatic setting; `preferred` are the defaults of the task.

    The optimizer decides the learning rate for a hidden size; a model with pretrained weights has a lower one.
    """
    changes: dict[str, object] = {}
    if not config.batch_tokens:
        config = replace(config, batch_tokens=int(preferred.get("batch_tokens", _default_batch_tokens(target_tokens))))
    rule: type[UpdateRule] = OPTIMIZERS[config.optimizer]
    base_rate = preferred.get("base_learning_rate", rule.default_learning_rate(hidden_size))
    scale = PRETRAINED_LR_SCALE if is_pretrained else 1.0
    rate = config.learning_rate or preferred.get("learning_rate") or base_rate * scale
    changes["learning_rate"] = rate
    # in proportion to the base rate: setting --learning-rate changes both
    changes["muon_learning_rate"] = config.muon_learning_rate or MUON_LEARNING_RATE * rate / base_rate
    if config.schedule == "auto":
        changes["schedule"] = rule.schedule
    if not (config.steps or config.epochs or config.minutes):
        epochs = max(3, min(100, round(DEFAULT_TOKENS / max(1, target_tokens))))
        changes["epochs"] = float(preferred.get("epochs", epochs))
    if "evaluations" in preferred and not (config.evaluate_every or config.minutes):  # evaluations per epoch
        epoch_updates = target_tokens / (config.batch_tokens * config.accumulation_steps)
        changes["evaluate_every"] = max(1, math.ceil(epoch_updates / preferred["evaluations"]))
    return replace(config, **changes)  # type: ignore[arg-type]


def _default_batch_tokens(target_tokens: int) -> int:
    """The power of two nearest to a 200th of the data, between 1,024 and 8,192."""
    return int(min(8192, max(1024, 2 ** round(np.log2(max(1.0, target_tokens / 200))))))


def estimate_updates(config: TrainingConfig, epoch_batches: int, seconds: float) -> int:
    """Estimate the number of updates of a training whose updates take `seconds` each: the first limit counts."""
    limits = [
        config.steps,
        config.epochs * epoch_batches / config.accumulation_steps,
        60 * config.minutes / max(1e-6, seconds),
    ]
    return max(1, round(min(limit for limit in limits if limit)))


def batch_tokens_for_budget(config: TrainingConfig, seconds: float) -> int:
    """Halve the batch until the time budget holds enough updates, of which one takes `seconds` at the present size.

    >>> batch_tokens_for_budget(TrainingConfig(batch_tokens=8192, minutes=10), 2.0)
    2048
    >>> batch_tokens_for_budget(TrainingConfig(minutes=1), 1)
    1024
    """
    batch_tokens = config.batch_tokens or MIN_BATCH_TOKENS
    updates = 60 * config.minutes / max(1e-6, seconds) if config.minutes else math.inf
    while updates < MIN_UPDATES and batch_tokens > MIN_BATCH_TOKENS:
        batch_tokens //= 2
        updates *= 2
    return batch_tokens
