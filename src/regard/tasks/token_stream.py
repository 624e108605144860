"""Token streams for language modelling: documents end to end, read in rows of equal length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import epoch_order, epoch_rng
from regard.data.documents import Documents
from regard.packed_tokens import Ids, Tokens
from regard.text.tokenizer import Tokenizer

Indices = NDArray[np.int64]
EVALUATION_ROWS = 64  # rows of a batch in evaluations
OFFSET_PURPOSE = 3  # purpose of the random numbers that shift the rows of an epoch


@dataclass(frozen=True)
class TokenStream:
    """Documents end to end, each followed by a boundary token; the stream is cyclic.

    Rows of equal length can therefore start anywhere without padding. Neighbouring rows share one token, so that an
    epoch predicts every token once in each direction, except a few at its end.
    """

    ids: Ids  # [N]
    length: int  # tokens that a row predicts, in each direction
    digest: str  # of the texts

    @classmethod
    def from_documents(cls, documents: Documents, tokenizer: Tokenizer, length: int) -> TokenStream:
        """Tokenize documents, with a boundary token after each.

        >>> from regard.config.data import TokenizerConfig
        >>> from regard.text.train import train_tokenizer
        >>> tokenizer = train_tokenizer(["a b", "b"] * 9, TokenizerConfig(kind="words"))
        >>> stream = TokenStream.from_documents(Documents.from_texts(["a b", "b"]), tokenizer, 2)
        >>> tokenizer.subwords(stream.ids), [tokenizer.subwords(row) for row in stream.rows(np.array([0, 1, 2]))]
        (['▁a', '▁b', '</s>', '▁b', '</s>'], [['▁a', '▁b', '</s>'], ['</s>', '▁b', '</s>'], ['</s>', '▁a', '▁b']])
        """
        encoded = tokenizer.encode_batch(documents.texts)
        ids = np.concatenate([np.array([*document, tokenizer.eos_id], dtype=np.int32) for document in encoded])
        row_length = min(length, len(ids) - 1) or 1  # a stream of one token has one row
        return cls(ids, row_length, digest=documents.digest)

    def take(self, fraction: float) -> TokenStream:
        """The first rows of the stream, this fraction of them and at least one."""
        num_rows = max(1, round(fraction * len(self)))
        return TokenStream(self.ids[: num_rows * self.length + 1], self.length, digest=self.digest)

    def __len__(self) -> int:
        """Number of rows of an epoch."""
        return -(-len(self.ids) // self.length)

    def indices(self, rows: Indices, offset: int = 0, extra: int = 0) -> Indices:
        """Stream indices of the tokens of rows, [B, length + extra], in an epoch that starts at token `offset`.

        Indices are not wrapped around at the end of the stream, so that no two rows of an epoch share one.
        """
        return offset + rows[:, None] * self.length + np.arange(self.length + extra)

    def tokens_at(self, indices: Indices) -> Ids:
        """Token ids at stream indices, wrapped around."""
        return self.ids[indices % len(self.ids)]

    def rows(self, rows: Indices, offset: int = 0) -> Tokens:
        """Rows by index, each with the first token of the next row at its end."""
        return equal_rows(self.tokens_at(self.indices(rows, offset, 1)))


def equal_rows(ids: Ids) -> Tokens:
    """Pack rows of equal length, [B, T].

    >>> equal_rows(np.array([[5, 6], [7, 8]], dtype=np.int32)).offsets.tolist()
    [0, 2, 4]
    """
    return Tokens(ids.reshape(-1), np.arange(len(ids) + 1, dtype=np.int32) * ids.shape[1])


class StreamObjective:
    """Batches of rows of a stream, each row once per epoch; every epoch splits the stream at another offset."""

    unit = "predictions"

    def __init__(self, train: TokenStream, *, seed: int) -> None:
        self.train = train
        self.seed = seed

    @cached_property
    def lengths(self) -> Indices:
        """Predicted tokens of the training rows, [rows, 1]."""
        return np.full((len(self.train), 1), self.train.length, dtype=np.int64)

    def epoch_batches(self, epoch: int, max_tokens: int) -> list[Indices]:
        """Row indices of each batch of an epoch, in order."""
        order = epoch_order(len(self.train), seed=self.seed, epoch=epoch, digest=self.train.digest)
        batch_size = max(1, max_tokens // self.train.length)
        return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

    def epoch_offset(self, epoch: int) -> int:
        """Stream index of the first token of an epoch."""
        rng = epoch_rng(seed=self.seed, epoch=epoch, digest=self.train.digest, purpose=OFFSET_PURPOSE)
        return int(rng.integers(len(self.train.ids)))
