"""What a trace stores of attention in the engine, computed in NumPy from the kernel's queries, keys and values.

Everything is computed as in torch (`attention.capture`), with the same names, masks and shapes: for the selected sites,
heads and queries only, in chunks of queries; rows of a batch are padded with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.attention.alibi import alibi_slopes
from regard.attention.trace import (
    QUERIES_PER_CHUNK,
    Captured,
    CapturedEntropy,
    CapturedQKV,
    CapturedQueriesKeys,
    CapturedWeights,
    Float32Array,
    FloatArray,
    Indices,
    Int16Array,
    Trace,
    active_trace,
)
from regard.engine.sites import EngineSite


@dataclass(frozen=True)
class RowHeads:
    """Queries, keys and values of one row of a batch, without padding."""

    query: Float32Array  # [Q, H, d]
    key: Float32Array  # [K, kv heads, d]
    value: Float32Array | None = None  # [K, kv heads, v]
    first_position: int = 0  # of the queries, among the keys


class RowMask:
    """Keys that the queries of each row may attend to: causal, within a window, before the padding.

    >>> mask = RowMask([(2, 2, 0), (1, 1, 0)])
    >>> str(mask), mask.allowed(1, np.array([0, 1]))
    ('padding()', array([[ True, False],
           [ True, False]]))
    """

    def __init__(self, rows: Sequence[tuple[int, int, int]], *, window: int = 0, is_causal: bool = False) -> None:
        """`rows`: numbers of queries and keys, and the first query's position, of each row."""
        self.key_counts = [num_keys for _, num_keys, _ in rows]
        self.first_positions = [first_position for _, _, first_position in rows]
        self.num_queries = max(num_queries for num_queries, _, _ in rows)
        self.num_keys = max(self.key_counts)
        self.is_causal = is_causal
        self.window = window if self.num_keys > window + 1 else 0
        self.has_padding = min(self.key_counts) < self.num_keys

    @property
    def is_full(self) -> bool:
        """Whether every query may attend to every key."""
        if self.has_padding or self.window:
            return False
        return not self.is_causal or min(self.first_positions) >= self.num_keys - 1

    def allowed(self, row: int, queries: Indices) -> NDArray[np.bool_]:
        """Keys that some queries of a row may attend to, [queries, K]."""
        keys = np.arange(self.num_keys)
        positions = (queries + self.first_positions[row])[:, None]
        allowed = np.broadcast_to(keys < self.key_counts[row], (len(queries), self.num_keys))
        if self.is_causal:
            allowed = allowed & (keys <= positions)
        if self.window:
            allowed = allowed & (np.abs(keys - positions) <= self.window)
        return allowed

    def additive(self, queries: Indices) -> FloatArray:
        """0 at allowed keys and -∞ at the others, in half precision, [B, Q, K]; [B, 1, K] if all queries are alike."""
        if not self.is_causal and not self.window:
            queries = queries[:1]
        allowed = np.stack([self.allowed(row, queries) for row in range(len(self.key_counts))])
        return np.where(allowed, np.float16(0), np.float16(-np.inf))

    def __str__(self) -> str:
        if self.is_full:
            return ""
        window = [f"window({self.window})"] if self.window else []
        if self.is_causal:
            return " & ".join(["causal()", *window, *(["padding()"] if self.has_padding else [])])
        return " & ".join(["padding()", *window])


