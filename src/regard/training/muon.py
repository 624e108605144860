"""Muon: updates by orthogonalised momentum, for hidden matrices (Jordan et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.training.distributed import Distributed
from regard.training.flat_weights import MatrixGroup

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's: singular values from 0.001 up come near 1 in five iterations


def orthogonalize(matrices: Tensor) -> Tensor:  # [n, rows, columns] → [n, rows, columns]
    """Bring all singular values near 1 and keep the singular vectors (Newton–Schulz iteration).

    >>> orthogonal = orthogonalize(torch.tensor([[[3.0, 0.0], [0.0, 0.5]]]))[0]
    >>> bool(((orthogonal.diag() > 0.6) & (orthogonal.diag() < 1.3)).all()), orthogonal[0, 1].item()
    (True, 0.0)
    """
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / x.float().norm(dim=(1, 2), keepdim=True).clamp_min(1e-7).to(x.dtype)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):  # x ← a x + (b xxᵀ + c (xxᵀ)²) x
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x


class Muon:
    """Momentum and updates of the hidden matrices, which come first in a flat tensor.

    An update with learning rate r changes the output of a square matrix, for an input of norm 1, by about r at any
    size.
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
        self.master = master
        self.gradient = gradient
        self.groups = groups
        self.decay = decay
        self.dtype = dtype
        self.distributed = distributed
        self.momentum = torch.zeros_like(master)
        self.change = torch.zeros_like(master)

    def step(self, rate: float) -> None:
        """Update each matrix by its orthogonalised Nesterov momentum."""
        self.momentum.lerp_(self.gradient, 1 - MOMENTUM)
        nesterov = torch.lerp(self.gradient, self.momentum, MOMENTUM).to(self.dtype)
        if self.decay:
            self.master.mul_(1 - rate * self.decay)
        self.change.zero_()
        for group in self.groups:
            shard = self.distributed.shard_slice(group.num_matrices)
            group.view(self.change)[shard] = orthogonalize(group.view(nesterov)[shard]).float()
        self.distributed.all_reduce(self.change)  # each rank has orthogonalised its share of the matrices
        for group in self.groups:
            rows, columns = group.shape
            group.view(self.master).sub_(group.view(self.change), alpha=rate * max(1.0, rows / columns) ** 0.5)
