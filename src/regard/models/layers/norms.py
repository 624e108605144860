"""Norms of hidden states: layer norm and RMS norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / RMS(x) · weight (Zhang & Sennrich 2019), computed in float32.

    >>> RMSNorm(2, eps=0.0)(torch.tensor([3.0, 4.0])).mul(12.5**0.5).tolist()
    [3.0, 4.0]
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.weight * _divide_by_rms(hidden, self.eps).to(hidden.dtype)


class RMSNormPlusOne(nn.Module):
    """x / RMS(x) · (1 + weight), with weights that start from zero (Gemma)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, hidden: Tensor) -> Tensor:
        return (_divide_by_rms(hidden, self.eps) * (1 + self.weight.float())).to(hidden.dtype)


def _divide_by_rms(hidden: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square of the last axis, in float32."""
    hidden = hidden.float()
    return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + eps)


def build_norm(kind: str, size: int, eps: float, bias: bool = True) -> nn.Module:
    """Build the norm of this name; `bias` is that of a layer norm.

    >>> build_norm("rms", 3, 0.0)(torch.full((1, 3), 2.0)).tolist()
    [[1.0, 1.0, 1.0]]
    """
    if kind == "rms":
        return RMSNorm(size, eps)
    if kind == "rms_plus_one":
        return RMSNormPlusOne(size, eps)
    return nn.LayerNorm(size, eps, bias=bias)
