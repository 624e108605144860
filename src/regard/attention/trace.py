"""`trace`: a context that captures attention beside the output, without changing it; and what it stores.

A trace stores attention weights, their entropy, the queries and keys from which weights are computed on access, or
queries, keys, values, scores and weights. Stored arrays are NumPy arrays, most of them in half precision; weights are
returned in float32, one head at a time.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.attention.sites import check_heads, parse_heads, site_layer, unknown_site_message
from regard.errors import UsageError, nearest

STORES = ("weights", "queries", "entropy", "qkv")
QUERIES_PER_CHUNK = 256  # queries whose weights exist at the same time, while a trace captures them
INT16_LEVELS = 32_000  # int16 values on either side of zero
Float32Array = NDArray[np.float32]
FloatArray = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class CapturedWeights:
    """Attention weights."""

    values: FloatArray  # [B, H, Q, K]

    @property
    def shape(self) -> tuple[int, ...]:
        """B, H, Q, K."""
        return self.values.shape

    def query_rows(self, row: int, head: int, queries: Indices) -> Float32Array:
        """Weights of some queries of one captured head, [queries, K]."""
        return np.asarray(self.values[row, head, queries], dtype=np.float32)


@dataclass(frozen=True)
class Int16Array:
    """Numbers quantized to int16, with one scale per head and dimension.

    Half precision would spend its bits on small numbers; the large ones decide the scores.

    >>> Int16Array.from_float(np.array([[[[1.0, -0.5]]]], np.float32)).select(0, 0).round(4).tolist()
    [[1.0, -0.5]]
    """

    levels: NDArray[np.int16]  # [B, H, T, d]
    scale: Float32Array  # [B, H, 1, d]

    @classmethod
    def from_float(cls, values: Float32Array) -> Int16Array:
        """Quantize numbers [B, H, T, d]."""
        scale = np.abs(values).max(axis=2, keepdims=True, initial=0.0) / INT16_LEVELS
        return cls(np.rint(values / np.maximum(scale, 1e-30)).astype(np.int16), scale.astype(np.float32))

    def select(self, row: int, head: int, positions: Indices | slice = slice(None)) -> Float32Array:
        """Dequantize some positions of one head, [positions, d]."""
        return np.asarray(self.levels[row, head, positions] * self.scale[row, head], dtype=np.float32)


@dataclass(frozen=True)
class CapturedQueriesKeys:
    """Queries and keys of scaled dot-product attention: much smaller than weights of long sequences.

    The mean key is subtracted from all keys, which changes no weight, so that 16 bits suffice.

    >>> ones = Int16Array.from_float(np.ones((1, 1, 2, 4), np.float32))
    >>> CapturedQueriesKeys(ones, ones, None).query_rows(0, 0, np.array([1])).tolist()
    [[0.5, 0.5]]
    """

    query: Int16Array  # [B, H, Q, d], scaled by 1 / √d
    key: Int16Array  # [B, H, K, d]
    bias: FloatArray | None  # [B|1, Q|1, K], added to the scores: -∞ at masked keys

    @property
    def shape(self) -> tuple[int, ...]:
        """B, H, Q, K."""
        return (*self.query.levels.shape[:3], self.key.levels.shape[2])

    def query_rows(self, row: int, head: int, queries: Indices) -> Float32Array:
        """Weights of some queries of one captured head, [queries, K]."""
        scores = self.query.select(row, head, queries) @ self.key.select(row, head).T
        if self.bias is not None:
            row_bias = self.bias[row if len(self.bias) > 1 else 0]
            scores += row_bias[queries if len(row_bias) > 1 else [0] * len(queries)]
        maximum = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        # a query whose keys are all masked has the maximum -∞ and gets zeros
        exponentials = np.exp(scores - np.where(np.isfinite(maximum), maximum, 0.0))
        total = exponentials.sum(axis=-1, keepdims=True)
        return np.asarray(exponentials / np.maximum(total, 1e-30), dtype=np.float32)


@dataclass(frozen=True)
class CapturedEntropy:
    """Entropy of the attention weights, in bits."""

    values: FloatArray  # [B, H, Q]


@dataclass(frozen=True)
class CapturedQKV:
    """Queries, keys, values, scores and weights of the heads, in full precision."""

    query: Float32Array  # [B, H, Q, d]
    key: Float32Array  # [B, H, K, d], prepared by the score
    value: Float32Array  # [B, H, K, v]
    scores: Float32Array  # [B, H, Q, K], as they are normalised, -∞ at masked keys
    weights: Float32Array  # [B, H, Q, K]
    scale: float | None  # factor of q · k in the scores, before the temperature; None: they are no dot products
    temperature: float = 1.0
    has_bias: bool = False  # whether a bias is added to the scores
    normalization: str = "softmax"  # name of what turns scores into weights

    def share_keys(self, previous: CapturedQKV) -> CapturedQKV:
        """The same, with the keys and values of the call before where they are equal."""
        if np.array_equal(self.key, previous.key) and np.array_equal(self.value, previous.value):
            return replace(self, key=previous.key, value=previous.value)
        return self

    @classmethod
    def join(cls, calls: Sequence[CapturedQKV]) -> CapturedQKV:
        """Join calls that attend to the same keys along the queries."""
        return replace(
            calls[0],
            query=np.concatenate([call.query for call in calls], axis=2),
            scores=np.concatenate([call.scores for call in calls], axis=2),
            weights=np.concatenate([call.weights for call in calls], axis=2),
        )


Captured = CapturedWeights | CapturedQueriesKeys | CapturedEntropy | CapturedQKV


@dataclass
class SiteTrace:
    """What was captured at one site; successive calls are joined along the query axis."""

    site: str
    mask: str
    head_indices: tuple[int, ...]  # captured heads
    captures: list[Captured] = field(default_factory=list)
    visible_counts: list[Indices | None] = field(default_factory=list)  # of each call, as in `num_visible`

    def append(self, captured: Captured, num_visible: Indices | None) -> None:
        """Append a call; keys and values that it shares with the one before are stored once."""
        previous = self.captures[-1] if self.captures else None
        if isinstance(captured, CapturedQKV) and isinstance(previous, CapturedQKV):
            captured = captured.share_keys(previous)
        self.captures.append(captured)
        self.visible_counts.append(num_visible)

    @property
    def role(self) -> str:
        """`self`, `cross`, …: the last component of the site's name."""
        return self.site.rpartition(".")[2]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Rows of the batch, captured heads, queries of all calls, keys."""
        shapes = [captured.shape for captured in self._weight_captures()]
        if len({shape[0] for shape in shapes}) > 1:
            raise UsageError(
                f"{self.site}: the number of rows changed during the trace: trace one call at a time, or use the "
                "attention of the results"
            )
        batch, heads = shapes[0][:2]
        return batch, heads, sum(shape[2] for shape in shapes), max(shape[3] for shape in shapes)

    @property
    def weights(self) -> Float32Array:
        """All captured weights, [B, H, Q, K]; a call with fewer keys has zeros at the others."""
        batch, heads, _, _ = self.shape
        return np.stack([[self._head_matrix(row, head) for head in range(heads)] for row in range(batch)])

    def matrix(self, head: int, row: int = 0) -> Float32Array:
        """Weights of one head and one row of the batch, [Q, K]."""
        if head not in self.head_indices:
            check_heads(self.site, [head], max(self.head_indices) + 1)
            captured = ", ".join(map(str, self.head_indices))
            raise UsageError(f"{self.site}:{head} was not captured: the trace has heads {captured}")
        return self._head_matrix(row, self.head_indices.index(head))

    def query_rows(self, head: int, indices: Indices, row: int = 0) -> Float32Array:
        """Weights of some queries, [queries, K]; `head` is an index among the captured heads."""
        weights = np.zeros((len(indices), self.shape[3]), dtype=np.float32)
        start = 0
        for captured in self._weight_captures():
            queries, keys = captured.shape[2:]
            is_within = (indices >= start) & (indices < start + queries)
            if is_within.any():
                weights[is_within, :keys] = captured.query_rows(row, head, indices[is_within] - start)
            start += queries
        return weights

    @property
    def has_weights(self) -> bool:
        """Whether weights are stored, not the queries and keys that they are computed from."""
        return all(isinstance(captured, CapturedWeights) for captured in self.captures)

    def _head_matrix(self, row: int, head: int) -> Float32Array:
        return self.query_rows(head, np.arange(self.shape[2]), row)

    @property
    def entropy(self) -> Float32Array:
        """Entropy of the weights of each head and query, in bits, [B, H, Q]."""
        if all(isinstance(captured, CapturedEntropy) for captured in self.captures):
            return np.concatenate([captured.values for captured in self.captures], axis=2).astype(np.float32)  # type: ignore[union-attr]
        weights = self.weights
        return np.asarray(-(weights * np.log2(np.maximum(weights, 1e-12))).sum(axis=-1), dtype=np.float32)

    @property
    def num_visible(self) -> Indices | None:
        """Number of keys that the mask allows each query, [B, H, Q]; None where a call did not state it."""
        counts = [call_counts for call_counts in self.visible_counts if call_counts is not None]
        return np.concatenate(counts, axis=2) if len(counts) == len(self.captures) else None

    @property
    def qkv(self) -> CapturedQKV:
        """Queries, keys, values, scores and weights of all calls, captured with `store="qkv"`."""
        calls = [captured for captured in self.captures if isinstance(captured, CapturedQKV)]
        if len(calls) < len(self.captures):
            raise UsageError(f"{self.site}: queries, keys and values were not captured: trace with store='qkv'")
        if any(call.key is not calls[0].key for call in calls):
            raise UsageError(f"{self.site}: the calls of the trace attend to different keys: trace one call at a time")
        return CapturedQKV.join(calls)

    def _weight_captures(self) -> list[CapturedWeights | CapturedQueriesKeys]:
        """The captures, which must determine weights."""
        captures = [
            captured for captured in self.captures if isinstance(captured, CapturedWeights | CapturedQueriesKeys)
        ]
        if len(captures) != len(self.captures):
            raise UsageError(f"{self.site}: weights were not captured: trace with store='weights' or 'queries'")
        return captures


class Trace:
    """Captured attention by site."""

    def __init__(
        self,
        sites: str = "*",
        *,
        heads: Collection[int] | None = None,
        queries: Collection[int] | None = None,
        store: str = "weights",
        full_precision: bool = False,
        layers: Collection[int] | None = None,
    ) -> None:
        if store not in STORES:
            raise UsageError(f"store must be one of {', '.join(STORES)}, not {store!r}{nearest(store, STORES)}")
        self.store = store
        self.full_precision = full_precision
        self.heads = None if heads is None else sorted(set(heads))
        self.layers = None if layers is None else set(layers)
        self.queries = None if queries is None else np.unique(np.fromiter(queries, np.int64))
        self.patterns = parse_heads(sites)  # site pattern → heads named with it; an empty set: all
        self.site_traces: dict[str, SiteTrace] = {}
        self.visited_sites: dict[str, int] = {}  # every site that ran → number of heads, 0 where unknown
        self.outer: Trace | None = None
        self._num_queries: dict[str, int] = {}  # queries so far, by site
        self._cache: dict[int, tuple[object, FloatArray]] = {}

    def matches(self, site: str) -> bool:
        """Whether the trace selects the site."""
        self.visited_sites.setdefault(site, 0)
        if self.layers is not None and site_layer(site) not in self.layers:
            return False
        return any(fnmatch.fnmatchcase(site, pattern) for pattern in self.patterns)

    def active_for(self, site: str) -> Iterator[Trace]:
        """Yield this trace and the outer ones, as far as they select the site."""
        trace: Trace | None = self
        while trace is not None:
            if trace.matches(site):
                yield trace
            trace = trace.outer

    def selected_heads(self, site: str, num_heads: int) -> list[int] | None:
        """Heads to capture at a site with `num_heads` heads; None: all of them."""
        self.visited_sites[site] = num_heads
        matching = [heads for pattern, heads in self.patterns.items() if fnmatch.fnmatchcase(site, pattern)]
        selected = self.heads if set() in matching else sorted(set[int]().union(*matching))
        if selected is not None:
            check_heads(site, selected, num_heads)
        return selected

    def selected_queries(self, site: str, num_queries: int) -> Indices | None:
        """Which of the next `num_queries` queries of a site to capture; None: all of them."""
        start = self._num_queries.get(site, 0)
        self._num_queries[site] = start + num_queries
        if self.queries is None:
            return None
        return self.queries[(self.queries >= start) & (self.queries < start + num_queries)] - start

    def cached(self, key: object, build: Callable[[], FloatArray]) -> FloatArray:
        """An array that several sites share, built once per key object."""
        if id(key) not in self._cache:
            self._cache[id(key)] = key, build()  # a reference to the key keeps its id unique
        return self._cache[id(key)][1]

    def add(
        self, site: str, mask: str, captured: Captured, heads: list[int] | None, num_visible: Indices | None = None
    ) -> None:
        """Append a capture to its site; `num_visible`: keys that the mask allows each query, [B, H, Q]."""
        head_indices = tuple(range(self.visited_sites[site]) if heads is None else heads)
        self.site_traces.setdefault(site, SiteTrace(site, mask, head_indices)).append(captured, num_visible)

    def check(self) -> None:
        """Reject sites and layers that were named but that no model that ran has."""
        for pattern in self.patterns:
            is_literal = not any(wildcard in pattern for wildcard in "*?[")
            if self.visited_sites and is_literal and pattern not in self.visited_sites:
                raise UsageError(unknown_site_message(pattern, self.visited_sites))
        visited_layers = {site_layer(site) for site in self.visited_sites}
        missing_layers = sorted((self.layers or set()) - visited_layers)
        if visited_layers and missing_layers:
            layer = missing_layers[0]
            nearest_layer = min(visited_layers, key=lambda visited: abs(visited - layer))
            raise UsageError(
                f"there is no layer {layer} (did you mean {nearest_layer}?): "
                f"they are {min(visited_layers)} to {max(visited_layers)}"
            )

    def __getitem__(self, site: str) -> SiteTrace:
        if site not in self.site_traces:
            raise UsageError(unknown_site_message(site, self.site_traces))
        return self.site_traces[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.site_traces)

    def __len__(self) -> int:
        return len(self.site_traces)


_active: ContextVar[Trace | None] = ContextVar("regard_trace", default=None)


def is_tracing() -> bool:
    """Whether a trace is active, whatever it selects."""
    return _active.get() is not None


@contextmanager
def suspend_traces() -> Iterator[None]:
    """Capture nothing while the block runs, whatever traces are open around it.

    >>> with trace(), suspend_traces():
    ...     is_tracing()
    False
    """
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


def active_trace(site: str) -> Trace | None:
    """Return the innermost active trace if it or an outer one selects the site."""
    active = _active.get()
    if active is None or not site:
        return None
    is_selected = next(active.active_for(site), None) is not None
    return active if is_selected else None


@contextmanager
def trace(
    sites: str = "*",
    *,
    heads: Collection[int] | None = None,
    queries: Collection[int] | None = None,
    store: str = "weights",
    full_precision: bool = False,
    layers: Collection[int] | None = None,
) -> Iterator[Trace]:
    """Capture attention at the matching sites (shell patterns, separated by commas) while the block runs.

    `layers`, `heads` and `queries` (indices among all queries of a site) narrow the selection; a pattern may name a
    head, `encoder.3.self:2`. `store` is what is kept: `weights` in half precision (or `full_precision`); `queries` and
    keys wherever these are smaller than weights; `entropy` alone; or queries, keys, values, scores and weights
    (`qkv`). An outer trace remains active.

    >>> import torch
    >>> from regard.attention.attend import attend
    >>> ones = torch.ones(1, 1, 2, 4)
    >>> with trace("hop.*") as captured:
    ...     _ = attend(ones, ones, ones, site="hop.0")
    >>> captured["hop.0"].weights.tolist()
    [[[[0.5, 0.5], [0.5, 0.5]]]]
    """
    active = Trace(sites, heads=heads, queries=queries, store=store, full_precision=full_precision, layers=layers)
    active.outer = _active.get()
    token = _active.set(active)
    try:
        yield active
    finally:
        _active.reset(token)
    active.check()
