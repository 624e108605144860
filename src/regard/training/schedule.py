"""An update of flat weights, the learning rate's schedule, and the running average."""

from __future__ import annotations

import math

from regard.config.training import TrainingConfig

WARMUP_SHARE = 0.05  # of the plan, where the user gives no number of updates
WARMUP_MOST = {"muon": 200}  # 4,000 otherwise: updates of warm-up, where the user gives no number
LARGE_STEPS = 600  # updates at the highest rate, where it falls with the root of their number
COOL_DOWN = 0.3  # share of the plan over which that rate goes to zero in the end


def learning_rate(config: TrainingConfig, peak: float, step: int, progress: float) -> float:
    """Return the rate for the update after `step` updates, `progress` (0–1) of the plan done.

    >>> config = TrainingConfig(warmup_steps=10, schedule="constant")
    >>> learning_rate(config, 1.0, 4, 0.0), learning_rate(config, 1.0, 500, 0.9)
    (0.5, 1.0)
    """
    most = config.warmup_steps or WARMUP_MOST.get(config.optimizer, 4000)
    rise = (step + 1) / most if config.warmup_steps else max(progress / WARMUP_SHARE, (step + 1) / most)
    if rise < 1:
        return peak * rise
    if config.schedule == "root":
        return peak * min(1.0, math.sqrt(LARGE_STEPS / (step + 1))) * min(1.0, (1 - progress) / COOL_DOWN)
    if config.schedule == "inverse_sqrt":
        return (
            peak * math.sqrt(max(1, config.warmup_steps) / (step + 1))
            if config.warmup_steps
            else peak * math.sqrt(WARMUP_SHARE / max(progress, WARMUP_SHARE))
        )
    if config.schedule == "constant":
        return peak
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
