"""One kind of attention in a record: every layer and head, as weights or as what they are computed from when asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError
from regard.view.codec import Weights

WHOLE = 64 * 2**20  # weights that may be asked for all at once


@runtime_checkable
class LazyWeights(Protocol):
    """What weights are computed from when they are looked at: one head, some of its rows, at a time."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Layers, heads, rows, columns."""

    def rows(self, place: int, head: int, rows: NDArray[np.int64]) -> Weights:
        """Return these rows [R, K] of a head; `place` counts the layers that are kept, from 0."""


@dataclass(frozen=True)
class AttentionRecord:
    """The weights of one kind of attention: every layer and head, rows that looked by columns looked at.

    >>> seen = AttentionRecord("decoder.cross", "target", "source", np.full((1, 2, 3, 4), 0.25, np.float16), (5,))
    >>> seen.shape, seen.heads, seen.matrix(5, 1).sum(axis=-1).tolist()
    ((1, 2, 3, 4), 2, [1.0, 1.0, 1.0])
    """

    name: str  # the site without its layer number: encoder.self, decoder.self, decoder.cross, decoder.attention, hop
    rows: str  # which side the rows are: source, target, question
    columns: str
    kept: NDArray[np.floating[Any]] | LazyWeights  # [layers, H, Q, K], or what it is computed from
    layers: tuple[int, ...]  # their numbers in the model
    produced: bool = False  # rows are named after the token they produced
    causal: bool = False  # rows see only what stands before them
    importance: Mapping[str, Any] | None = None  # {"metric": …, "by": [layers][heads]}

    def __post_init__(self) -> None:
        if len(self.shape) != 4 or self.shape[0] != len(self.layers):
            raise UsageError(f"{self.name}: weights {self.shape} must be [{len(self.layers)} layers, H, Q, K]")
        if isinstance(self.kept, np.ndarray) and not (np.isfinite(self.kept) & (self.kept >= 0)).all():
            raise UsageError(f"{self.name}: weights must be finite and not negative")

    @property
    def shape(self) -> tuple[int, ...]:
        """Layers, heads, rows, columns."""
        return self.kept.shape

    @property
    def heads(self) -> int:
        """Heads of a layer."""
        return self.shape[1]

    @property
    def own(self) -> bool:
        """Whether tokens look at their own text."""
        return self.rows == self.columns

    @property
    def has_weights(self) -> bool:
        """Whether weights were kept; otherwise each matrix is computed when it is asked for."""
        return isinstance(self.kept, np.ndarray)

    @cached_property
    def weights(self) -> Weights:
        """All weights [layers, H, Q, K], of a text that is not too long for it."""
        if isinstance(self.kept, np.ndarray):
            return np.asarray(self.kept, dtype=np.float32)
        if np.prod(self.shape, dtype=np.int64) > WHOLE:
            raise UsageError(f"{self.name}: {self.shape} weights are too many at once: take one matrix(layer, head)")
        return np.stack([[self.matrix(layer, head) for head in range(self.heads)] for layer in self.layers])

    def matrix(self, layer: int, head: int) -> Weights:
        """Return one head's weights [Q, K]; layer and head by their numbers in the model."""
        return self.query_rows(layer, head, np.arange(self.shape[2]))

    def query_rows(self, layer: int, head: int, indices: NDArray[np.int64]) -> Weights:
        """Return some rows [R, K] of one head's weights."""
        place = self._place(layer, head)
        if isinstance(self.kept, np.ndarray):
            return np.asarray(self.kept[place, head, indices], dtype=np.float32)
        return self.kept.rows(place, head, indices)

    def _place(self, layer: int, head: int) -> int:
        if layer not in self.layers:
            near = min(self.layers, key=lambda one: abs(one - layer))
            raise UsageError(f"{self.name} has no layer {layer}: it has {_listed(self.layers)}; the nearest is {near}")
        if not 0 <= head < self.heads:
            near = min(max(head, 0), self.heads - 1)
            raise UsageError(f"{self.name} has no head {head}: they are 0 to {self.heads - 1}; the nearest is {near}")
        return self.layers.index(layer)


def _listed(numbers: tuple[int, ...]) -> str:
    """Say which numbers there are.

    >>> _listed((0, 1, 2, 3)), _listed((2, 5))
    ('0 to 3', '2, 5')
    """
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
