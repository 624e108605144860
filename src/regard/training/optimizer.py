"""The optimizer: gradient clipping, updates of flat weights, and their exponential moving average (EMA)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard.config.training import TrainingConfig
from regard.errors import CheckpointError
from regard.training.distributed import Distributed
from regard.training.flat_weights import FlatWeights
from regard.training.muon import Muon

ADAM_EPS = 1e-9
ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch names them


class Optimizer:
    """Clips gradients, updates the weights and keeps the moving average that is evaluated.

    Hidden matrices are updated by Muon, all other weights by AdamW (Loshchilov & Hutter 2019); or all by AdamW.
    """

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
        muon_stop = weights.hidden_stop if config.optimizer == "muon" else 0
        self._muon = self._build_muon(muon_stop) if muon_stop else None
        matrices = weights.master[muon_stop : weights.matrix_stop]
        matrices.grad = self.gradient[muon_stop : weights.matrix_stop]
        vectors = weights.master[weights.matrix_stop :]
        vectors.grad = self.gradient[weights.matrix_stop :]
        self._adam_tensors = [matrices, vectors]
        self._adam = torch.optim.AdamW(
            [
                {"params": [matrices], "weight_decay": config.weight_decay},
                {"params": [vectors], "weight_decay": 0.0},
            ],
            lr=1.0,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=ADAM_EPS,
            fused=True,
        )

    def _flatten_scales(self, learning_rate_scales: Mapping[str, float]) -> Tensor:
        scales = torch.ones_like(self.weights.master)
        for name, view in self.weights.split(scales).items():
            view.fill_(learning_rate_scales.get(name, 1.0))
        return scales

    def _build_muon(self, stop: int) -> Muon:
        return Muon(
            self.weights.master[:stop],
            self.gradient[:stop],
            groups=self.weights.groups,
            decay=self.config.weight_decay,
            dtype=self.weights.compute.dtype,
            distributed=self.distributed,
        )

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
        """Update the weights by the reduced gradient; Muon's learning rate is in proportion to `rate`."""
        before = None if self._scales is None else self.weights.master.clone()
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        if self._muon is not None:
            self._muon.step(rate * self.config.muon_learning_rate / self.config.learning_rate)
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
        if self._muon is not None:
            state["momentum"] = self._muon.momentum
        for index, tensor in enumerate(self._adam_tensors):
            for moment in ADAM_MOMENTS:
                if tensor in self._adam.state:
                    state[f"{moment}.{index}"] = self._adam.state[tensor][moment]
        return state

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Restore a saved state."""
        self._check(saved)
        self.updates = int(saved["updates"])
        if self.average is not None:
            self.average.copy_(saved["average"])
        if self._muon is not None:
            self._muon.momentum.copy_(saved["momentum"])
        for index, tensor in enumerate(self._adam_tensors):
            if f"exp_avg.{index}" in saved:
                self._adam.state[tensor] = {
                    "step": torch.tensor(float(self.updates)),
                    "exp_avg": saved[f"exp_avg.{index}"].to(tensor.device).clone(),
                    "exp_avg_sq": saved[f"exp_avg_sq.{index}"].to(tensor.device).clone(),
                }

    def _check(self, saved: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` for a state of other weights or of another optimizer."""
        momentum = None if self._muon is None else self._muon.momentum
        expected: dict[str, Tensor | None] = {"average": self.average, "momentum": momentum}
        if int(saved["updates"]):
            for index, tensor in enumerate(self._adam_tensors):
                for moment in ADAM_MOMENTS:
                    expected[f"{moment}.{index}"] = tensor
        for name, reference in expected.items():
            expected_shape = None if reference is None else reference.shape
            saved_shape = saved[name].shape if name in saved else None
            if saved_shape != expected_shape:
                raise CheckpointError(
                    f"the saved optimizer does not fit ({name}): another version of Regard wrote it; "
                    "pass the run to --from and choose a new --out"
                )
