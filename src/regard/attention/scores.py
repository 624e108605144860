"""What is compared, and how scores become weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from regard.attention.noise import Noise


class Score(Protocol):
    """Compares queries with keys; what can be done once per key is done in `prepare`."""

    def prepare(self, key: Tensor) -> Tensor:
        """Return the key as it is stored."""
        ...

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the scores [B, H, Q, K]."""
        ...


class Dot:
    """q · k (Luong et al. 2015, "dot"; memory networks)."""

    def prepare(self, key: Tensor) -> Tensor:
        return key

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.transpose(-1, -2)


class ScaledDot(Dot):
    """q · k / √d (Vaswani et al. 2017, equation 1).

    >>> ScaledDot()(torch.full((1, 1, 1, 4), 3.0), torch.ones(1, 1, 1, 4)).item()
    6.0
    """

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (query * (1 / math.sqrt(query.shape[-1]))) @ key.transpose(-1, -2)


class Additive(nn.Module):
    """v · tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2); U k is prepared once per key."""

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, width, bias=False)
        self.key = nn.Linear(key_width, width)
        self.weigh = nn.Linear(width, 1, bias=False)

    def prepare(self, key: Tensor) -> Tensor:
        return self.key(key)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        sums = self.query(query).unsqueeze(-2) + key.unsqueeze(-3)  # [B, H, Q, K, width]
        return self.weigh(torch.tanh(sums)).squeeze(-1)


class Bilinear(nn.Module):
    """q · W k (Luong et al. 2015, "general"); W k is prepared once per key."""

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        self.key = nn.Linear(key_width, query_width, bias=False)

    def prepare(self, key: Tensor) -> Tensor:
        return self.key(key)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.transpose(-1, -2)


# Scores [B, H, Q, K] and where one may look (None: everywhere) become weights; a row that may look nowhere is all zero.
Normalize = Callable[[Tensor, Tensor | None], Tensor]


def softmax(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return weights that are positive and sum to one over the allowed places.

    >>> softmax(torch.zeros(1, 1, 1, 2), torch.tensor([True, False])).tolist()
    [[[[1.0, 0.0]]]]
    """
    if allowed is None:
        return torch.softmax(scores, dim=-1)
    least = torch.finfo(scores.dtype).min
    weights = torch.softmax(scores.masked_fill(~allowed, least), dim=-1)
    return weights.masked_fill(~allowed, 0)


def raw(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the scores as they are, zero where one may not look (the linear start of memory networks)."""
    return scores if allowed is None else scores.masked_fill(~allowed, 0)


def hard(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return weight one at the best place; gradients flow as if through softmax (straight-through).

    >>> hard(torch.tensor([[[[0.5, 2.0, 1.0]]]])).tolist()
    [[[[0.0, 1.0, 0.0]]]]
    """
    soft = softmax(scores, allowed)
    return _one_place(soft, soft, allowed)


def sampled(noise: Noise, site: str) -> Normalize:
    """Return a normaliser that draws one place with softmax's chances (Gumbel's trick), straight-through."""

    def normalize(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        uniform = noise.uniform(tuple(scores.shape), site).clamp_(1e-20, 1 - 1e-7).to(scores)
        soft = softmax(scores, allowed)
        return _one_place(soft, softmax(scores - torch.log(-torch.log(uniform)), allowed), allowed)

    return normalize


def _one_place(soft: Tensor, ranked: Tensor, allowed: Tensor | None) -> Tensor:
    """Return one-hot weights at the highest rank, with the gradient of `soft`."""
    chosen = torch.zeros_like(soft).scatter_(-1, ranked.argmax(-1, keepdim=True), 1)
    if allowed is not None:
        chosen = chosen.masked_fill(~allowed, 0)
    return chosen + (soft - soft.detach())  # the bracket is exactly zero: only its gradient counts
