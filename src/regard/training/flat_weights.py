"""All trained weights of a model in one flat tensor, so that an update needs a handful of operations for any model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from regard.errors import CheckpointError
from regard.models.base import Model
from regard.models.layers.lora import merge_lora


@dataclass(frozen=True)
class MatrixGroup:
    """Matrices of one shape that are adjacent in a flat tensor."""

    start: int
    num_matrices: int
    shape: tuple[int, int]

    def view(self, flat: Tensor) -> Tensor:
        """View of the matrices in a flat tensor, [matrices, rows, columns]."""
        size = self.num_matrices * self.shape[0] * self.shape[1]
        return flat[self.start : self.start + size].view(self.num_matrices, *self.shape)


class FlatWeights:
    """Float32 master copy of a model's trained weights; the model computes on it, or on a bf16 copy of it.

    Parameters that need no gradient are frozen: they are not in it, and cost neither gradients nor optimizer state.

    Hidden matrices come first, ordered by shape, then embeddings and other matrices, then vectors (biases, norms).
    Each of the three is one slice, and hidden matrices of one shape are one three-dimensional view.
    """

    def __init__(self, model: Model, precision: str, device: str = "cpu") -> None:
        model.to(device)
        self.model = model
        parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        hidden_shapes = model.hidden_matrices()
        hidden = sorted((name for name in parameters if name in hidden_shapes), key=lambda name: hidden_shapes[name][0])
        embeddings = [name for name in parameters if name not in hidden_shapes and parameters[name].dim() >= 2]
        vectors = [name for name in parameters if parameters[name].dim() < 2]
        ordered = {name: parameters[name] for name in [*hidden, *embeddings, *vectors]}
        self.shapes = {name: parameter.shape for name, parameter in ordered.items()}
        self.groups = _group_matrices([shape for name in hidden for shape in hidden_shapes[name]])
        # hidden matrices are [:hidden_stop], embeddings [hidden_stop:matrix_stop], vectors [matrix_stop:]
        self.hidden_stop = sum(parameters[name].numel() for name in hidden)
        self.matrix_stop = self.hidden_stop + sum(parameters[name].numel() for name in embeddings)
        self.master = torch.cat([parameter.detach().reshape(-1).float() for parameter in ordered.values()])
        self.compute = self.master if precision == "float32" else self.master.to(torch.bfloat16)
        self.gradient = torch.zeros_like(self.compute)
        start = 0
        for parameter in ordered.values():
            stop = start + parameter.numel()
            parameter.data = self.compute[start:stop].view(parameter.shape)
            parameter.grad = self.gradient[start:stop].view(parameter.shape)
            start = stop
        self.frozen = self._freeze(model)

    def _freeze(self, model: Model) -> dict[str, Tensor]:
        """Frozen weights in float32, by name; the model computes on them in the precision of the others."""
        frozen = {}
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                frozen[name] = parameter.detach().float()
                parameter.data = frozen[name].to(self.compute.dtype)
        return frozen

    def copy_to_model(self) -> None:
        """Copy the master weights to the model."""
        if self.compute is not self.master:
            self.compute.copy_(self.master)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat tensor by weight name."""
        views = {}
        start = 0
        for name, shape in self.shapes.items():
            stop = start + shape.numel()
            views[name] = flat[start:stop].view(shape)
            start = stop
        return views

    def complete(self, flat: Tensor) -> dict[str, Tensor]:
        """All weights by name, the frozen ones too: LoRA is merged, and its A and B stay beside the merged matrices."""
        return merge_lora(self.model, self.frozen | self.split(flat))

    def load(self, flat: Tensor, weights: Mapping[str, Tensor], where: str) -> None:
        """Fill a flat tensor from named tensors; every weight must be present in its shape."""
        for name, view in self.split(flat).items():
            if name not in weights or weights[name].shape != view.shape:
                shape = list(weights[name].shape) if name in weights else "missing"
                raise CheckpointError(f"{where}: {name} should be {list(view.shape)} but is {shape}")
            view.copy_(weights[name])


def _group_matrices(shapes: Sequence[tuple[int, int]]) -> list[MatrixGroup]:
    """Group adjacent matrices of the same shape.

    >>> [(group.start, group.num_matrices, group.shape) for group in _group_matrices([(3, 2), (3, 2), (1, 2)])]
    [(0, 2, (3, 2)), (12, 1, (1, 2))]
    """
    groups = []
    start = 0
    for shape, members in groupby(shapes):
        num_matrices = len(list(members))
        groups.append(MatrixGroup(start, num_matrices=num_matrices, shape=shape))
        start += num_matrices * shape[0] * shape[1]
    return groups
