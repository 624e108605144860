"""Updates along orthogonalised momentum, for matrices from states to states (Muon, Jordan et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.training.distributed import Distributed
from regard.training.flat_weights import MatrixGroup

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (
    3.4445,
    -4.7750,
    2.0315,
)  # Jordan's coefficients: singular values from 0.001 up come near 1 in five turns


def orthogonalize(matrices: Tensor) -> Tensor:  # [n, rows, columns]
    """Return matrices with the same singular vectors, all singular values brought near 1 (Newton–Schulz iteration).

    >>> made = orthogonalize(torch.tensor([[[3.0, 0.0], [0.0, 0.5]]]))[0]
    >>> bool(((made.diag() > 0.6) & (made.diag() < 1.3)).all()), made[0, 1].item()
    (True, 0.0)
    """
    tall = matrices.shape[1] > matrices.shape[2]
    states = matrices.mT if tall else matrices
    states = states / states.float().norm(dim=(1, 2), keepdim=True).clamp_min(1e-7).to(states.dtype)
    first, second, third = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = states @ states.mT
        states = torch.baddbmm(
            states, torch.baddbmm(square, square, square, beta=second, alpha=third), states, beta=first
        )
    return states.mT if tall else states


class Muon:
    """Keeps the momentum of the matrices at the head of a flat tensor, and moves them.

    A step of rate r changes what a square matrix makes of a state of length 1 by about r, whatever the width.
    """

    def __init__(
        self,
        master: Tensor,
        gradient: Tensor,
        groups: Sequence[MatrixGroup],
        decay: float,
        dtype: torch.dtype,
        distributed: Distributed,
    ) -> None:
        self.master, self.gradient, self.groups, self.decay, self.dtype = master, gradient, groups, decay, dtype
        self.distributed = distributed
        self.momentum = torch.zeros_like(master)
        self.change = torch.zeros_like(master)

    def step(self, rate: float) -> None:
        """Move each matrix by its orthogonalised momentum, looking one step ahead (Nesterov)."""
        self.momentum.lerp_(self.gradient, 1 - MOMENTUM)
        ahead = torch.lerp(self.gradient, self.momentum, MOMENTUM).to(self.dtype)
        if self.decay:
            self.master.mul_(1 - rate * self.decay)
        self.change.zero_()
        for group in self.groups:
            own = self.distributed.shard_slice(group.num_predictions)
            group.view(self.change)[own] = orthogonalize(group.view(ahead)[own]).float()
        self.distributed.all_reduce(self.change)  # each rank orthogonalised some of the matrices
        for group in self.groups:
            rows, columns = group.shape
            group.view(self.master).sub_(group.view(self.change), alpha=rate * max(1.0, rows / columns) ** 0.5)
