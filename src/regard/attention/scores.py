"""Attention scores, and the functions that turn scores into weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.attention.dropout import Noise

MAX_CHUNK_ELEMENTS = 1 << 18  # elements of q + k that exist at the same time
MASKED_SCORE = -1e9  # of a masked key in sparsemax: finite, and below every score
MIN_PROBABILITY = 1e-20  # lower bound of a sampled key's probability


class Score(Protocol):
    """Compares queries with keys; `prepare` holds the part that depends on the key alone.

    One that is named in `SCORES` is built from the sizes of queries and keys and the hidden size of the model. A
    multiple of the dot product has a method `dot_product_scale`, too.
    """

    def prepare(self, key: Tensor) -> Tensor:
        """Project the key as `__call__` expects it."""
        ...

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores [B, H, Q, K] of queries and prepared keys."""
        ...


class Dot:
    """q · k (Luong et al. 2015, "dot"; memory networks)."""

    @classmethod
    def build(cls, query_size: int, key_size: int, hidden_size: int) -> Self:
        """Build the score; it has no weights."""
        return cls()

    def prepare(self, key: Tensor) -> Tensor:
        return key

    def dot_product_scale(self, head_size: int) -> float:
        """Factor of the dot product of queries and keys of this size."""
        return 1.0

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.transpose(-1, -2)


@dataclass(frozen=True)
class ScaledDot(Dot):
    """q · k / √d (Vaswani et al. 2017, equation 1).

    Models with another scale multiply their queries by `query_factor` beforehand; a trace divides by it.

    >>> ScaledDot()(torch.full((1, 1, 1, 4), 3.0), torch.ones(1, 1, 1, 4)).item()
    6.0
    >>> ScaledDot(query_factor=2.0).dot_product_scale(4)
    1.0
    """

    query_factor: float = 1.0

    def dot_product_scale(self, head_size: int) -> float:
        """Factor of the dot product of queries and keys of this size, before the queries are multiplied."""
        return self.query_factor / math.sqrt(head_size)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (query * (1 / math.sqrt(query.shape[-1]))) @ key.transpose(-1, -2)


