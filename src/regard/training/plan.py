"""The choices a run makes for its user, each explained in a line: size, batches, rate, length, number format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from regard.config.model import RECURRENT_PRESETS, TRANSLATOR_PRESETS, WritingConfig
from regard.config.run import RunConfig
from regard.config.training import TrainingConfig
from regard.errors import ConfigError
from regard.tasks.translation import Languages

SMALL_ALPHABET = 512  # vocabularies below this are letters or digits rather than words
DEFAULT_TOKENS = 40_000_000  # target tokens seen in all where the user sets no length
MATRIX_RATE = 0.02
GOING_ON = 0.05  # share of the usual rates for a model that has learned before
FEWEST_UPDATES, LEAST_BATCH = 1000, 1024  # a model needs so many before its batches may be larger than that


def model_config(config: RunConfig, languages: Languages, target_tokens: int) -> tuple[WritingConfig, str]:
    """Return the model for this data and why it was chosen."""
    sizes = {"source_vocabulary": languages.source.size, "target_vocabulary": languages.target.size}
    special = {"pad": languages.target.pad, "end": languages.target.end, "start": languages.target.start}
    same = languages.source.digest == languages.target.digest
    name, reason = config.preset, "as given" if config.preset == "custom" else "as asked"
    if name == "auto":
        name = _size(target_tokens, languages.target.size)
        reason = f"{name}, for {target_tokens:,} target tokens"
        if name == "micro":
            reason += f" of {languages.target.size} kinds"
    chosen = _preset(config, name)
    places = max(chosen.places, 2 * config.data.max_length)
    return chosen.override({**sizes, **special, "shared": same, "places": places}), reason


def _preset(config: RunConfig, name: str) -> WritingConfig:
    """Return the model of a preset; of a recurrent one the preset gives the sizes alone."""
    presets = TRANSLATOR_PRESETS if config.arch == "transformer" else RECURRENT_PRESETS
    if name == "custom":
        return config.model if config.arch == "transformer" else config.recurrent
    if name not in presets:
        raise ConfigError(f"preset must be one of {', '.join(presets)} with --arch {config.arch}, not {name}")
    if config.arch == "transformer":
        return TRANSLATOR_PRESETS[name]
    sizes = RECURRENT_PRESETS[name]
    named = {field: getattr(sizes, field) for field in ("embedding", "width", "layers", "dropout")}
    return config.recurrent.override(named)


def _size(target_tokens: int, vocabulary: int) -> str:
    """Return the preset for so much data; letters and digits need less depth and less dropout than words."""
    if target_tokens < 1_500_000:
        return "micro" if vocabulary < SMALL_ALPHABET else "tiny"
    return "small" if target_tokens < 10_000_000 else "base"


def training_config(
    config: TrainingConfig,
    width: int,
    target_tokens: int,
    *,
    goes_on: bool = False,
    wishes: Mapping[str, float] = MappingProxyType({}),
) -> TrainingConfig:
    """Return the training settings with every automatic one chosen; `wishes` are what suits the task.

    Where matrices have a rate of their own, tables of words learn best at a much higher one. A model that goes on from
    another's weights learns gently.
    """
    changes: dict[str, object] = {}
    if not config.batch_tokens:
        config = replace(config, batch_tokens=int(wishes.get("batch_tokens", _batch_tokens(target_tokens))))
    usual = min(0.04, 2 / width) if config.optimizer == "muon" else min(4e-3, 0.5 / width)
    usual = wishes.get("usual_rate", usual)  # that of tables of words; in step with it, matrices have theirs
    rate = config.learning_rate or wishes.get("learning_rate") or usual * (GOING_ON if goes_on else 1.0)
    changes["learning_rate"] = rate
    changes["matrix_rate"] = config.matrix_rate or MATRIX_RATE * rate / usual  # one given rate moves both
    if config.schedule == "auto":
        changes["schedule"] = "root" if config.optimizer == "muon" else "cosine"
    if not (config.steps or config.epochs or config.minutes):
        passes = max(3, min(100, round(DEFAULT_TOKENS / max(1, target_tokens))))
        changes["epochs"] = float(wishes.get("epochs", passes))
    if "evaluations" in wishes and not (config.evaluate_every or config.minutes):  # of a pass
        passing = target_tokens / (config.batch_tokens * config.accumulate)
        changes["evaluate_every"] = max(1, math.ceil(passing / wishes["evaluations"]))
    return replace(config, **changes)  # type: ignore[arg-type]


def _batch_tokens(target_tokens: int) -> int:
    return int(min(8192, max(1024, 2 ** round(np.log2(max(1.0, target_tokens / 200))))))


def planned_updates(config: TrainingConfig, an_epoch: int, seconds: float) -> int:
    """Return about how many updates a plan has, by its own numbers or by the seconds that one takes."""
    limits = [config.steps, config.epochs * an_epoch / config.accumulate, 60 * config.minutes / max(1e-6, seconds)]
    return max(1, round(min(limit for limit in limits if limit)))


def batch_for_time(config: TrainingConfig, seconds: float) -> int:
    """Return the tokens of a batch with which the given minutes hold enough updates, one of which takes `seconds` now.

    >>> batch_for_time(TrainingConfig(batch_tokens=8192, minutes=10), 2.0), batch_for_time(TrainingConfig(minutes=1), 1)
    (2048, 1024)
    """
    batch = config.batch_tokens or LEAST_BATCH
    updates = 60 * config.minutes / max(1e-6, seconds) if config.minutes else math.inf
    while updates < FEWEST_UPDATES and batch > LEAST_BATCH:
        batch, updates = batch // 2, updates * 2
    return batch
