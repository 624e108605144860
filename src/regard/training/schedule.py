"""The learning-rate schedule."""

from __future__ import annotations

import math

from regard.components import OPTIMIZERS
from regard.config.training import TrainingConfig
from regard.training.update_rules import UpdateRule

WARMUP_SHARE = 0.05  # of training, without warmup_steps
ROOT_CONSTANT_STEPS = 600  # of the root schedule: updates at the peak rate
ROOT_COOLDOWN_SHARE = 0.3  # of the root schedule: share of training over which the rate falls to zero
COSINE_FLOOR = 0.01  # of the cosine schedule: share of the peak rate at the end


def learning_rate(config: TrainingConfig, peak: float, step: int, progress: float) -> float:
    """Learning rate of the update after `step` updates, with `progress` (0–1) of training done.

    >>> config = TrainingConfig(warmup_steps=10, schedule="constant")
    >>> learning_rate(config, 1.0, 4, 0.0), learning_rate(config, 1.0, 500, 0.9)
    (0.5, 1.0)
    """
    warmup = _warmup(config, step, progress)
    if warmup < 1:
        return peak * warmup
    if config.schedule == "root":
        decay = min(1.0, math.sqrt(ROOT_CONSTANT_STEPS / (step + 1)))
        cooldown = min(1.0, (1 - progress) / ROOT_COOLDOWN_SHARE)
        return peak * decay * cooldown
    if config.schedule == "inverse_sqrt":
        if config.warmup_steps:
            return peak * math.sqrt(max(1, config.warmup_steps) / (step + 1))
        return peak * math.sqrt(WARMUP_SHARE / max(progress, WARMUP_SHARE))
    if config.schedule == "constant":
        return peak
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return peak * (COSINE_FLOOR + (1 - COSINE_FLOOR) * cosine)


def _warmup(config: TrainingConfig, step: int, progress: float) -> float:
    """Linear warm-up factor; 1 or more after the warm-up."""
    if config.warmup_steps:
        return (step + 1) / config.warmup_steps
    rule: type[UpdateRule] = OPTIMIZERS[config.optimizer]
    return max(progress / WARMUP_SHARE, (step + 1) / rule.max_warmup_steps)
