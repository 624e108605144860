"""The tap: what an open trace wants is computed beside the output, for the asked heads and rows only, in row blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from regard.attention.kept import Fixed, Half, Kept, KeptEntropy, KeptInside, KeptQueries, KeptWeights
from regard.attention.masks import PlacedMask
from regard.attention.scores import Normalize, ScaledDot, Score, softmax
from regard.attention.trace import Trace
from regard.attention.weights import explicit_weights

BLOCK = 256  # queries whose weights are computed at a time


@dataclass(frozen=True)
class Look:
    """One call of `attend`, as it was asked for."""

    query: Tensor  # [B, H, Q, d]
    key: Tensor  # [B, H, K, d]
    value: Tensor  # [B, H, K, v]
    mask: PlacedMask | None
    bias: Tensor | None
    score: Score
    normalize: Normalize

    def of_heads(self, heads: list[int]) -> Look:
        """Return what some of the heads do."""
        query, key, value = (part[:, heads] for part in (self.query, self.key, self.value))
        bias = self.bias if self.bias is None or self.bias.shape[1] == 1 else self.bias[:, heads]
        return replace(self, query=query, key=key, value=value, bias=bias)

    def of_rows(self, rows: slice | Tensor) -> Look:
        """Return what some of the queries do."""
        mask, bias = self.mask, self.bias
        if mask is not None and mask.query.shape[1] > 1:
            mask = mask.part(rows)
        return replace(self, query=self.query[:, :, rows], mask=mask, bias=None if bias is None else bias[:, :, rows])

    def weights(self) -> Tensor:
        """Return the weights [B, H, Q, K], in float32."""
        query, key = self.query.float(), self.key.float()
        return explicit_weights(query, key, self.mask, self.bias, self.score, self.normalize)


@torch.no_grad()
def show(seen: Trace, site: str, look: Look) -> None:
    """Hand what was asked for to every open trace that wants the site."""
    if look.mask is not None and look.mask.full:
        look = replace(look, mask=None)
    for one in seen.wanting(site):
        asked = look
        if (heads := one.heads_at(site, look.query.shape[1])) is not None:
            asked = asked.of_heads(heads)
        if (rows := one.rows_at(site, look.query.shape[2])) is not None:
            if not len(rows):
                continue
            asked = asked.of_rows(torch.from_numpy(rows).to(look.query.device))
        one.add(site, "" if look.mask is None else str(look.mask), _kept(one, asked), heads)


def _kept(one: Trace, look: Look) -> Kept:
    if one.keep == "inside":
        return _inside(look)
    if one.keep == "queries" and _smaller(look):
        return _queries(one, look)
    batch, heads, queries, keys = (*look.query.shape[:3], look.key.shape[2])
    entropy = one.keep == "entropy"
    shape = (batch, heads, queries) if entropy else (batch, heads, queries, keys)
    made = np.empty(shape, dtype=np.float32 if one.exact else np.float16)
    for first in range(0, queries, BLOCK):
        rows = slice(first, first + BLOCK)
        weights = look.of_rows(rows).weights()
        made[:, :, rows] = (_entropy(weights) if entropy else weights).cpu().numpy()
    return KeptEntropy(made) if entropy else KeptWeights(made)


def _entropy(weights: Tensor) -> Tensor:
    return -(weights * weights.clamp_min(1e-12).log2()).sum(-1)


def _smaller(look: Look) -> bool:
    """Whether queries and keys are fewer numbers than weights, and weights can be computed from them alone."""
    queries, width, keys = look.query.shape[2], look.query.shape[3], look.key.shape[2]
    plain = type(look.score) is ScaledDot and look.normalize is softmax and look.bias is None
    return plain and (queries + keys) * width < queries * keys


def _queries(one: Trace, look: Look) -> KeptQueries:
    query = look.query.float() * (1 / math.sqrt(look.query.shape[-1]))
    key = look.key.float()
    key = key - key.mean(dim=2, keepdim=True)
    added = None if look.mask is None else one.shared(look.mask, lambda: _added(look.mask))
    return KeptQueries(Fixed.of(query.cpu().numpy()), Fixed.of(key.cpu().numpy()), added)


def _added(mask: PlacedMask | None) -> Half:
    assert mask is not None
    return _half(mask.additive(torch.float32).masked_fill(~mask.dense, -torch.inf)[:, 0])


def _inside(look: Look) -> KeptInside:
    query, key = look.query.float(), look.key.float()
    scores = look.score(query, key)
    if look.bias is not None:
        scores = scores + look.bias
    if look.mask is not None:
        scores = (scores + look.mask.additive(torch.float32)).masked_fill(~look.mask.dense, -torch.inf)
    value = look.value.float()
    return KeptInside(*(part.cpu().numpy().copy() for part in (query, key, value, scores)))


def _half(values: Tensor) -> Half:
    return values.to(torch.float16).cpu().numpy().copy()
