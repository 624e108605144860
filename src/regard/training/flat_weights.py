"""All weights of a model in one flat tensor, so that an update is a handful of operations whatever the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from regard.errors import CheckpointError
from regard.models.base import Model


@dataclass(frozen=True)
class MatrixGroup:
    """Matrices of one shape that lie side by side in a flat tensor."""

    start: int
    num_predictions: int
    shape: tuple[int, int]

    def view(self, flat: Tensor) -> Tensor:
        """Return their view in a flat tensor, [count, rows, columns]."""
        size = self.num_predictions * self.shape[0] * self.shape[1]
        return flat[self.start : self.start + size].view(self.num_predictions, *self.shape)


class FlatWeights:
    """The float32 master of a model's weights; the model computes on it, or on a bf16 copy of it.

    Matrices from states to states come first, by shape, then tables of words, then vectors (biases, norms): each kind
    is one slice, and matrices of one shape are one three-dimensional view.
    """

    def __init__(self, model: Model, precision: str, device: str = "cpu") -> None:
        shapes = model.hidden_matrices()
        given = dict(model.named_parameters())
        inner = sorted(((shapes[name], name) for name in given if name in shapes), key=lambda item: item[0])
        tables = [name for name, parameter in given.items() if name not in shapes and parameter.dim() >= 2]
        vectors = [name for name, parameter in given.items() if parameter.dim() < 2]
        named = {name: given[name] for name in [*(name for _, name in inner), *tables, *vectors]}
        self.shapes = {name: parameter.shape for name, parameter in named.items()}
        self.groups = _groups([(shape, given[name].numel()) for shape, name in inner])
        self.inner = sum(given[name].numel() for _, name in inner)  # numbers in matrices from states to states
        self.matrices = self.inner + sum(given[name].numel() for name in tables)
        self.master = torch.cat([parameter.detach().reshape(-1).float() for parameter in named.values()]).to(device)
        model.to(device)
        compute = self.master if precision == "float32" else self.master.to(torch.bfloat16)
        self.compute, self.gradient = compute, torch.zeros_like(compute)
        first = 0
        for parameter in named.values():
            last = first + parameter.numel()
            parameter.data = compute[first:last].view(parameter.shape)
            parameter.grad = self.gradient[first:last].view(parameter.shape)
            first = last

    def copy_to_model(self) -> None:
        """Let the model see the master's present values."""
        if self.compute is not self.master:
            self.compute.copy_(self.master)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return a flat tensor's parts under the names of the weights."""
        parts, first = {}, 0
        for name, shape in self.shapes.items():
            last = first + shape.numel()
            parts[name] = flat[first:last].view(shape)
            first = last
        return parts

    def load(self, flat: Tensor, weights: Mapping[str, Tensor], where: str) -> None:
        """Fill a flat tensor from named parts; every name must be there in its shape."""
        for name, part in self.split(flat).items():
            if name not in weights or weights[name].shape != part.shape:
                found = list(weights[name].shape) if name in weights else "nothing"
                raise CheckpointError(f"{where}: {name} should be {list(part.shape)} but is {found}")
            part.copy_(weights[name])


def _groups(sizes: list[tuple[tuple[int, int], int]]) -> list[MatrixGroup]:
    """Return the runs of matrices of one shape, given each weight's shape of matrix and how many numbers it has."""
    groups, first = [], 0
    for shape, members in groupby(sizes, key=lambda item: item[0]):
        size = sum(numbers for _, numbers in members)
        groups.append(MatrixGroup(first, size // (shape[0] * shape[1]), shape))
        first += size
    return groups
