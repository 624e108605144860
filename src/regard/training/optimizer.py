"""The optimizer: gradient clipping, updates of flat weights, and their exponential moving average (EMA)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard.components import OPTIMIZERS
from regard.config.training import TrainingConfig
from regard.errors import CheckpointError
from regard.training.distributed import Distributed
from regard.training.flat_weights import FlatWeights
from regard.training.update_rules import UpdateRule


class Optimizer:
    """Clips gradients, updates the weights by the rule of the config, and keeps the average that is evaluated."""

    def __init__(
        self,
        weights: FlatWeights,
        config: TrainingConfig,
        distributed: Distributed | None = None,
        learning_rate_scales: Mapping[str, float] | None = None,
    ) -> None:
        """`learning_rate_scales` are factors on the learning rate by weight name; 1 where a name is missing."""
        self.weights = weights
        self.config = config
        self.distributed = distributed or Distributed()
        self.updates = 0
        self.average = weights.master.clone() if config.ema_decay else None
        self.gradient = torch.zeros_like(weights.master)
        self._scales = None if learning_rate_scales is None else self._flatten_scales(learning_rate_scales)
        rule: type[UpdateRule] = OPTIMIZERS[config.optimizer]
        self.rule = rule(weights, self.gradient, config=config, distributed=self.distributed)

    def _flatten_scales(self, learning_rate_scales: Mapping[str, float]) -> Tensor:
        scales = torch.ones_like(self.weights.master)
        for name, view in self.weights.split(scales).items():
            view.fill_(learning_rate_scales.get(name, 1.0))
        return scales

    def reduce_gradient(self, scale: float) -> float:
        """Sum the gradients of all ranks, scale and clip the sum; return its norm, which may not be finite."""
        gradient = self.gradient.copy_(self.weights.gradient)
        self.distributed.all_reduce(gradient)
        norm = float(torch.linalg.vector_norm(gradient)) * scale
        max_norm = self.config.max_gradient_norm
        should_clip = max_norm and norm > max_norm
        gradient.mul_(scale * max_norm / norm if should_clip else scale)
        self.weights.gradient.zero_()
        return norm

    def update(self, rate: float) -> None:
        """Update the weights by the reduced gradient."""
        before = None if self._scales is None else self.weights.master.clone()
        self.rule.step(rate)
        if before is not None and self._scales is not None:  # updates and weight decay are proportional to the rate
            self.weights.master.copy_(torch.lerp(before, self.weights.master, self._scales))
        self.updates += 1
        self.weights.copy_to_model()
        if self.average is not None:
            decay = min(self.config.ema_decay, (1 + self.updates) / (10 + self.updates))
            self.average.lerp_(self.weights.master, 1 - decay)

    @property
    def averaged_weights(self) -> Tensor:
        """Flat weights to evaluate and save: the EMA, or the weights themselves without one."""
        return self.weights.master if self.average is None else self.average

    def state(self) -> dict[str, Tensor]:
        """Tensors that a checkpoint holds besides the weights."""
        state: dict[str, Tensor] = {"updates": torch.tensor([self.updates])}
        if self.average is not None:
            state["average"] = self.average
        return state | self.rule.tensors(self.updates)

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Restore a saved state."""
        self._check(saved)
        self.updates = int(saved["updates"])
        if self.average is not None:
            self.average.copy_(saved["average"])
        self.rule.load(saved, self.updates)

    def _check(self, saved: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` for a state of other weights or of another optimizer."""
        expected = dict(self.rule.tensors(int(saved["updates"])))
        if self.average is not None:
            expected["average"] = self.average
        for name in sorted((expected.keys() | saved.keys()) - {"updates"}):
            expected_shape = expected[name].shape if name in expected else None
            saved_shape = saved[name].shape if name in saved else None
            if saved_shape != expected_shape:
                raise CheckpointError(
                    f"the saved optimizer does not fit ({name}): another version of Regard wrote it; "
                    "pass the run to --from and choose a new --out"
                )
