"""What is compared, and how scores become weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.attention.dropout import Noise

MAX_CHUNK_ELEMENTS = 1 << 18  # sums of queries and keys that exist at a time
MIN_PROBABILITY = 1e-20  # of a place that was drawn


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

    def __init__(self, query_width: int, key_width: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, width, bias=False)
        self.key = nn.Linear(key_width, width, bias=bias)
        self.weigh = nn.Linear(width, 1, bias=False)

    def prepare(self, key: Tensor) -> Tensor:
        return self.key(key)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return additive_scores(self.query(query.to(self.query.weight.dtype)), key, self.weigh.weight[0])


class Concat(Additive):
    """v · tanh(W [q; k]) (Luong et al. 2015, "concat"); the half of W that meets the key is prepared once per key."""

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__(query_width, key_width, width, bias=False)


class _TanhSums(torch.autograd.Function):
    """v · tanh(q + k) for every query [B, H, Q, w] and key [B, H, K, w], with v [w].

    Processors compute the logistic function several times faster than the hyperbolic tangent, which is 2 σ(2x) − 1.
    The sums of all pairs never exist at once: they are made in blocks that a cache holds, and again for the gradient.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, weigh: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, weigh)
        scores = query.new_empty(*query.shape[:3], key.shape[2])
        for part, squashed in _TanhSums.blocks(query, key):
            scores.flatten(0, 1)[part] = squashed @ weigh
        return scores.mul_(2).sub_(weigh.sum())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, weigh = ctx.saved_tensors
        gradient = gradient.flatten(0, 1).unsqueeze(-1)  # [BH, Q, K, 1]
        to_query, to_key, to_weigh = torch.empty_like(query), torch.empty_like(key), torch.zeros_like(weigh)
        for part, squashed in _TanhSums.blocks(query, key):
            told = gradient[part]
            to_weigh += (squashed.flatten(0, 2).mT @ told.flatten(0, 2)).squeeze(-1)
            slope = torch.ops.aten.sigmoid_backward.grad_input(told.expand_as(squashed), squashed, grad_input=squashed)
            to_query.flatten(0, 1)[part] = slope.sum(2)
            to_key.flatten(0, 1)[part] = slope.sum(1) if slope.shape[1] > 1 else slope[:, 0]
        steep = 4 * weigh
        return to_query.mul_(steep), to_key.mul_(steep), to_weigh.mul_(2).sub_(gradient.sum())

    @staticmethod
    def blocks(query: Tensor, key: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield σ(2q + 2k), [rows, Q, K, w], for some rows of the batch at a time."""
        query, key = query.flatten(0, 1) * 2, key.flatten(0, 1)
        rows, pairs = query.shape[0], (query.shape[1], *key.shape[1:])
        size = min(rows, max(1, MAX_CHUNK_ELEMENTS // max(1, math.prod(pairs))))
        room = query.new_empty(size, *pairs)
        for first in range(0, rows, size):
            part = slice(first, first + size)
            made = room[: rows - first]
            yield part, torch.add(query[part, :, None], key[part, None], alpha=2, out=made).sigmoid_()


def additive_scores(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """Return v · tanh(q + k), [B, H, Q, K] in the format of the keys, for projected queries and keys and v [w].

    >>> additive_scores(torch.full((1, 1, 1, 2), 9.0), torch.ones(1, 1, 3, 2), torch.tensor([2.0, 3.0])).tolist()
    [[[[5.0, 5.0, 5.0]]]]
    """
    scores: Tensor = _TanhSums.apply(query.to(key.dtype), key, v.to(key.dtype))
    return scores


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


def unnormalized(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the scores as they are, zero where one may not look (the linear start of memory networks)."""
    return scores if allowed is None else scores.masked_fill(~allowed, 0)


def hard_argmax(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return weight one at the best place; gradients flow as if through softmax (straight-through).

    >>> hard_argmax(torch.tensor([[[[0.5, 2.0, 1.0]]]])).tolist()
    [[[[0.0, 1.0, 0.0]]]]
    """
    soft = softmax(scores, allowed)
    return _one_place(soft, soft, allowed)


def gumbel_argmax(noise: Noise, site: str) -> Normalize:
    """Return a normaliser that draws one place with softmax's chances (Gumbel's trick), straight-through."""

    def normalize(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        soft = softmax(scores, allowed)
        return _one_place(soft, _drawn(scores, allowed, noise, site), allowed)

    return normalize


class ReinforceSample:
    """A normaliser that draws one place with softmax's chances, without a gradient; what REINFORCE needs is in `told`.

    >>> draw = ReinforceSample(Noise(seed=1, step=1), "site")
    >>> draw(torch.zeros(1, 1, 1, 2)).sum().item(), round(draw.log_prob.item(), 4)
    (1.0, -0.6931)
    """

    def __init__(self, noise: Noise, site: str) -> None:
        self.noise, self.site = noise, site
        self.log_prob = torch.empty(0)  # [B, H, Q], the log-chance of each place drawn

    def __call__(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Return weight one at the place drawn."""
        soft = softmax(scores, allowed)
        chosen = _one_place(soft.detach(), _drawn(scores.detach(), allowed, self.noise, self.site), allowed)
        if torch.is_grad_enabled() or not self.log_prob.numel():  # whoever looks on keeps nothing
            self.log_prob = (soft * chosen).sum(-1).clamp_min(MIN_PROBABILITY).log()
        return chosen


def _drawn(scores: Tensor, allowed: Tensor | None, noise: Noise, site: str) -> Tensor:
    """Return ranks whose best place is a draw with softmax's chances."""
    uniform = noise.uniform(tuple(scores.shape), site).clamp_(1e-20, 1 - 1e-7).to(scores)
    return softmax(scores - torch.log(-torch.log(uniform)), allowed)


def _one_place(soft: Tensor, ranked: Tensor, allowed: Tensor | None) -> Tensor:
    """Return one-hot weights at the highest rank, with the gradient of `soft`."""
    chosen = torch.zeros_like(soft).scatter_(-1, ranked.argmax(-1, keepdim=True), 1)
    if allowed is not None:
        chosen = chosen.masked_fill(~allowed, 0)
    return chosen + (soft - soft.detach())  # the bracket is exactly zero: only its gradient counts
