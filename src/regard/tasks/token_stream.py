"""Language modelling as a task: documents end to end in rows of one length, batches and losses out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import epoch_order, epoch_rng
from regard.data.documents import Documents
from regard.text.tokenizer import Tokenizer
from regard.tokens import Ids, Tokens

Numbers = NDArray[np.int64]
EVALUATED = 64  # rows that are measured together
SHIFT = 3  # a purpose of chance


@dataclass(frozen=True)
class TokenStream:
    """Documents end to end, a boundary after each; behind the last one the first begins again.

    So rows of one length can begin anywhere and none is ever padded. Neighbouring rows share one token: whatever is
    told is told once in each direction, but for a few at the end of a round.
    """

    ids: Ids  # [N]
    length: int  # tokens of a row that are told, in each direction
    digest: str  # of the texts

    @classmethod
    def of(cls, documents: Documents, tokenizer: Tokenizer, length: int) -> TokenStream:
        """Return the tokens of documents, one boundary between them.

        >>> from regard.config.data import TokenizerConfig
        >>> from regard.text.train import train_tokenizer
        >>> words = train_tokenizer(["a b", "b"] * 9, TokenizerConfig(kind="words"))
        >>> stream = TokenStream.of(Documents.of(["a b", "b"]), words, 2)
        >>> words.subwords(stream.ids), [words.subwords(row) for row in stream.rows(np.array([0, 1, 2]))]
        (['▁a', '▁b', '</s>', '▁b', '</s>'], [['▁a', '▁b', '</s>'], ['</s>', '▁b', '</s>'], ['</s>', '▁a', '▁b']])
        """
        rows = [np.array([*ids, tokenizer.eos_id], dtype=np.int32) for ids in tokenizer.encode_batch(documents.texts)]
        ids = np.concatenate(rows)
        return cls(ids, min(length, len(ids) - 1) or 1, documents.digest)

    def first(self, share: float) -> TokenStream:
        """Return a share of the tokens from the beginning on, whole rows and at least one."""
        rows = max(1, round(share * len(self)))
        return TokenStream(self.ids[: rows * self.length + 1], self.length, self.digest)

    def __len__(self) -> int:
        """How many rows a round has."""
        return -(-len(self.ids) // self.length)

    def indices(self, rows: Numbers, offset: int = 0, extra: int = 0) -> Numbers:
        """Return where the tokens of rows stand, [B, length + more], in a round that begins at token `first`.

        Places are counted on behind the last token, so that no two rows of a round share one.
        """
        return offset + rows[:, None] * self.length + np.arange(self.length + extra)

    def tokens_at(self, indices: Numbers) -> Ids:
        """Return the tokens at places."""
        return self.ids[indices % len(self.ids)]

    def rows(self, numbers: Numbers, first: int = 0) -> Tokens:
        """Return the rows with these numbers, each with the first token of the next one at its end."""
        return equal_rows(self.tokens_at(self.indices(numbers, first, 1)))


def equal_rows(ids: Ids) -> Tokens:
    """Return rows of one length, [B, T], packed end to end.

    >>> equal_rows(np.array([[5, 6], [7, 8]], dtype=np.int32)).offsets.tolist()
    [0, 2, 4]
    """
    return Tokens(ids.reshape(-1), np.arange(len(ids) + 1, dtype=np.int32) * ids.shape[1])


class StreamObjective:
    """Batches of rows of a stream, each once in a round; every round cuts the text at other places."""

    unit = "predictions"

    def __init__(self, train: TokenStream, *, seed: int) -> None:
        self.train, self.seed = train, seed

    @cached_property
    def lengths(self) -> Numbers:
        """Tokens of the training rows that are told."""
        return np.full((len(self.train), 1), self.train.length, dtype=np.int64)

    def epoch_batches(self, epoch: int, max_tokens: int) -> list[Numbers]:
        """Return the row numbers of each batch of an epoch, in order."""
        arranged = epoch_order(len(self.train), seed=self.seed, epoch=epoch, digest=self.train.digest)
        size = max(1, max_tokens // self.train.length)
        return [arranged[first : first + size] for first in range(0, len(arranged), size)]

    def epoch_offset(self, epoch: int) -> int:
        """Return the token that an epoch's first row begins with."""
        draw = epoch_rng(seed=self.seed, epoch=epoch, digest=self.train.digest, purpose=SHIFT)
        return int(draw.integers(len(self.train.ids)))
