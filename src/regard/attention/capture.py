"""Explicit attention weights, and what active traces capture of a call of `attend`.

A capture is computed beside the output, for the selected heads and queries only, in chunks of queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import BoundMask
from regard.attention.scores import (
    Normalize,
    ScaledDot,
    Score,
    dot_product_scale,
    normalization_name,
    softmax,
    split_temperature,
)
from regard.attention.trace import (
    QUERIES_PER_CHUNK,
    Captured,
    CapturedEntropy,
    CapturedQKV,
    CapturedQueriesKeys,
    CapturedWeights,
    FloatArray,
    Indices,
    Int16Array,
    Trace,
)


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of one call of `attend`."""

    query: Tensor  # [B, H, Q, d]
    key: Tensor  # [B, H, K, d]
    value: Tensor  # [B, H, K, v]
    mask: BoundMask | None
    bias: Tensor | None
    score: Score
    normalize: Normalize

    def select_heads(self, heads: list[int]) -> AttentionCall:
        """The call restricted to these heads."""
        bias = self.bias
        if bias is not None and bias.shape[1] > 1:
            bias = bias[:, heads]
        return replace(
            self,
            query=self.query[:, heads],
            key=self.key[:, heads],
            value=self.value[:, heads],
            mask=None if self.mask is None else self.mask.select_heads(heads),
            bias=bias,
        )

    def select_queries(self, rows: slice | Tensor) -> AttentionCall:
        """The call restricted to these queries."""
        mask = self.mask
        if mask is not None and mask.query.shape[1] > 1:
            mask = mask.select_queries(rows)
        bias = None if self.bias is None else self.bias[:, :, rows]
        return replace(self, query=self.query[:, :, rows], mask=mask, bias=bias)

    def weights(self) -> Tensor:
        """Attention weights in float32, [B, H, Q, K]."""
        query = self.query.float()
        key = self.key.float()
        return attention_weights(query, key, self.mask, self.bias, self.score, self.normalize)

    def num_visible(self) -> Indices:
        """Number of keys that the mask allows each query, [B, H, Q]."""
        shape = self.query.shape[:3]
        if self.mask is None:
            return np.broadcast_to(np.int64(self.key.shape[2]), shape)
        counts: Indices = self.mask.dense.sum(-1).expand(shape).cpu().numpy()
        return counts


@torch.no_grad()
def capture(trace: Trace, site: str, call: AttentionCall) -> None:
    """Give every active trace that selects the site what it stores."""
    if call.mask is not None and call.mask.is_full:
        call = replace(call, mask=None)
    mask_text = "" if call.mask is None else str(call.mask)
    for active in trace.active_for(site):
        selected = call
        heads = active.selected_heads(site, call.query.shape[1])
        if heads is not None:
            selected = selected.select_heads(heads)
        queries = active.selected_queries(site, call.query.shape[2])
        if queries is not None:
            if not len(queries):
                continue
            selected = selected.select_queries(torch.from_numpy(queries).to(call.query.device))
        active.add(site, mask_text, _capture_call(active, selected), heads, selected.num_visible())


def _capture_call(trace: Trace, call: AttentionCall) -> Captured:
    """Compute what the trace stores of a call."""
    if trace.store == "qkv":
        return _capture_qkv(call)
    if trace.store == "queries" and _is_smaller_as_queries(call):
        return _capture_queries_keys(trace, call)
    batch, heads, queries, _ = call.query.shape
    dtype = np.float32 if trace.full_precision else np.float16
    if trace.store == "entropy":
        entropy = np.empty((batch, heads, queries), dtype=dtype)
        for chunk in _query_chunks(queries):
            entropy[:, :, chunk] = _entropy(call.select_queries(chunk).weights()).cpu().numpy()
        return CapturedEntropy(entropy)
    weights = np.empty((batch, heads, queries, call.key.shape[2]), dtype=dtype)
    for chunk in _query_chunks(queries):
        weights[:, :, chunk] = call.select_queries(chunk).weights().cpu().numpy()
    return CapturedWeights(weights)


