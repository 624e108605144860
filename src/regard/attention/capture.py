"""The tap: what an open trace wants is computed beside the output, for the asked heads and rows only, in row blocks.

The weights of attention, explicitly: the plain kernel and the tap share this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import BoundMask
from regard.attention.scores import Normalize, ScaledDot, Score, softmax
from regard.attention.trace import (
    CapturedEntropy,
    CapturedQKV,
    CapturedQueriesKeys,
    CapturedWeights,
    Half,
    Int16Array,
    Kept,
    Trace,
)

QUERIES_PER_CHUNK = 256  # queries whose weights are computed at a time


@dataclass(frozen=True)
class AttentionCall:
    """One call of `attend`, as it was asked for."""

    query: Tensor  # [B, H, Q, d]
    key: Tensor  # [B, H, K, d]
    value: Tensor  # [B, H, K, v]
    mask: BoundMask | None
    bias: Tensor | None
    score: Score
    normalize: Normalize

    def select_heads(self, heads: list[int]) -> AttentionCall:
        """Return what some of the heads do."""
        query, key, value = (part[:, heads] for part in (self.query, self.key, self.value))
        bias = self.bias if self.bias is None or self.bias.shape[1] == 1 else self.bias[:, heads]
        return replace(self, query=query, key=key, value=value, bias=bias)

    def select_queries(self, rows: slice | Tensor) -> AttentionCall:
        """Return what some of the queries do."""
        mask, bias = self.mask, self.bias
        if mask is not None and mask.query.shape[1] > 1:
            mask = mask.select_queries(rows)
        return replace(self, query=self.query[:, :, rows], mask=mask, bias=None if bias is None else bias[:, :, rows])

    def weights(self) -> Tensor:
        """Return the weights [B, H, Q, K], in float32."""
        query, key = self.query.float(), self.key.float()
        return attention_weights(query, key, self.mask, self.bias, self.score, self.normalize)


@torch.no_grad()
def capture(trace: Trace, site: str, call: AttentionCall) -> None:
    """Hand what was asked for to every open trace that wants the site."""
    if call.mask is not None and call.mask.is_full:
        call = replace(call, mask=None)
    for one in trace.active_for(site):
        asked = call
        if (heads := one.selected_heads(site, call.query.shape[1])) is not None:
            asked = asked.select_heads(heads)
        if (rows := one.selected_queries(site, call.query.shape[2])) is not None:
            if not len(rows):
                continue
            asked = asked.select_queries(torch.from_numpy(rows).to(call.query.device))
        one.add(site, "" if call.mask is None else str(call.mask), _kept(one, asked), heads)


def _kept(one: Trace, look: AttentionCall) -> Kept:
    if one.store == "inside":
        return _inside(look)
    if one.store == "queries" and _smaller(look):
        return _queries(one, look)
    batch, heads, queries, keys = (*look.query.shape[:3], look.key.shape[2])
    entropy = one.store == "entropy"
    shape = (batch, heads, queries) if entropy else (batch, heads, queries, keys)
    made = np.empty(shape, dtype=np.float32 if one.full_precision else np.float16)
    for first in range(0, queries, QUERIES_PER_CHUNK):
        rows = slice(first, first + QUERIES_PER_CHUNK)
        weights = look.select_queries(rows).weights()
        made[:, :, rows] = (_entropy(weights) if entropy else weights).cpu().numpy()
    return CapturedEntropy(made) if entropy else CapturedWeights(made)


def _entropy(weights: Tensor) -> Tensor:
    return -(weights * weights.clamp_min(1e-12).log2()).sum(-1)


def _smaller(look: AttentionCall) -> bool:
    """Whether queries and keys are fewer numbers than weights, and weights can be computed from them alone."""
    queries, width, keys = look.query.shape[2], look.query.shape[3], look.key.shape[2]
    plain = type(look.score) is ScaledDot and look.normalize is softmax and look.bias is None
    return plain and (queries + keys) * width < queries * keys


def _queries(one: Trace, look: AttentionCall) -> CapturedQueriesKeys:
    query = look.query.float() * (1 / math.sqrt(look.query.shape[-1]))
    key = look.key.float()
    key = key - key.mean(dim=2, keepdim=True)
    added = None if look.mask is None else one.cached(look.mask, lambda: _added(look.mask))
    return CapturedQueriesKeys(
        Int16Array.from_float(query.cpu().numpy()), Int16Array.from_float(key.cpu().numpy()), added
    )


def _added(mask: BoundMask | None) -> Half:
    assert mask is not None
    return _half(mask.additive(torch.float32).masked_fill(~mask.dense, -torch.inf)[:, 0])


def _inside(look: AttentionCall) -> CapturedQKV:
    query, key = look.query.float(), look.key.float()
    scores = look.score(query, key)
    if look.bias is not None:
        scores = scores + look.bias
    if look.mask is not None:
        scores = (scores + look.mask.additive(torch.float32)).masked_fill(~look.mask.dense, -torch.inf)
    value = look.value.float()
    return CapturedQKV(*(part.cpu().numpy().copy() for part in (query, key, value, scores)))


def _half(values: Tensor) -> Half:
    return values.to(torch.float16).cpu().numpy().copy()


def attention_weights(
    query: Tensor,  # [B, H, Q, d]
    key: Tensor,  # [B, H, K, d]
    mask: BoundMask | None,
    bias: Tensor | None,
    score: Score,
    normalize: Normalize,
) -> Tensor:
    """Return the weights [B, H, Q, K]."""
    scores = score(query, key)
    if bias is not None:
        scores = scores + bias
    if normalize is not softmax:
        return normalize(scores, None if mask is None else mask.dense)
    if mask is None:
        return torch.softmax(scores, dim=-1)
    # the least number, not -∞: a masked place gets exactly zero next to any allowed one, and no row becomes NaN
    weights = torch.softmax(scores + mask.additive(scores.dtype), dim=-1)
    return weights if mask.masked_queries is None else weights.masked_fill(mask.masked_queries, 0)
