"""What words and tensors share: `Tokens`, packed token numbers; pairs of them; `Candidates`, possible next tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Tokens:
    """Rows of token numbers laid end to end, so that no padding ever exists.

    >>> tokens = Tokens.from_rows([[5, 6, 7], [8]])
    >>> len(tokens), tokens.lengths.tolist(), tokens.row(1).tolist()
    (2, [3, 1], [8])
    """

    ids: Ids  # [N], all rows end to end
    offsets: Ids  # [B + 1]; row b is ids[offsets[b]:offsets[b + 1]]
    token_types: Ids | None = None  # [N]; which text of a pair each token belongs to

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int] | Ids]) -> Tokens:
        """Return the rows packed end to end."""
        offsets = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        ids = np.concatenate([np.asarray(row, dtype=np.int32) for row in rows]) if rows else np.zeros(0, np.int32)
        return cls(ids.astype(np.int32, copy=False), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Ids]:
        return (self.row(number) for number in range(len(self)))

    @property
    def lengths(self) -> Ids:
        """The length of each row, [B]."""
        return np.diff(self.offsets)

    def row(self, index: int) -> Ids:
        """Return one row's token numbers."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True)
class PairBatch:
    """A batch of pairs: source rows (with their end) and target rows (without start and end)."""

    source: Tokens
    target: Tokens

    @property
    def num_predictions(self) -> int:
        """Target tokens that are predicted, ends included."""
        return len(self.target.ids) + len(self.target)

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.source)} rows of up to {self.source.lengths.max()} and {self.target.lengths.max()} tokens"


@dataclass(frozen=True)
class Candidates:
    """Possible next tokens of each row, best first; all of the vocabulary in its own order when k was 0."""

    ids: Ids  # [R, k]
    logprobs: NDArray[np.float32]  # [R, k], log-probabilities
    eos_logprobs: NDArray[np.float32] | None = (
        None  # [R], of the end, which may not be among the best; None when all are here
    )
