"""Attention in a record: weights of every layer and head, stored or computed on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError
from regard.view.codec import Weights

MAX_WEIGHTS = 64 * 2**20  # that may be computed at once


@runtime_checkable
class LazyWeights(Protocol):
    """Computes weights on request, some rows of one head at a time."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Layers, heads, rows, columns."""

    def rows(self, layer_index: int, head: int, rows: NDArray[np.int64]) -> Weights:
        """Rows [R, K] of a head; `layer_index` is the index among the stored layers."""


@dataclass(frozen=True)
class AttentionRecord:
    """Attention weights of one kind of site in every layer and head: queries in rows, keys in columns.

    >>> weights = np.full((1, 2, 3, 4), 0.25, np.float16)
    >>> attention = AttentionRecord("decoder.cross", "target", "source", weights, layers=(5,))
    >>> attention.shape, attention.num_heads, attention.matrix(5, 1).sum(axis=-1).tolist()
    ((1, 2, 3, 4), 2, [1.0, 1.0, 1.0])
    """

    name: str  # the site without its layer: encoder.self, decoder.self, decoder.cross, decoder.attention, hop
    rows: str  # name of the text that the queries belong to: source, target, question
    columns: str  # name of the text that the keys belong to
    stored: NDArray[np.floating[Any]] | LazyWeights  # [layers, H, Q, K], or computed on request
    layers: tuple[int, ...]  # their indices in the model
    is_generated: bool = False  # rows are labelled with the token that they generated
    is_causal: bool = False  # queries attend to earlier positions only
    has_residual: bool = True  # layers have residual connections
    num_visible: NDArray[np.int64] | None = None  # [layers or 1, Q], keys that the mask allows; None: by `is_causal`
    importance: Mapping[str, Any] | None = None  # {"metric": …, "values": [layers][heads]}

    def __post_init__(self) -> None:
        if len(self.shape) != 4 or self.shape[0] != len(self.layers):
            raise UsageError(f"{self.name}: weights {self.shape} must be [{len(self.layers)} layers, H, Q, K]")
        num_layers, _, num_queries, _ = self.shape
        visible = self.num_visible
        if visible is not None and visible.shape not in ((1, num_queries), (num_layers, num_queries)):
            raise UsageError(f"{self.name}: visible keys {visible.shape} must be [layers or 1, {num_queries}]")
        if isinstance(self.stored, np.ndarray) and not (np.isfinite(self.stored) & (self.stored >= 0)).all():
            raise UsageError(f"{self.name}: weights must be finite and non-negative")

    @property
    def shape(self) -> tuple[int, ...]:
        """Layers, heads, rows, columns."""
        return self.stored.shape

    @property
    def num_heads(self) -> int:
        """Number of heads per layer."""
        return self.shape[1]

    @property
    def is_self(self) -> bool:
        """Whether this is self-attention."""
        return self.rows == self.columns

    @property
    def has_weights(self) -> bool:
        """Whether weights are stored; otherwise each matrix is computed on request."""
        return isinstance(self.stored, np.ndarray)

    @cached_property
    def weights(self) -> Weights:
        """All weights [layers, H, Q, K]; refused for texts that are too long."""
        if isinstance(self.stored, np.ndarray):
            return np.asarray(self.stored, dtype=np.float32)
        if np.prod(self.shape, dtype=np.int64) > MAX_WEIGHTS:
            raise UsageError(
                f"{self.name}: {self.shape} weights are too many to compute at once: use matrix(layer, head)"
            )
        return np.stack([[self.matrix(layer, head) for head in range(self.num_heads)] for layer in self.layers])

    def visible_keys(self, layer: int) -> NDArray[np.int64]:
        """Number of keys that the mask allows each query of a layer, [Q]."""
        _, _, num_queries, num_keys = self.shape
        if self.num_visible is not None:
            visible: NDArray[np.int64] = self.num_visible[self.layers.index(layer) if len(self.num_visible) > 1 else 0]
            return visible
        if self.is_causal:
            return np.arange(1, num_queries + 1).clip(max=num_keys)
        return np.full(num_queries, num_keys)

    def matrix(self, layer: int, head: int) -> Weights:
        """Weights [Q, K] of one head, by the indices of layer and head in the model."""
        return self.query_rows(layer, head, np.arange(self.shape[2]))

    def query_rows(self, layer: int, head: int, indices: NDArray[np.int64]) -> Weights:
        """Selected rows [R, K] of one head's weights."""
        layer_index = self._layer_index(layer, head)
        if isinstance(self.stored, np.ndarray):
            return np.asarray(self.stored[layer_index, head, indices], dtype=np.float32)
        return self.stored.rows(layer_index, head, indices)

    def _layer_index(self, layer: int, head: int) -> int:
        if layer not in self.layers:
            near = min(self.layers, key=lambda known: abs(known - layer))
            available = _format_indices(self.layers)
            raise UsageError(f"{self.name} has no layer {layer}: it has {available}; the nearest is {near}")
        if not 0 <= head < self.num_heads:
            near = min(max(head, 0), self.num_heads - 1)
            raise UsageError(
                f"{self.name} has no head {head}: they are 0 to {self.num_heads - 1}; the nearest is {near}"
            )
        return self.layers.index(layer)


def _format_indices(indices: tuple[int, ...]) -> str:
    """List indices, a range by its ends.

    >>> _format_indices((0, 1, 2, 3)), _format_indices((2, 5))
    ('0 to 3', '2, 5')
    """
    if len(indices) > 2 and indices == tuple(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]} to {indices[-1]}"
    return ", ".join(map(str, indices))
