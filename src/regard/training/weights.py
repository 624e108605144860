"""All weights of a model in one flat tensor, so that an update is a handful of operations whatever the model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from regard.errors import CheckpointError


class FlatWeights:
    """The float32 master of a model's weights; the model computes on it, or on a bf16 copy of it.

    Matrices come first, then vectors (biases, norms), so that weight decay can spare the second part.
    """

    def __init__(self, model: nn.Module, precision: str, device: str = "cpu") -> None:
        named = sorted(model.named_parameters(), key=lambda item: item[1].dim() < 2)
        self.shapes = {name: parameter.shape for name, parameter in named}
        self.matrices = sum(parameter.numel() for _, parameter in named if parameter.dim() >= 2)
        self.master = torch.cat([parameter.detach().reshape(-1).float() for _, parameter in named]).to(device)
        model.to(device)
        compute = self.master if precision == "float32" else self.master.to(torch.bfloat16)
        self.compute, self.gradient = compute, torch.zeros_like(compute)
        first = 0
        for _, parameter in named:
            last = first + parameter.numel()
            parameter.data = compute[first:last].view(parameter.shape)
            parameter.grad = self.gradient[first:last].view(parameter.shape)
            first = last

    def publish(self) -> None:
        """Let the model see the master's present values."""
        if self.compute is not self.master:
            self.compute.copy_(self.master)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return a flat tensor's parts under the names of the weights."""
        parts, first = {}, 0
        for name, shape in self.shapes.items():
            last = first + shape.numel()
            parts[name] = flat[first:last].view(shape)
            first = last
        return parts

    def fill(self, flat: Tensor, named: Mapping[str, Tensor], where: str) -> None:
        """Fill a flat tensor from named parts; every name must be there in its shape."""
        for name, part in self.named(flat).items():
            if name not in named or named[name].shape != part.shape:
                found = list(named[name].shape) if name in named else "nothing"
                raise CheckpointError(f"{where}: {name} should be {list(part.shape)} but is {found}")
            part.copy_(named[name])
