"""Texts as readers with words of their own read them, with frozen features where they have some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import epoch_batches, sorted_batches
from regard.models.reader import Texts
from regard.tasks.encoding import BUDGET, Account
from regard.tasks.features import Features, Spans
from regard.text.tokenizer import Tokenizer
from regard.tokens import Ids, Tokens

Numbers = NDArray[np.int64]
Halves = NDArray[np.float16]  # [T, layers, F]


@dataclass(frozen=True)
class Perception:
    """How a reader reads texts: its tokenizer, how many tokens at most, and frozen features where it has them."""

    tokenizer: Tokenizer
    longest: int
    features: Features | None = None

    def read(self, texts: Sequence[str]) -> TextRows:
        """Return the texts as token numbers, cut where they are too long; features are made when they are asked for."""
        encoded = [self.tokenizer.encode(text) for text in texts]
        kept, spans, rows, cut = list(texts), list[Spans](), list[Ids](), np.zeros(len(texts), dtype=np.int64)
        for number, one in enumerate(encoded):
            cut[number] = max(0, len(one.ids) - self.longest)
            if cut[number]:
                kept[number] = texts[number][: one.spans[self.longest - 1][1]]
            ids = one.ids[: self.longest] or [max(self.tokenizer.unknown, 0)]
            rows.append(np.array(ids, dtype=np.int32))
            spans.append(one.spans[: self.longest] or [(0, len(texts[number]))])
        return TextRows(kept, rows, spans, cut, self.features)

    def account(self, read: TextRows) -> Account:
        """Return how much of the texts was read."""
        tokens, count = int(read.lengths.sum() + read.cut.sum()), len(read)
        return Account(count, tokens, self.longest, 0, count, int((read.cut > 0).sum()), int(read.cut.sum()))


@dataclass
class TextRows:
    """Texts as a reader reads them."""

    texts: list[str]  # as far as they are read
    rows: list[Ids]
    spans: list[Spans]  # of characters, one for each token
    cut: Numbers  # [texts], tokens of each that are not read
    features: Features | None
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
        return 0 if self.features is None else 2 * int(self.lengths.sum()) * self.features.layers * self.features.width

    def keep_features(self) -> None:
        """Make the features of all texts now: they never change."""
        if self.features is not None:
            self.kept = [layers.astype(np.float16) for layers in self.features.at(self.texts, self.spans)]

    def epoch(self, *, budget: int, seed: int, epoch: int, digest: str) -> list[Numbers]:
        """Return the text numbers of each batch of an epoch, in order; a pure function."""
        return epoch_batches(self.lengths, budget=budget, seed=seed, epoch=epoch, digest=digest)

    def batches(self) -> Iterator[tuple[Numbers, Texts]]:
        """Yield all texts, some at a time, with their numbers: those of about the same length together."""
        for numbers in sorted_batches(self.lengths, budget=BUDGET):
            yield numbers, self.batch(numbers)

    def batch(self, numbers: Numbers) -> Texts:
        """Return some of the texts, with their features."""
        tokens = Tokens.from_rows([self.rows[number] for number in numbers])
        if self.features is None:
            return Texts(tokens)
        if self.kept is not None:
            return Texts(tokens, np.concatenate([self.kept[number] for number in numbers]))
        chosen = [self.texts[number] for number in numbers], [self.spans[number] for number in numbers]
        # in half precision, too, so that it makes no difference whether they were kept
        return Texts(tokens, np.concatenate(list(self.features.at(*chosen))).astype(np.float16))
