"""Linear layers whose weights are prepacked for inference: reordered once for oneDNN, which fuses what follows."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from regard.attention.multihead import RowLinear
from regard.models.layers.activations import ACTIVATIONS

PACKING_ROWS = 64  # batch size that oneDNN packs weights for; other sizes work, too
FUSED_ACTIVATIONS = {  # activation → name and algorithm of oneDNN's fused operator
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
}


def can_prepack(weight: Tensor) -> bool:
    """Whether torch can prepack a weight of this dtype on its device."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


class PrepackedLinear(RowLinear):
    """A linear layer with a prepacked copy of its weight, for inference.

    It shares its parameters with the layer that it replaces. With gradients it computes as any linear layer does. New
    weights (`load_state_dict`), another dtype or device, and copying discard the prepacked copy.

    >>> layer = nn.Linear(3, 2)
    >>> with torch.inference_mode():
    ...     bool(torch.allclose(PrepackedLinear(layer.weight, layer.bias)(torch.ones(1, 3)), layer(torch.ones(1, 3))))
    True
    """

    def __init__(self, weight: Tensor, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)  # that of nn.Linear would create and initialise parameters
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.bias = bias  # type: ignore[assignment]  # None without a bias, as in nn.Linear
        self.packed_weight: Tensor | None = None
        if can_prepack(weight):
            with torch.inference_mode(False), torch.no_grad():
                self.packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKING_ROWS)

    @property
    def is_packed(self) -> bool:
        """Whether the prepacked copy is used: it exists, and no gradients are needed."""
        return self.packed_weight is not None and not torch.is_grad_enabled()

    def forward(self, hidden: Tensor) -> Tensor:
        if not self.is_packed:
            return super().forward(hidden)
        return self.compute_fused(hidden, "none", "")

    def compute_fused(self, hidden: Tensor, operation: str, algorithm: str) -> Tensor:
        """operation(hidden · weightᵀ + bias) in one operator."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            hidden, self.packed_weight, self.bias, operation, [], algorithm
        )
        return output

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        self.packed_weight = None
        super()._load_from_state_dict(*arguments, **options)

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        self.packed_weight = None
        return super()._apply(*arguments, **options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "packed_weight": None}  # oneDNN's layout can be neither copied nor pickled


def linear_with_activation(layer: nn.Module, hidden: Tensor, activation: str) -> Tensor:
    """activation(layer(hidden)), in one operator where the layer is prepacked."""
    if isinstance(layer, PrepackedLinear) and layer.is_packed and activation in FUSED_ACTIVATIONS:
        operation, algorithm = FUSED_ACTIVATIONS[activation]
        return layer.compute_fused(hidden, operation, algorithm)
    return ACTIVATIONS[activation](layer(hidden))


def prepack_linears(module: nn.Module) -> None:
    """Replace the linear layers inside a module by prepacked ones, with the same parameters under the same names."""
    for parent in [*module.modules()]:
        for name, child in [*parent.named_children()]:
            if isinstance(child, nn.Linear) and _can_replace(child):
                setattr(parent, name, PrepackedLinear(child.weight, child.bias))


def _can_replace(layer: nn.Linear) -> bool:
    """Whether a layer is a plain linear one, or a prepacked one that has lost its copy."""
    return type(layer) in (nn.Linear, RowLinear) or (isinstance(layer, PrepackedLinear) and layer.packed_weight is None)