class Additive(nn.Module):
    """v · tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2); U k is computed once per key."""

    def __init__(self, query_size: int, key_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        self.query = nn.Linear(query_size, hidden_size, bias=False)
        self.key = nn.Linear(key_size, hidden_size, bias=bias)
        self.v = nn.Linear(hidden_size, 1, bias=False)

    @classmethod
    def build(cls, query_size: int, key_size: int, hidden_size: int) -> Self:
        """Build the score."""
        return cls(query_size, key_size, hidden_size)

    def prepare(self, key: Tensor) -> Tensor:
        return self.key(key)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return additive_scores(self.query(query.to(self.query.weight.dtype)), key, self.v.weight[0])


class Concat(Additive):
    """v · tanh(W [q; k]) (Luong et al. 2015, "concat"); the product of W and the key is computed once per key."""

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__(query_size, key_size, hidden_size, bias=False)


class _AdditiveScores(torch.autograd.Function):
    """v · tanh(q + k) for every query [B, H, Q, w] and key [B, H, K, w], with v [w].

    tanh x = 2 σ(2x) − 1: processors compute σ several times faster than tanh. The sums of all pairs never exist at
    once: they are computed in chunks that fit into a cache, and again for the gradient.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, v)
        scores = query.new_empty(*query.shape[:3], key.shape[2])
        for chunk, sigmoid in _AdditiveScores.chunks(query, key):
            scores.flatten(0, 1)[chunk] = sigmoid @ v
        return scores.mul_(2).sub_(v.sum())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, v = ctx.saved_tensors
        gradient = gradient.flatten(0, 1).unsqueeze(-1)  # [BH, Q, K, 1]
        query_gradient = torch.empty_like(query)
        key_gradient = torch.empty_like(key)
        v_gradient = torch.zeros_like(v)
        for chunk, sigmoid in _AdditiveScores.chunks(query, key):
            chunk_gradient = gradient[chunk]
            v_gradient += (sigmoid.flatten(0, 2).mT @ chunk_gradient.flatten(0, 2)).squeeze(-1)
            slope = torch.ops.aten.sigmoid_backward.grad_input(
                chunk_gradient.expand_as(sigmoid), sigmoid, grad_input=sigmoid
            )
            query_gradient.flatten(0, 1)[chunk] = slope.sum(2)
            key_gradient.flatten(0, 1)[chunk] = slope.sum(1) if slope.shape[1] > 1 else slope[:, 0]
        scale = 4 * v
        return query_gradient.mul_(scale), key_gradient.mul_(scale), v_gradient.mul_(2).sub_(gradient.sum())

    @staticmethod
    def chunks(query: Tensor, key: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield σ(2q + 2k), [rows, Q, K, w], for chunks of the flattened batch and heads, in one reused buffer."""
        query = query.flatten(0, 1) * 2
        key = key.flatten(0, 1)
        rows = query.shape[0]
        pair_shape = (query.shape[1], *key.shape[1:])
        chunk_rows = min(rows, max(1, MAX_CHUNK_ELEMENTS // max(1, math.prod(pair_shape))))
        buffer = query.new_empty(chunk_rows, *pair_shape)
        for start in range(0, rows, chunk_rows):
            chunk = slice(start, start + chunk_rows)
            sums = torch.add(query[chunk, :, None], key[chunk, None], alpha=2, out=buffer[: rows - start])
            yield chunk, sums.sigmoid_()


def additive_scores(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """v · tanh(q + k) of projected queries and keys and v [w], in the dtype of the keys, [B, H, Q, K].

    >>> additive_scores(torch.full((1, 1, 1, 2), 9.0), torch.ones(1, 1, 3, 2), torch.tensor([2.0, 3.0])).tolist()
    [[[[5.0, 5.0, 5.0]]]]
    """
    scores: Tensor = _AdditiveScores.apply(query.to(key.dtype), key, v.to(key.dtype))
    return scores


class Bilinear(nn.Module):
    """q · W k (Luong et al. 2015, "general"); W k is computed once per key."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(key_size, query_size, bias=False)

    @classmethod
    def build(cls, query_size: int, key_size: int, hidden_size: int) -> Self:
        """Build the score; the hidden size does not matter."""
        return cls(query_size, key_size)

    def prepare(self, key: Tensor) -> Tensor:
        return self.key(key)

    def dot_product_scale(self, head_size: int) -> float:
        """Factor of the dot product of queries and prepared keys."""
        return 1.0

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.transpose(-1, -2)


def dot_product_scale(score: Score, head_size: int) -> float | None:
    """Factor of the dot product of queries and prepared keys in a score; None for a score that is no dot product.

    >>> dot_product_scale(ScaledDot(), 4), dot_product_scale(Dot(), 4), dot_product_scale(Additive(4, 4, 4), 4)
    (0.5, 1.0, None)
    """
    if not hasattr(score, "dot_product_scale"):
        return None
    scale: float | None = score.dot_product_scale(head_size)
    return scale


# Scores [B, H, Q, K] and allowed keys (None: all) → weights; a query without allowed keys gets all zeros.
Normalize = Callable[[Tensor, Tensor | None], Tensor]


def softmax(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Softmax over the allowed keys.

    >>> softmax(torch.zeros(1, 1, 1, 2), torch.tensor([True, False])).tolist()
    [[[[1.0, 0.0]]]]
    """
    if allowed is None:
        return torch.softmax(scores, dim=-1)
    smallest = torch.finfo(scores.dtype).min
    weights = torch.softmax(scores.masked_fill(~allowed, smallest), dim=-1)
    return weights.masked_fill(~allowed, 0)


def sparsemax(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Euclidean projection of the scores onto the simplex (Martins and Astudillo 2016): most weights are zero.

    >>> sparsemax(torch.tensor([[[[1.0, 0.5, -1.0]]]])).tolist()
    [[[[0.75, 0.25, 0.0]]]]
    """
    values = scores.float()
    if allowed is not None:
        values = values.masked_fill(~allowed, MASKED_SCORE)
    shifted = values - values.amax(-1, keepdim=True)
    descending = shifted.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
    cumulative = descending.cumsum(-1)
    support = (1 + ranks * descending > cumulative).sum(-1, keepdim=True)  # [B, H, Q, 1]
    threshold = (cumulative.gather(-1, support - 1) - 1) / support
    weights = (shifted - threshold).clamp_min(0).to(scores.dtype)
    return weights if allowed is None else weights.masked_fill(~allowed, 0)


@dataclass(frozen=True)
class TopK:
    """Softmax over the `k` allowed keys with the highest scores.

    >>> TopK(2)(torch.tensor([[[[0.0, 1.0, 1.0]]]])).tolist()
    [[[[0.0, 0.5, 0.5]]]]
    """

    k: int

    def __call__(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Weights of all keys, zero beyond the best `k`.

        The scores are sorted whole: the number of keys of a graph that is being exported has no value to compare.
        """
        if allowed is not None:
            scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        order = scores.detach().sort(dim=-1, descending=True).indices
        is_best = torch.arange(scores.shape[-1], device=scores.device) < self.k  # by rank
        among_best = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, is_best.expand_as(scores))
        return softmax(scores, among_best if allowed is None else among_best & allowed)


def uniform(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Equal weights of all allowed keys, whatever their scores.

    >>> uniform(torch.tensor([[[[3.0, 1.0]]]])).tolist()
    [[[[0.5, 0.5]]]]
    """
    return softmax(torch.zeros_like(scores), allowed)


@dataclass(frozen=True)
class Tempered:
    """Another normaliser of scores that are divided by a temperature.

    >>> Tempered(sparsemax, 0.5)(torch.tensor([[[[0.0, 0.25]]]])).tolist()
    [[[[0.25, 0.75]]]]
    """

    normalize: Normalize
    temperature: float

    def __call__(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Weights of all keys."""
        return self.normalize(scores / self.temperature, allowed)


def build_normalizer(kind: str, top_k: int = 1, temperature: float = 1.0) -> Normalize:
    """The normaliser of this name: one of the choices of `attention_normalization`, with a temperature.

    >>> build_normalizer("softmax") is softmax
    True
    """
    normalizers: dict[str, Normalize] = {
        "softmax": softmax,
        "sparsemax": sparsemax,
        "top-k": TopK(top_k),
        "uniform": uniform,
    }
    plain = normalizers[kind]
    return plain if temperature == 1 else Tempered(plain, temperature)


def split_temperature(normalize: Normalize) -> tuple[Normalize, float]:
    """A normaliser of scores that are already divided by the temperature, and that temperature.

    >>> split_temperature(Tempered(softmax, 0.5)) == (softmax, 0.5), split_temperature(softmax) == (softmax, 1.0)
    (True, True)
    """
    if isinstance(normalize, Tempered):
        return normalize.normalize, normalize.temperature
    return normalize, 1.0


def normalization_name(normalize: Normalize) -> str:
    """Name of a normaliser, as views show it.

    >>> [normalization_name(normalize) for normalize in (softmax, TopK(3), Tempered(sparsemax, 0.5), hard_argmax)]
    ['softmax', 'top-3', 'sparsemax', 'hard argmax']
    """
    plain, _ = split_temperature(normalize)
    if isinstance(plain, TopK):
        return f"top-{plain.k}"
    name: str = getattr(plain, "__name__", type(plain).__name__)
    return name.replace("_", " ")


def unnormalized(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Scores as weights, zero at masked keys (linear start of memory networks)."""
    return scores if allowed is None else scores.masked_fill(~allowed, 0)


def hard_argmax(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Weight one at the key with the highest score; the gradient is that of the softmax (straight-through).

    >>> hard_argmax(torch.tensor([[[[0.5, 2.0, 1.0]]]])).tolist()
    [[[[0.0, 1.0, 0.0]]]]
    """
    probabilities = softmax(scores, allowed)
    return _one_hot_argmax(probabilities, probabilities, allowed)


def gumbel_argmax(noise: Noise, site: str) -> Normalize:
    """Build a normaliser that samples one key from the softmax (Gumbel trick), with a straight-through gradient."""

    def sampled_argmax(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        probabilities = softmax(scores, allowed)
        return _one_hot_argmax(probabilities, _add_gumbel_noise(scores, allowed, noise, site), allowed)

    return sampled_argmax


class ReinforceSample:
    """Normaliser that samples one key from the softmax, without a gradient; REINFORCE needs its `log_prob`.

    >>> sample = ReinforceSample(Noise(seed=1, step=1), "site")
    >>> sample(torch.zeros(1, 1, 1, 2)).sum().item(), round(sample.log_prob.item(), 4)
    (1.0, -0.6931)
    """

    def __init__(self, noise: Noise, site: str) -> None:
        self.noise = noise
        self.site = site
        self.log_prob = torch.empty(0)  # [B, H, Q], log-probability of each sampled key

    def __call__(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Weight one at the sampled key."""
        probabilities = softmax(scores, allowed)
        perturbed = _add_gumbel_noise(scores.detach(), allowed, self.noise, self.site)
        one_hot = _one_hot_argmax(probabilities.detach(), perturbed, allowed)
        if torch.is_grad_enabled() or not self.log_prob.numel():  # a trace calls again without gradients
            self.log_prob = (probabilities * one_hot).sum(-1).clamp_min(MIN_PROBABILITY).log()
        return one_hot


def _add_gumbel_noise(scores: Tensor, allowed: Tensor | None, noise: Noise, site: str) -> Tensor:
    """Softmax of scores with Gumbel noise; its argmax is a sample of the softmax of the scores."""
    uniform = noise.uniform(tuple(scores.shape), site).clamp_(1e-20, 1 - 1e-7).to(scores)
    return softmax(scores - torch.log(-torch.log(uniform)), allowed)


def _one_hot_argmax(probabilities: Tensor, ranking: Tensor, allowed: Tensor | None) -> Tensor:
    """One-hot weights at the argmax of `ranking`, with the gradient of `probabilities`."""
    one_hot = torch.zeros_like(probabilities).scatter_(-1, ranking.argmax(-1, keepdim=True), 1)
    if allowed is not None:
        one_hot = one_hot.masked_fill(~allowed, 0)
    return one_hot + (probabilities - probabilities.detach())  # the bracket is exactly zero: it adds the gradient
