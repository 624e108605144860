"""Packed token ids and possible next tokens, as NumPy arrays that text and tensor code share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Tokens:
    """Sequences of token ids laid end to end, without padding.

    >>> tokens = Tokens.from_rows([[5, 6, 7], [8]])
    >>> len(tokens), tokens.lengths.tolist(), tokens.row(1).tolist()
    (2, [3, 1], [8])
    """

    ids: Ids  # [tokens], all sequences end to end
    offsets: Ids  # [rows + 1]; row r is ids[offsets[r]:offsets[r + 1]]
    token_types: Ids | None = None  # [tokens]; first (0) or second (1) text of a pair

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int] | Ids]) -> Tokens:
        """Pack sequences end to end."""
        offsets = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        ids = np.concatenate([np.asarray(row, dtype=np.int32) for row in rows]) if rows else np.zeros(0, np.int32)
        return cls(ids.astype(np.int32, copy=False), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Ids]:
        return (self.row(index) for index in range(len(self)))

    @property
    def lengths(self) -> Ids:
        """Length of each sequence, [rows]."""
        return np.diff(self.offsets)

    def row(self, index: int) -> Ids:
        """Token ids of one sequence."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True)
class PairBatch:
    """A batch of sentence pairs: sources with their eos, targets without bos and eos."""

    source: Tokens
    target: Tokens

    @property
    def num_predictions(self) -> int:
        """Number of target tokens to predict, eos included."""
        return len(self.target.ids) + len(self.target)

    @property
    def description(self) -> str:
        """Describe the size of the batch."""
        return f"{len(self.source)} rows of up to {self.source.lengths.max()} and {self.target.lengths.max()} tokens"


@dataclass(frozen=True)
class Candidates:
    """Possible next tokens of each hypothesis, best first; the whole vocabulary in its own order when k is 0.

    >>> logprobs = np.log(np.array([[0.7, 0.2]], np.float32))
    >>> candidates = Candidates(np.array([[4, 1]]), logprobs, eos_logprobs=logprobs[:, 1])
    >>> candidates.ids.shape
    (1, 2)
    """

    ids: Ids  # [rows, k]
    logprobs: NDArray[np.float32]  # [rows, k]
    eos_logprobs: NDArray[np.float32] | None = None  # [rows]; None with the whole vocabulary, which contains eos