@dataclass(frozen=True)
class SiteCall:
    """One call of a site for the rows of a batch, restricted to some heads and queries."""

    site: EngineSite
    rows: Sequence[RowHeads]
    mask: RowMask
    heads: list[int]
    queries: Indices  # may lie in the padding

    @property
    def kv_heads(self) -> list[int]:
        """Head of the keys and values of each selected head."""
        block = self.site.block
        return [head * block.kv_heads // block.num_heads for head in self.heads]

    @property
    def has_bias(self) -> bool:
        """Whether scores depend on distances."""
        return self.site.settings.positions in ("alibi", "relative")

    def padded_query(self, row: int, queries: Indices) -> Float32Array:
        """Queries of a row, zeros in the padding, [H, queries, d]."""
        values = self.rows[row].query
        query = np.zeros((len(self.heads), len(queries), values.shape[2]), np.float32)
        is_within = queries < len(values)
        query[:, is_within] = values[queries[is_within]][:, self.heads].transpose(1, 0, 2)
        return query

    def keys(self, row: int) -> Float32Array:
        """Keys of a row for each head, [H, K, d]."""
        return self.rows[row].key[:, self.kv_heads].transpose(1, 0, 2)

    def values(self, row: int) -> Float32Array:
        """Values of a row for each head, [H, K, v]."""
        value = self.rows[row].value
        assert value is not None
        return value[:, self.kv_heads].transpose(1, 0, 2)

    def scores(self, row: int, queries: Indices) -> Float32Array:
        """Scores of some queries of a row, -∞ at masked keys, [H, queries, K]."""
        key = self.keys(row)
        num_keys = key.shape[1]
        products = self.padded_query(row, queries) @ key.transpose(0, 2, 1)
        products *= np.float32(self.site.scale)
        if self.has_bias:
            positions = queries + self.rows[row].first_position
            products += distance_bias(self.site, np.arange(num_keys) - positions[:, None])[self.heads]
        scores = products
        if num_keys < self.mask.num_keys:
            scores = np.full((len(self.heads), len(queries), self.mask.num_keys), -np.inf, np.float32)
            scores[:, :, :num_keys] = products
        if not self.mask.is_full:
            scores[:, ~self.mask.allowed(row, queries)] = -np.inf
        return scores

    def weights(self, row: int, queries: Indices) -> Float32Array:
        """Attention weights of some queries of a row, [H, queries, K]; zeros where all keys are masked."""
        weights = self.scores(row, queries)
        maximum = weights.max(axis=-1, keepdims=True, initial=-np.inf)
        weights -= np.where(np.isfinite(maximum), maximum, np.float32(0))
        np.exp(weights, out=weights)
        weights /= np.maximum(weights.sum(axis=-1, keepdims=True), np.float32(1e-30))
        return weights

    def num_visible(self) -> Indices:
        """Number of keys that the mask allows each query, [B, H, Q]."""
        counts = np.stack([self.mask.allowed(row, self.queries).sum(axis=1) for row in range(len(self.rows))])
        return np.broadcast_to(counts[:, None], (len(self.rows), len(self.heads), len(self.queries)))

    def query_chunks(self) -> list[tuple[slice, Indices]]:
        """Queries whose weights exist at the same time: where they are stored, and their indices."""
        starts = range(0, len(self.queries), QUERIES_PER_CHUNK)
        slices = [slice(start, start + QUERIES_PER_CHUNK) for start in starts]
        return [(chunk, self.queries[chunk]) for chunk in slices]


def store_call(site: EngineSite, rows: Sequence[RowHeads], mask: RowMask) -> None:
    """Give every active trace that selects the site what it stores of a call."""
    trace = active_trace(site.name)
    if trace is None:
        return
    for active in trace.active_for(site.name):
        heads = active.selected_heads(site.name, site.num_heads)
        queries = active.selected_queries(site.name, mask.num_queries)
        if queries is not None and not len(queries):
            continue
        call = SiteCall(
            site,
            rows,
            mask=mask,
            heads=[*range(site.num_heads)] if heads is None else heads,
            queries=np.arange(mask.num_queries) if queries is None else queries,
        )
        active.add(site.name, str(mask), _capture_call(active, call), heads, call.num_visible())


def _capture_call(trace: Trace, call: SiteCall) -> Captured:
    """Compute what the trace stores of a call."""
    if trace.store == "qkv":
        return _capture_qkv(call)
    if trace.store == "queries" and _is_smaller_as_queries(call):
        return _capture_queries_keys(trace, call)
    dtype = np.float32 if trace.full_precision else np.float16
    shape = (len(call.rows), len(call.heads), len(call.queries))
    if trace.store == "entropy":
        entropy = np.empty(shape, dtype)
        for row in range(len(call.rows)):
            for chunk, queries in call.query_chunks():
                weights = call.weights(row, queries)
                entropy[row, :, chunk] = -(weights * np.log2(np.maximum(weights, np.float32(1e-12)))).sum(-1)
        return CapturedEntropy(entropy)
    stored = np.empty((*shape, call.mask.num_keys), dtype)
    for row in range(len(call.rows)):
        for chunk, queries in call.query_chunks():
            stored[row, :, chunk] = call.weights(row, queries)
    return CapturedWeights(stored)


def _is_smaller_as_queries(call: SiteCall) -> bool:
    """Whether queries and keys take less memory than weights and determine them."""
    num_queries = len(call.queries)
    num_keys = call.mask.num_keys
    return not call.has_bias and (num_queries + num_keys) * call.site.block.key_dim < num_queries * num_keys


def _capture_queries_keys(trace: Trace, call: SiteCall) -> CapturedQueriesKeys:
    rows = range(len(call.rows))
    query = np.stack([call.padded_query(row, call.queries) for row in rows]) * np.float32(call.site.scale)
    key = _pad_keys([keys - keys.mean(axis=1, keepdims=True) for keys in map(call.keys, rows)], call.mask.num_keys)
    bias = None
    if not call.mask.is_full:
        mask = call.mask
        if len(call.queries) == mask.num_queries:
            bias = trace.cached(mask, lambda: mask.additive(call.queries))
        else:
            bias = mask.additive(call.queries)
    return CapturedQueriesKeys(Int16Array.from_float(query), Int16Array.from_float(key), bias)


def _capture_qkv(call: SiteCall) -> CapturedQKV:
    rows = range(len(call.rows))
    scores = np.empty((len(rows), len(call.heads), len(call.queries), call.mask.num_keys), np.float32)
    weights = np.empty_like(scores)
    for row in rows:
        for chunk, queries in call.query_chunks():
            scores[row, :, chunk] = call.scores(row, queries)
            weights[row, :, chunk] = call.weights(row, queries)
    return CapturedQKV(
        query=np.stack([call.padded_query(row, call.queries) for row in rows]),
        key=_pad_keys([call.keys(row) for row in rows], call.mask.num_keys),
        value=_pad_keys([call.values(row) for row in rows], call.mask.num_keys),
        scores=scores,
        weights=weights,
        scale=call.site.scale,
        has_bias=call.has_bias,
    )


def _pad_keys(rows: Sequence[Float32Array], num_keys: int) -> Float32Array:
    """Rows [H, keys, d] padded with zeros, [B, H, K, d]."""
    heads, _, size = rows[0].shape
    padded = np.zeros((len(rows), heads, num_keys, size), np.float32)
    for row, values in enumerate(rows):
        padded[row, :, : values.shape[1]] = values
    return padded


# ---- scores that depend on distances


def distance_bias(site: EngineSite, offsets: NDArray[np.int64]) -> Float32Array:
    """Bias of each head for offsets of keys from queries [Q, K], [H, Q, K]: of ALiBi, or a relative one (T5)."""
    if site.settings.positions == "alibi":
        slopes = np.array(alibi_slopes(site.num_heads), np.float32)
        return -slopes[:, None, None] * np.abs(offsets).astype(np.float32)
    assert site.bias_table is not None
    buckets = relative_buckets(
        offsets,
        is_causal=site.is_causal,
        num_buckets=site.settings.num_buckets,
        max_distance=site.settings.max_distance,
    )
    return np.ascontiguousarray(site.bias_table[buckets].transpose(2, 0, 1))


def relative_buckets(
    offsets: NDArray[np.int64], *, is_causal: bool, num_buckets: int, max_distance: int
) -> NDArray[np.int64]:
    """T5's bucket of each offset of a key from its query: exact for small distances, logarithmic beyond.

    >>> relative_buckets(np.array([-200, -9, -2, 0, 2, 9]), is_causal=False, num_buckets=32, max_distance=128).tolist()
    [15, 8, 2, 0, 18, 24]
    """
    first_bucket = np.zeros_like(offsets)
    distances = np.maximum(-offsets, 0)
    if not is_causal:
        num_buckets //= 2
        first_bucket = np.where(offsets > 0, num_buckets, 0)
        distances = np.abs(offsets)
    num_exact = num_buckets // 2
    ratio = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(num_exact))
    log_ratio = ratio / np.float32(math.log(max_distance / num_exact))
    log_buckets = num_exact + (log_ratio * np.float32(num_buckets - num_exact)).astype(np.int64)
    return first_bucket + np.where(distances < num_exact, distances, np.minimum(log_buckets, num_buckets - 1))
