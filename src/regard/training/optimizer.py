"""An update of flat weights, the learning rate's schedule, and the running average."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard.config.training import TrainingConfig
from regard.errors import CheckpointError
from regard.training.distributed import Distributed
from regard.training.flat_weights import FlatWeights
from regard.training.muon import Muon


class Optimizer:
    """Clipping, an update, and the running average of weights that is evaluated.

    Matrices from states to states move by Muon, everything else by AdamW (Loshchilov & Hutter 2019); or all by AdamW.
    """

    def __init__(
        self,
        weights: FlatWeights,
        config: TrainingConfig,
        distributed: Distributed | None = None,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        """`rates` are what the rate is multiplied with, by name of a weight; 1 where nothing is said."""
        self.weights, self.config, self.distributed = weights, config, distributed or Distributed()
        self.updates = 0
        self.average = weights.master.clone() if config.ema_decay else None
        self.gradient = torch.zeros_like(weights.master)
        self._shares: Tensor | None = None
        if rates is not None:
            self._shares = torch.ones_like(weights.master)
            for name, part in weights.split(self._shares).items():
                part.fill_(rates.get(name, 1.0))
        first = weights.inner if config.optimizer == "muon" else 0
        inner = weights.master[:first], self.gradient[:first], weights.groups
        self._muon = Muon(*inner, config.weight_decay, weights.compute.dtype, self.distributed) if first else None
        self._parts = [weights.master[first : weights.matrices], weights.master[weights.matrices :]]
        self._parts[0].grad = self.gradient[first : weights.matrices]
        self._parts[1].grad = self.gradient[weights.matrices :]
        self._adam = torch.optim.AdamW(
            [
                {"params": [part], "weight_decay": decay}
                for part, decay in zip(self._parts, (config.weight_decay, 0.0), strict=True)
            ],
            lr=1.0,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=1e-9,
            fused=True,
        )

    def reduce_gradient(self, scale: float) -> float:
        """Sum the gradients of all ranks and scale the sum for the next update; return its norm, maybe not finite."""
        gradient = self.gradient.copy_(self.weights.gradient)
        self.distributed.all_reduce(gradient)
        norm = float(torch.linalg.vector_norm(gradient)) * scale
        clipped = self.config.max_gradient_norm and norm > self.config.max_gradient_norm
        gradient.mul_(scale * self.config.max_gradient_norm / norm if clipped else scale)
        self.weights.gradient.zero_()
        return norm

    def update(self, rate: float) -> None:
        """Change the weights by the gradient taken last; matrices' own rate rises and falls with the given one."""
        before = None if self._shares is None else self.weights.master.clone()
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        if self._muon is not None:
            self._muon.step(rate * self.config.muon_learning_rate / self.config.learning_rate)
        if before is not None and self._shares is not None:  # an update, decay too, is in proportion to the rate
            self.weights.master.copy_(torch.lerp(before, self.weights.master, self._shares))
        self.updates += 1
        self.weights.copy_to_model()
        if self.average is not None:
            decay = min(self.config.ema_decay, (1 + self.updates) / (10 + self.updates))
            self.average.lerp_(self.weights.master, 1 - decay)

    @property
    def averaged_weights(self) -> Tensor:
        """The flat weights that are evaluated and kept: the running average where there is one."""
        return self.weights.master if self.average is None else self.average

    def state(self) -> dict[str, Tensor]:
        """Return all that must be saved beside the weights."""
        saved: dict[str, Tensor] = {"updates": torch.tensor([self.updates])}
        if self.average is not None:
            saved["average"] = self.average
        if self._muon is not None:
            saved["momentum"] = self._muon.momentum
        for number, part in enumerate(self._parts):
            for name in ("exp_avg", "exp_avg_sq"):
                if part in self._adam.state:
                    saved[f"{name}.{number}"] = self._adam.state[part][name]
        return saved

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Take up a saved state."""
        self._check(saved)
        self.updates = int(saved["updates"])
        if self.average is not None:
            self.average.copy_(saved["average"])
        if self._muon is not None:
            self._muon.momentum.copy_(saved["momentum"])
        for number, part in enumerate(self._parts):
            if f"exp_avg.{number}" in saved:
                self._adam.state[part] = {
                    "step": torch.tensor(float(self.updates)),
                    "exp_avg": saved[f"exp_avg.{number}"].to(part.device).clone(),
                    "exp_avg_sq": saved[f"exp_avg_sq.{number}"].to(part.device).clone(),
                }

    def _check(self, saved: Mapping[str, Tensor]) -> None:
        """Refuse a state that is not of these weights and this kind of update."""
        wanted = {"average": self.average, "momentum": None if self._muon is None else self._muon.momentum}
        for number, part in enumerate(self._parts):
            wanted |= {f"exp_avg.{number}": part, f"exp_avg_sq.{number}": part} if int(saved["updates"]) else {}
        for name, tensor in wanted.items():
            found = saved.get(name)
            shapes = [None if one is None else one.shape for one in (found, tensor)]
            if shapes[0] != shapes[1]:
                raise CheckpointError(
                    f"the saved optimiser does not fit ({name}): another version of Regard wrote it; "
                    "give the run to --from and choose a new --out"
                )
