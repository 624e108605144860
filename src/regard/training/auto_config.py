"""The choices a run makes for its user, each explained in a line: size, batches, rate, length, number format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from regard.config.models import TRANSFORMER_PRESETS
from regard.config.rnn_models import SEQ2SEQ_PRESETS, TranslationModelConfig
from regard.config.runs import RunConfig
from regard.config.training import TrainingConfig
from regard.errors import ConfigError
from regard.tasks.translation import TokenizerPair

SMALL_ALPHABET = 512  # vocabularies below this are letters or digits rather than words
DEFAULT_TOKENS = 40_000_000  # target tokens seen in all where the user sets no length
MUON_LEARNING_RATE = 0.02
PRETRAINED_LR_SCALE = 0.05  # share of the usual rates for a model that has learned before
MIN_UPDATES, MIN_BATCH_TOKENS = 1000, 1024  # a model needs so many before its batches may be larger than that


def choose_translation_model(
    config: RunConfig, tokenizers: TokenizerPair, target_tokens: int
) -> tuple[TranslationModelConfig, str]:
    """Return the model for this data and why it was chosen."""
    sizes = {"source_vocab_size": tokenizers.source.vocab_size, "target_vocab_size": tokenizers.target.vocab_size}
    special = {
        "pad_id": tokenizers.target.pad_id,
        "eos_id": tokenizers.target.eos_id,
        "bos_id": tokenizers.target.bos_id,
    }
    same = tokenizers.source.digest == tokenizers.target.digest
    name, reason = config.preset, "as given" if config.preset == "custom" else "as asked"
    if name == "auto":
        name = _size(target_tokens, tokenizers.target.vocab_size)
        reason = f"{name}, for {target_tokens:,} target tokens"
        if name == "micro":
            reason += f" of {tokenizers.target.vocab_size} kinds"
    chosen = _preset(config, name)
    places = max(chosen.max_positions, 2 * config.data.max_length)
    return chosen.override({**sizes, **special, "share_embeddings": same, "max_positions": places}), reason


def _preset(config: RunConfig, name: str) -> TranslationModelConfig:
    """Return the model of a preset; of a recurrent one the preset gives the sizes alone."""
    presets = TRANSFORMER_PRESETS if config.architecture == "transformer" else SEQ2SEQ_PRESETS
    if name == "custom":
        return config.model if config.architecture == "transformer" else config.seq2seq
    if name not in presets:
        raise ConfigError(f"preset must be one of {', '.join(presets)} with --arch {config.architecture}, not {name}")
    if config.architecture == "transformer":
        return TRANSFORMER_PRESETS[name]
    sizes = SEQ2SEQ_PRESETS[name]
    named = {field: getattr(sizes, field) for field in ("embedding_size", "hidden_size", "num_layers", "dropout")}
    return config.seq2seq.override(named)


def _size(target_tokens: int, vocabulary: int) -> str:
    """Return the preset for so much data; letters and digits need less depth and less dropout than words."""
    if target_tokens < 1_500_000:
        return "micro" if vocabulary < SMALL_ALPHABET else "tiny"
    return "small" if target_tokens < 10_000_000 else "base"


def resolve_training_config(
    config: TrainingConfig,
    hidden_size: int,
    target_tokens: int,
    *,
    is_pretrained: bool = False,
    preferred: Mapping[str, float] = MappingProxyType({}),
) -> TrainingConfig:
    """Return the training settings with every automatic one chosen; `wishes` are what suits the task.

    Where matrices have a rate of their own, tables of words learn best at a much higher one. A model that goes on from
    another's weights learns gently.
    """
    changes: dict[str, object] = {}
    if not config.batch_tokens:
        config = replace(config, batch_tokens=int(preferred.get("batch_tokens", _batch_tokens(target_tokens))))
    usual = min(0.04, 2 / hidden_size) if config.optimizer == "muon" else min(4e-3, 0.5 / hidden_size)
    usual = preferred.get("usual_rate", usual)  # that of tables of words; in step with it, matrices have theirs
    rate = (
        config.learning_rate
        or preferred.get("learning_rate")
        or usual * (PRETRAINED_LR_SCALE if is_pretrained else 1.0)
    )
    changes["learning_rate"] = rate
    changes["muon_learning_rate"] = (
        config.muon_learning_rate or MUON_LEARNING_RATE * rate / usual
    )  # one given rate moves both
    if config.schedule == "auto":
        changes["schedule"] = "root" if config.optimizer == "muon" else "cosine"
    if not (config.steps or config.epochs or config.minutes):
        passes = max(3, min(100, round(DEFAULT_TOKENS / max(1, target_tokens))))
        changes["epochs"] = float(preferred.get("epochs", passes))
    if "evaluations" in preferred and not (config.evaluate_every or config.minutes):  # of a pass
        passing = target_tokens / (config.batch_tokens * config.accumulation_steps)
        changes["evaluate_every"] = max(1, math.ceil(passing / preferred["evaluations"]))
    return replace(config, **changes)  # type: ignore[arg-type]


def _batch_tokens(target_tokens: int) -> int:
    return int(min(8192, max(1024, 2 ** round(np.log2(max(1.0, target_tokens / 200))))))


def estimate_updates(config: TrainingConfig, epoch_batches: int, seconds: float) -> int:
    """Return about how many updates a plan has, by its own numbers or by the seconds that one takes."""
    limits = [
        config.steps,
        config.epochs * epoch_batches / config.accumulation_steps,
        60 * config.minutes / max(1e-6, seconds),
    ]
    return max(1, round(min(limit for limit in limits if limit)))


def batch_tokens_for_budget(config: TrainingConfig, seconds: float) -> int:
    """Return the tokens of a batch with which the given minutes hold enough updates, one of which takes `seconds` now.

    >>> batch_tokens_for_budget(TrainingConfig(batch_tokens=8192, minutes=10), 2.0), batch_tokens_for_budget(TrainingConfig(minutes=1), 1)
    (2048, 1024)
    """
    batch = config.batch_tokens or MIN_BATCH_TOKENS
    updates = 60 * config.minutes / max(1e-6, seconds) if config.minutes else math.inf
    while updates < MIN_UPDATES and batch > MIN_BATCH_TOKENS:
        batch, updates = batch // 2, updates * 2
    return batch