def _query_chunks(queries: int) -> list[slice]:
    return [slice(start, start + QUERIES_PER_CHUNK) for start in range(0, queries, QUERIES_PER_CHUNK)]


def _entropy(weights: Tensor) -> Tensor:
    """Entropy of the attention weights in bits."""
    return -(weights * weights.clamp_min(1e-12).log2()).sum(-1)


def _is_smaller_as_queries(call: AttentionCall) -> bool:
    """Whether queries and keys take less memory than weights and determine them."""
    _, _, queries, head_size = call.query.shape
    keys = call.key.shape[2]
    is_standard = type(call.score) is ScaledDot and call.normalize is softmax and call.bias is None
    if call.mask is not None and call.mask.mask.num_heads > 1:  # the additive mask that is stored has no heads
        return False
    return is_standard and (queries + keys) * head_size < queries * keys


def _capture_queries_keys(trace: Trace, call: AttentionCall) -> CapturedQueriesKeys:
    query = call.query.float() * (1 / math.sqrt(call.query.shape[-1]))
    key = call.key.float()
    key = key - key.mean(dim=2, keepdim=True)
    mask = call.mask
    bias = None if mask is None else trace.cached(mask, lambda: _mask_bias(mask))
    return CapturedQueriesKeys(
        query=Int16Array.from_float(query.cpu().numpy()), key=Int16Array.from_float(key.cpu().numpy()), bias=bias
    )


def _mask_bias(mask: BoundMask) -> FloatArray:
    """Additive mask with -∞ at masked keys, [B|1, Q, K] in half precision."""
    bias = mask.additive(torch.float32).masked_fill(~mask.dense, -torch.inf)[:, 0]
    return bias.to(torch.float16).cpu().numpy().copy()


def _capture_qkv(call: AttentionCall) -> CapturedQKV:
    query = call.query.float()
    key = call.key.float()
    scores = call.score(query, key)
    if call.bias is not None:
        scores = scores + call.bias
    _, temperature = split_temperature(call.normalize)
    scores = scores / temperature
    has_bias = call.bias is not None
    if call.mask is not None:
        additive = call.mask.additive(torch.float32)
        has_bias = has_bias or bool(additive.masked_fill(~call.mask.dense, 0).any())  # BigBird's first block
        scores = (scores + additive).masked_fill(~call.mask.dense, -torch.inf)
    if isinstance(call.score, ScaledDot):
        query = query / call.score.query_factor
    return CapturedQKV(
        query=query.cpu().numpy().copy(),
        key=key.cpu().numpy().copy(),
        value=call.value.float().cpu().numpy().copy(),
        scores=scores.cpu().numpy().copy(),
        weights=call.weights().cpu().numpy().copy(),
        scale=dot_product_scale(call.score, query.shape[-1]),
        temperature=temperature,
        has_bias=has_bias,
        normalization=normalization_name(call.normalize),
    )


def attention_weights(
    query: Tensor,  # [B, H, Q, d]
    key: Tensor,  # [B, H, K, d]
    mask: BoundMask | None,
    bias: Tensor | None,
    score: Score,
    normalize: Normalize,
) -> Tensor:
    """Attention weights in plain operations, [B, H, Q, K]."""
    scores = score(query, key)
    if bias is not None:
        scores = scores + bias
    if normalize is not softmax:
        return normalize(scores, None if mask is None else mask.dense)
    if mask is None:
        return torch.softmax(scores, dim=-1)
    # the smallest finite number instead of -∞: masked keys still get exactly zero, and no row becomes NaN
    weights = torch.softmax(scores + mask.additive(scores.dtype), dim=-1)
    return weights if mask.masked_queries is None else weights.masked_fill(mask.masked_queries, 0)
