"""Language modelling as a task: documents end to end in rows of one length, batches and losses out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.noise import Noise
from regard.data.documents import Documents
from regard.data.order import chance, order
from regard.models.elmo import Elmo
from regard.tasks.metrics import perplexity
from regard.text.tokenizer import Tokenizer
from regard.tokens import Ids, Tokens

Numbers = NDArray[np.int64]
EVALUATED = 64  # rows that are measured together
SHIFT = 3  # a purpose of chance


@dataclass(frozen=True)
class LanguageBatch:
    """Rows of running text."""

    rows: Tokens

    @property
    def count(self) -> int:
        """Predictions: all tokens of a row but one, from either side."""
        return 2 * (len(self.rows.ids) - len(self.rows))

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.rows)} rows of {self.rows.lengths.max()} tokens"


@dataclass(frozen=True)
class Stream:
    """Documents end to end, a boundary after each; behind the last one the first begins again.

    So rows of one length can begin anywhere and none is ever padded. Neighbouring rows share one token: whatever is
    told is told once in each direction, but for a few at the end of a round.
    """

    ids: Ids  # [N]
    length: int  # tokens of a row that are told, in each direction
    digest: str  # of the texts

    @classmethod
    def of(cls, documents: Documents, tokenizer: Tokenizer, length: int) -> Stream:
        """Return the tokens of documents, one boundary between them.

        >>> from regard.config.data import TokenizerConfig
        >>> from regard.text.learn import learn
        >>> words = learn(["a b", "b"] * 9, TokenizerConfig(kind="words"))
        >>> stream = Stream.of(Documents.of(["a b", "b"]), words, 2)
        >>> words.pieces(stream.ids), [words.pieces(row) for row in stream.rows(np.array([0, 1, 2]))]
        (['▁a', '▁b', '</s>', '▁b', '</s>'], [['▁a', '▁b', '</s>'], ['</s>', '▁b', '</s>'], ['</s>', '▁a', '▁b']])
        """
        rows = [np.array([*ids, tokenizer.end], dtype=np.int32) for ids in tokenizer.encode_all(documents.texts)]
        ids = np.concatenate(rows)
        return cls(ids, min(length, len(ids) - 1) or 1, documents.digest)

    def first(self, share: float) -> Stream:
        """Return a share of the tokens from the beginning on, whole rows and at least one."""
        rows = max(1, round(share * len(self)))
        return Stream(self.ids[: rows * self.length + 1], self.length, self.digest)

    def __len__(self) -> int:
        """How many rows a round has."""
        return -(-len(self.ids) // self.length)

    def places(self, numbers: Numbers, first: int = 0, more: int = 0) -> Numbers:
        """Return where the tokens of rows stand, [B, length + more], in a round that begins at token `first`.

        Places are counted on behind the last token, so that no two rows of a round share one.
        """
        return first + numbers[:, None] * self.length + np.arange(self.length + more)

    def at(self, places: Numbers) -> Ids:
        """Return the tokens at places."""
        return self.ids[places % len(self.ids)]

    def rows(self, numbers: Numbers, first: int = 0) -> Tokens:
        """Return the rows with these numbers, each with the first token of the next one at its end."""
        return even_rows(self.at(self.places(numbers, first, 1)))


def even_rows(ids: Ids) -> Tokens:
    """Return rows of one length, [B, T], packed end to end.

    >>> even_rows(np.array([[5, 6], [7, 8]], dtype=np.int32)).offsets.tolist()
    [0, 2, 4]
    """
    return Tokens(ids.reshape(-1), np.arange(len(ids) + 1, dtype=np.int32) * ids.shape[1])


class RoundTask:
    """Batches of rows of a stream, each once in a round; every round cuts the text at other places."""

    counted = "predictions"

    def __init__(self, train: Stream, *, seed: int) -> None:
        self.train, self.seed = train, seed

    @cached_property
    def lengths(self) -> Numbers:
        """Tokens of the training rows that are told."""
        return np.full((len(self.train), 1), self.train.length, dtype=np.int64)

    def epoch(self, epoch: int, budget: int) -> list[Numbers]:
        """Return the row numbers of each batch of an epoch, in order."""
        arranged = order(len(self.train), seed=self.seed, epoch=epoch, digest=self.train.digest)
        size = max(1, budget // self.train.length)
        return [arranged[first : first + size] for first in range(0, len(arranged), size)]

    def first(self, epoch: int) -> int:
        """Return the token that an epoch's first row begins with."""
        draw = chance(seed=self.seed, epoch=epoch, digest=self.train.digest, purpose=SHIFT)
        return int(draw.integers(len(self.train.ids)))


class LanguageTask(RoundTask):
    """Knows what a batch of running text means to a model that tells it from the left and from the right."""

    def batch(self, numbers: Numbers, epoch: int) -> LanguageBatch:
        """Return training rows as this epoch cuts them."""
        return LanguageBatch(self.train.rows(numbers, self.first(epoch)))

    def loss(self, model: Elmo, batch: LanguageBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's predictions."""
        return model.loss(batch.rows, smoothing=smoothing, noise=noise)


def mean_losses(model: Elmo, text: Stream) -> tuple[float, float]:
    """Return the plain loss a token from the left and from the right."""
    sums, count = np.zeros(2), 0
    for first in range(0, len(text), EVALUATED):
        rows = text.rows(np.arange(first, min(first + EVALUATED, len(text))))
        sums += [float(loss) for loss in model.losses(rows)]
        count += len(rows.ids) - len(rows)
    left, right = sums / count
    return float(left), float(right)


def language_scores(model: Elmo, text: Stream) -> dict[str, float]:
    """Return loss and perplexity of text, from the left, from the right and on average."""
    forward, backward = mean_losses(model, text)
    loss = (forward + backward) / 2
    return {
        "loss": loss,
        "perplexity": perplexity(loss, 1),
        "perplexity_forward": perplexity(forward, 1),
        "perplexity_backward": perplexity(backward, 1),
    }
