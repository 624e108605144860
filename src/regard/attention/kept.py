"""What a trace keeps of one look: weights, or queries and keys that weights are computed from when they are asked for.

All arrays are NumPy's, most in half precision. Rows come out as float32, one head at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Half = NDArray[np.floating[Any]]
Weights = NDArray[np.float32]
Numbers = NDArray[np.int64]
STEPS = 32_000  # of 16 bits, to either side of zero


@dataclass(frozen=True)
class KeptWeights:
    """The weights themselves."""

    values: Half  # [B, H, Q, K]

    @property
    def shape(self) -> tuple[int, ...]:
        """B, H, Q, K."""
        return self.values.shape

    def rows(self, row: int, head: int, rows: Numbers) -> Weights:
        """Return the weights of some queries of one head, [R, K]; heads count those that were kept."""
        return np.asarray(self.values[row, head, rows], dtype=np.float32)


@dataclass(frozen=True)
class Fixed:
    """Numbers in 16 bits: as whole steps, of a size of its own for each head and entry.

    Half precision would spend its bits on small numbers; what scores hang on are the large ones.

    >>> Fixed.of(np.array([[[[1.0, -0.5]]]], np.float32)).at(0, 0).round(4).tolist()
    [[1.0, -0.5]]
    """

    steps: NDArray[np.int16]  # [B, H, T, d]
    size: Weights  # [B, H, 1, d]

    @classmethod
    def of(cls, values: Weights) -> Fixed:
        """Return numbers [B, H, T, d] in 16 bits."""
        size = np.abs(values).max(axis=2, keepdims=True, initial=0.0) / STEPS
        return cls(np.rint(values / np.maximum(size, 1e-30)).astype(np.int16), size.astype(np.float32))

    def at(self, row: int, head: int, places: Numbers | slice = slice(None)) -> Weights:
        """Return the numbers of some places of one head, [T, d]."""
        return np.asarray(self.steps[row, head, places] * self.size[row, head], dtype=np.float32)


@dataclass(frozen=True)
class KeptQueries:
    """Queries and keys of scaled dots: much smaller than weights where rows are long.

    The mean of all keys is taken off each of them, which no weight notices, so that 16 bits go further.

    >>> one = Fixed.of(np.ones((1, 1, 2, 4), np.float32))
    >>> KeptQueries(one, one, None).rows(0, 0, np.array([1])).tolist()
    [[0.5, 0.5]]
    """

    query: Fixed  # [B, H, Q, d], scaled
    key: Fixed  # [B, H, K, d]
    added: Half | None  # [B|1, Q|1, K], to the scores: -∞ where one may not look

    @property
    def shape(self) -> tuple[int, ...]:
        """B, H, Q, K."""
        return (*self.query.steps.shape[:3], self.key.steps.shape[2])

    def rows(self, row: int, head: int, rows: Numbers) -> Weights:
        """Return the weights of some queries of one head, [R, K]; heads count those that were kept."""
        scores = self.query.at(row, head, rows) @ self.key.at(row, head).T
        if self.added is not None:
            own = self.added[row if len(self.added) > 1 else 0]
            scores += own[rows if len(own) > 1 else [0] * len(rows)]
        most = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        made = np.exp(scores - np.where(np.isfinite(most), most, 0.0))  # a row that sees nothing becomes all zero
        return np.asarray(made / np.maximum(made.sum(axis=-1, keepdims=True), 1e-30), dtype=np.float32)


@dataclass(frozen=True)
class KeptEntropy:
    """How spread the weights were, in bits."""

    values: Half  # [B, H, Q]


@dataclass(frozen=True)
class KeptInside:
    """The numbers that a head's weights and its output are made of, in full precision."""

    query: Weights  # [B, H, Q, d]
    key: Weights  # [B, H, K, d]
    value: Weights  # [B, H, K, v]
    scores: Weights  # [B, H, Q, K], -∞ where one may not look


Kept = KeptWeights | KeptQueries | KeptEntropy | KeptInside
