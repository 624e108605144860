"""Texts as readers with words of their own read them, with frozen features where they have some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import epoch_batches, length_sorted_batches
from regard.models.rnn_text import TextBatch
from regard.tasks.elmo import ElmoFeatures, Spans
from regard.tasks.windows import BUDGET
from regard.text.special_tokens import TruncationReport
from regard.text.tokenizer import Tokenizer
from regard.tokens import Ids, Tokens

Numbers = NDArray[np.int64]
Halves = NDArray[np.float16]  # [T, layers, F]


@dataclass(frozen=True)
class RnnPreprocessor:
    """How a reader reads texts: its tokenizer, how many tokens at most, and frozen features where it has them."""

    tokenizer: Tokenizer
    max_length: int
    features: ElmoFeatures | None = None

    def encode(self, texts: Sequence[str]) -> RnnTexts:
        """Return the texts as token numbers, cut where they are too long; features are made when they are asked for."""
        encoded = [self.tokenizer.encode(text) for text in texts]
        kept, spans, rows, cut = list(texts), list[Spans](), list[Ids](), np.zeros(len(texts), dtype=np.int64)
        for number, one in enumerate(encoded):
            cut[number] = max(0, len(one.ids) - self.max_length)
            if cut[number]:
                kept[number] = texts[number][: one.spans[self.max_length - 1][1]]
            ids = one.ids[: self.max_length] or [max(self.tokenizer.unk_id, 0)]
            rows.append(np.array(ids, dtype=np.int32))
            spans.append(one.spans[: self.max_length] or [(0, len(texts[number]))])
        return RnnTexts(kept, rows, spans, cut, self.features)

    def account(self, read: RnnTexts) -> TruncationReport:
        """Return how much of the texts was read."""
        tokens, count = int(read.lengths.sum() + read.truncated.sum()), len(read)
        return TruncationReport(
            count, tokens, self.max_length, 0, count, int((read.truncated > 0).sum()), int(read.truncated.sum())
        )


@dataclass
class RnnTexts:
    """Texts as a reader reads them."""

    texts: list[str]  # as far as they are read
    rows: list[Ids]
    spans: list[Spans]  # of characters, one for each token
    truncated: Numbers  # [texts], tokens of each that are not read
    features: ElmoFeatures | None
    kept: list[Halves] | None = None  # the features of all texts, where they were made beforehand

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def lengths(self) -> Numbers:
        """[texts, 1], in tokens."""
        return np.array([len(row) for row in self.rows], dtype=np.int64).reshape(-1, 1)

    @property
    def feature_bytes(self) -> int:
        """What the features of all texts take in memory."""
        return (
            0
            if self.features is None
            else 2 * int(self.lengths.sum()) * self.features.layers * self.features.hidden_size
        )

    def cache_features(self) -> None:
        """Make the features of all texts now: they never change."""
        if self.features is not None:
            self.kept = [layers.astype(np.float16) for layers in self.features.extract(self.texts, self.spans)]

    def epoch(self, *, max_tokens: int, seed: int, epoch: int, digest: str) -> list[Numbers]:
        """Return the text numbers of each batch of an epoch, in order; a pure function."""
        return epoch_batches(self.lengths, max_tokens=max_tokens, seed=seed, epoch=epoch, digest=digest)

    def batches(self) -> Iterator[tuple[Numbers, TextBatch]]:
        """Yield all texts, some at a time, with their numbers: those of about the same length together."""
        for numbers in length_sorted_batches(self.lengths, max_tokens=BUDGET):
            yield numbers, self.batch(numbers)

    def batch(self, numbers: Numbers) -> TextBatch:
        """Return some of the texts, with their features."""
        tokens = Tokens.from_rows([self.rows[number] for number in numbers])
        if self.features is None:
            return TextBatch(tokens)
        if self.kept is not None:
            return TextBatch(tokens, np.concatenate([self.kept[number] for number in numbers]))
        chosen = [self.texts[number] for number in numbers], [self.spans[number] for number in numbers]
        # in half precision, too, so that it makes no difference whether they were kept
        return TextBatch(tokens, np.concatenate(list(self.features.extract(*chosen))).astype(np.float16))
