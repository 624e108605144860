"""AdamW over flat weights, the learning rate's schedule, and the running average."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from regard.config.training import TrainingConfig
from regard.training.weights import FlatWeights

WARMUP_SHARE = 0.05  # of the plan, where the user gives no number of updates


def learning_rate(config: TrainingConfig, peak: float, step: int, progress: float) -> float:
    """Return the rate for the update after `step` updates, `progress` (0–1) of the plan done.

    >>> config = TrainingConfig(warmup=10, schedule="constant")
    >>> learning_rate(config, 1.0, 4, 0.0), learning_rate(config, 1.0, 500, 0.9)
    (0.5, 1.0)
    """
    rise = (step + 1) / config.warmup if config.warmup else max(progress / WARMUP_SHARE, min(1.0, (step + 1) / 4000))
    if rise < 1:
        return peak * rise
    if config.schedule == "inverse_sqrt":
        return (
            peak * math.sqrt(max(1, config.warmup) / (step + 1))
            if config.warmup
            else peak * math.sqrt(WARMUP_SHARE / max(progress, WARMUP_SHARE))
        )
    if config.schedule == "constant":
        return peak
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


class Optimizer:
    """AdamW (Loshchilov & Hutter 2019) with clipping, and the running average of weights that is evaluated."""

    def __init__(self, weights: FlatWeights, config: TrainingConfig) -> None:
        self.weights, self.config = weights, config
        self.updates = 0
        self.average = weights.master.clone() if config.ema else None
        parts = [weights.master[: weights.matrices], weights.master[weights.matrices :]]
        for part in parts:
            part.grad = torch.zeros_like(part)
        self._parts = parts
        self._adam = torch.optim.AdamW(
            [{"params": [parts[0]], "weight_decay": config.weight_decay}, {"params": [parts[1]], "weight_decay": 0.0}],
            lr=1.0,
            betas=(config.beta1, config.beta2),
            eps=1e-9,
            fused=True,
        )

    def gradient_norm(self, scale: float) -> float:
        """Take the model's gradient times `scale` as the next update's; return its norm, not finite when it is not."""
        gradient = self.weights.gradient.float().mul_(scale)
        norm = float(torch.linalg.vector_norm(gradient))
        if self.config.clip and norm > self.config.clip:
            gradient.mul_(self.config.clip / norm)
        for part, taken in zip(self._parts, gradient.split([len(part) for part in self._parts]), strict=True):
            assert part.grad is not None
            part.grad.copy_(taken)
        self.weights.gradient.zero_()
        return norm

    def update(self, rate: float) -> None:
        """Change the weights by the gradient taken last."""
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        self.updates += 1
        self.weights.publish()
        if self.average is not None:
            decay = min(self.config.ema, (1 + self.updates) / (10 + self.updates))
            self.average.lerp_(self.weights.master, 1 - decay)

    @property
    def evaluated(self) -> Tensor:
        """The flat weights that are evaluated and kept: the running average where there is one."""
        return self.weights.master if self.average is None else self.average

    def state(self) -> dict[str, Tensor]:
        """Return all that must be saved beside the weights."""
        saved: dict[str, Tensor] = {"updates": torch.tensor([self.updates])}
        if self.average is not None:
            saved["average"] = self.average
        for number, part in enumerate(self._parts):
            for name in ("exp_avg", "exp_avg_sq"):
                if part in self._adam.state:
                    saved[f"{name}.{number}"] = self._adam.state[part][name]
        return saved

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Take up a saved state."""
        self.updates = int(saved["updates"])
        if self.average is not None:
            self.average.copy_(saved["average"])
        for number, part in enumerate(self._parts):
            if f"exp_avg.{number}" in saved:
                self._adam.state[part] = {
                    "step": torch.tensor(float(self.updates)),
                    "exp_avg": saved[f"exp_avg.{number}"].to(part.device).clone(),
                    "exp_avg_sq": saved[f"exp_avg_sq.{number}"].to(part.device).clone(),
                }
