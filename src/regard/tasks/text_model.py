"""Texts as input of models with a vocabulary of their own: token ids, with frozen features where requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import epoch_batches, length_sorted_batches
from regard.packed_tokens import Ids, Tokens
from regard.tasks.windows import BATCH_TOKENS
from regard.text.special_tokens import TruncationReport
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.models.text_classifier import TextBatch, TextClassifierModel
    from regard.tasks.feature_models import AnyFeatures
    from regard.tasks.frozen_features import Spans

Indices = NDArray[np.int64]
HalfLayers = NDArray[np.float16]  # [T, layers, F]


@dataclass(frozen=True)
class TextPreprocessor:
    """Tokenizer, maximum length and, for an RNN, optional frozen features."""

    tokenizer: Tokenizer
    max_length: int
    features: AnyFeatures | None = None

    def encode(self, texts: Sequence[str]) -> PreprocessedTexts:
        """Encode texts as token ids, truncated to the maximum length; features are computed on demand."""
        truncated_texts: list[str] = []
        rows: list[Ids] = []
        spans: list[Spans] = []
        truncated = np.zeros(len(texts), dtype=np.int64)
        unk_id = max(self.tokenizer.unk_id, 0)
        for index, text in enumerate(texts):
            encoding = self.tokenizer.encode(text)
            truncated[index] = max(0, len(encoding.ids) - self.max_length)
            if truncated[index]:
                _, end = encoding.spans[self.max_length - 1]
                truncated_texts.append(text[:end])
            else:
                truncated_texts.append(text)
            rows.append(np.array(encoding.ids[: self.max_length] or [unk_id], dtype=np.int32))
            spans.append(encoding.spans[: self.max_length] or [(0, len(text))])
        return PreprocessedTexts(truncated_texts, rows, spans=spans, truncated=truncated, features=self.features)

    def report_truncation(self, texts: PreprocessedTexts) -> TruncationReport:
        """Report how much of the texts is truncated."""
        return TruncationReport(
            texts=len(texts),
            tokens=int(texts.lengths.sum() + texts.truncated.sum()),
            max_length=self.max_length,
            windows=len(texts),
            truncated_texts=int((texts.truncated > 0).sum()),
            truncated_tokens=int(texts.truncated.sum()),
        )


@dataclass
class PreprocessedTexts:
    """Texts as token ids of a model's own vocabulary."""

    texts: list[str]  # up to the maximum length
    rows: list[Ids]
    spans: list[Spans]  # character spans of the tokens
    truncated: Indices  # [texts], number of tokens that are not read
    features: AnyFeatures | None
    cached_features: list[HalfLayers] | None = None  # of all texts, once computed

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, indices: Indices) -> Self:
        """The texts at these indices, with their cached features."""
        cached = self.cached_features
        return replace(
            self,
            texts=[self.texts[index] for index in indices],
            rows=[self.rows[index] for index in indices],
            spans=[self.spans[index] for index in indices],
            truncated=self.truncated[indices],
            cached_features=None if cached is None else [cached[index] for index in indices],
        )

    @cached_property
    def lengths(self) -> Indices:
        """[texts, 1], in tokens."""
        return np.array([len(row) for row in self.rows], dtype=np.int64).reshape(-1, 1)

    @property
    def feature_bytes(self) -> int:
        """Memory that the cached features of all texts take."""
        if self.features is None:
            return 0
        return 2 * int(self.lengths.sum()) * self.features.num_layers * self.features.hidden_size

    def cache_features(self) -> None:
        """Compute the features of all texts once; they are frozen."""
        if self.features is not None:
            layers = self.features.extract(self.texts, self.spans)
            self.cached_features = [text_layers.astype(np.float16) for text_layers in layers]

    def epoch(self, *, max_tokens: int, seed: int, epoch: int, digest: str) -> list[Indices]:
        """Text indices of each batch of an epoch, in order; a pure function."""
        return epoch_batches(self.lengths, max_tokens=max_tokens, seed=seed, epoch=epoch, digest=digest)

    def batches(self) -> Iterator[tuple[Indices, TextBatch]]:
        """Yield all texts with their indices, in batches of similar length."""
        for indices in length_sorted_batches(self.lengths, max_tokens=BATCH_TOKENS):
            yield indices, self.batch(indices)

    def batch(self, indices: Indices) -> TextBatch:
        """Texts by index, with their features."""
        from regard.models.text_classifier import TextBatch

        tokens = Tokens.from_rows([self.rows[index] for index in indices])
        if self.features is None:
            return TextBatch(tokens)
        if self.cached_features is not None:
            return TextBatch(tokens, np.concatenate([self.cached_features[index] for index in indices]))
        texts = [self.texts[index] for index in indices]
        spans = [self.spans[index] for index in indices]
        # float16 as in the cache, so that caching does not change results
        return TextBatch(tokens, np.concatenate(list(self.features.extract(texts, spans))).astype(np.float16))


def label_probabilities(model: TextClassifierModel, texts: PreprocessedTexts) -> NDArray[np.float32]:
    """Probability of each label for each text, [texts, labels]."""
    probabilities = np.zeros((len(texts), model.config.num_labels), dtype=np.float32)
    for indices, batch in texts.batches():
        probabilities[indices] = model.probabilities(batch)
    return probabilities
