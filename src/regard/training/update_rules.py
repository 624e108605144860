"""Update rules: how an optimizer changes flat weights by their gradient. `OPTIMIZERS` has them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from regard.config.training import TrainingConfig
from regard.training.distributed import Distributed
from regard.training.flat_weights import FlatWeights
from regard.training.muon import Muon

ADAM_EPS = 1e-9
ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch names them


class UpdateRule:
    """Changes the master weights by the reduced gradient; its tensors are part of a checkpoint.

    A subclass overrides `step` and, where it keeps tensors between updates, `tensors`.
    """

    schedule: ClassVar[str] = "cosine"  # where the setting is auto
    max_warmup_steps: ClassVar[int] = 4000  # without warmup_steps

    def __init__(
        self, weights: FlatWeights, gradient: Tensor, *, config: TrainingConfig, distributed: Distributed
    ) -> None:
        self.weights = weights
        self.gradient = gradient  # [weights], of all ranks, clipped; filled before each step
        self.config = config
        self.distributed = distributed

    @classmethod
    def default_learning_rate(cls, hidden_size: int) -> float:
        """Peak learning rate of a model of this width."""
        return min(4e-3, 0.5 / hidden_size)

    @classmethod
    def describe_rates(cls, config: TrainingConfig) -> str:
        """Learning rates for the user."""
        return f"learning rate {config.learning_rate:.2g}"

    def step(self, rate: float) -> None:
        """Update the master weights in place, with this learning rate."""
        raise NotImplementedError

    def tensors(self, num_updates: int) -> dict[str, Tensor]:
        """Tensors that later updates depend on, after this many updates; loading copies into them."""
        return {}

    def load(self, saved: Mapping[str, Tensor], num_updates: int) -> None:
        """Restore saved tensors, which have the names and shapes of `tensors`."""
        for name, tensor in self.tensors(num_updates).items():
            tensor.copy_(saved[name])


class AdamWRule(UpdateRule):
    """AdamW (Loshchilov & Hutter 2019) for all weights; weight decay is on matrices only."""

    def __init__(
        self, weights: FlatWeights, gradient: Tensor, *, config: TrainingConfig, distributed: Distributed
    ) -> None:
        super().__init__(weights, gradient, config=config, distributed=distributed)
        start = self.first_weight()
        matrices = weights.master[start : weights.matrix_stop]
        matrices.grad = gradient[start : weights.matrix_stop]
        vectors = weights.master[weights.matrix_stop :]
        vectors.grad = gradient[weights.matrix_stop :]
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

    def first_weight(self) -> int:
        """Index of the first weight that AdamW updates."""
        return 0

    def step(self, rate: float) -> None:
        """Update matrices and vectors."""
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()

    def tensors(self, num_updates: int) -> dict[str, Tensor]:
        """Both moments of matrices and vectors, once there was an update."""
        if not num_updates:
            return {}
        tensors: dict[str, Tensor] = {}
        for index, tensor in enumerate(self._adam_tensors):
            if tensor not in self._adam.state:  # a state is about to be loaded
                moments = {moment: torch.zeros_like(tensor) for moment in ADAM_MOMENTS}
                self._adam.state[tensor] = {"step": torch.tensor(float(num_updates)), **moments}
            tensors |= {f"{moment}.{index}": self._adam.state[tensor][moment] for moment in ADAM_MOMENTS}
        return tensors

    def load(self, saved: Mapping[str, Tensor], num_updates: int) -> None:
        """Restore the moments, and the number of updates, which corrects their bias."""
        self._adam.state.clear()
        super().load(saved, num_updates)


class MuonRule(AdamWRule):
    """Muon for hidden matrices (Jordan et al. 2024), AdamW for all other weights."""

    schedule = "root"
    max_warmup_steps = 200

    def __init__(
        self, weights: FlatWeights, gradient: Tensor, *, config: TrainingConfig, distributed: Distributed
    ) -> None:
        super().__init__(weights, gradient, config=config, distributed=distributed)
        stop = weights.hidden_stop
        self._muon = Muon(
            weights.master[:stop],
            gradient[:stop],
            groups=weights.groups,
            decay=config.weight_decay,
            dtype=weights.compute.dtype,
            distributed=distributed,
        )

    @classmethod
    def default_learning_rate(cls, hidden_size: int) -> float:
        """Peak rate of AdamW: embeddings learn best at a much higher one beside Muon."""
        return min(0.04, 2 / hidden_size)

    @classmethod
    def describe_rates(cls, config: TrainingConfig) -> str:
        """Learning rates of AdamW and of Muon."""
        return f"{super().describe_rates(config)} and {config.muon_learning_rate:.2g} for matrices"

    def first_weight(self) -> int:
        """Index of the first weight after the hidden matrices."""
        return self.weights.hidden_stop

    def step(self, rate: float) -> None:
        """Update the hidden matrices at a rate in proportion to that of AdamW."""
        super().step(rate)
        if self.weights.hidden_stop:
            self._muon.step(rate * self.config.muon_learning_rate / self.config.learning_rate)

    def tensors(self, num_updates: int) -> dict[str, Tensor]:
        """Momentum of the hidden matrices, and the moments of AdamW."""
        momentum = {"momentum": self._muon.momentum} if self.weights.hidden_stop else {}
        return {**momentum, **super().tensors(num_updates)}
