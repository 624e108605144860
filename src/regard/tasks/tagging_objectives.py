"""Objectives of taggers: batches of sentences and their loss, for encoders and for RNN text encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise
from regard.models.bert import Bert
from regard.models.rnn_text import RnnTagger
from regard.models.text_classifier import TextBatch
from regard.packed_tokens import Tokens
from regard.tasks.base import RowObjective
from regard.tasks.encoder_states import CachedStates, encode_for_training
from regard.tasks.losses import cross_entropy_sums
from regard.tasks.tagging import EncodedSentences, RnnSentences, packed_indices

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class TagBatch:
    """Rows of sentences and the tags of the words that they predict."""

    tokens: Tokens
    positions: Indices  # among all hidden states
    tags: Indices
    cached_states: Tensor | None = None  # of these positions, if the encoder is frozen

    @property
    def num_predictions(self) -> int:
        """Number of words: each has one tag."""
        return max(1, len(self.tags))

    @property
    def description(self) -> str:
        """Size of the batch, as text."""
        return f"{len(self.tokens)} sentences of up to {self.tokens.lengths.max()} tokens"


class TaggingObjective(RowObjective[EncodedSentences]):
    """Cross-entropy of the tags that an encoder predicts."""

    unit = "words"

    def __init__(
        self,
        train: EncodedSentences,
        tags: Sequence[Indices],
        *,
        seed: int,
        digest: str,
        class_weights: NDArray[np.float32] | None = None,
        cached_states: CachedStates | None = None,
    ) -> None:
        super().__init__(train, seed=seed, digest=digest, class_weights=class_weights)
        self.cached_states = cached_states
        self.tags = [
            tags[text_index][words] for text_index, words in zip(train.text_indices, train.word_ids, strict=True)
        ]

    def batch(self, indices: Indices, epoch: int) -> TagBatch:
        """Training rows and their tags."""
        tokens = self.train.batch(indices)
        tags = np.concatenate([self.tags[index] for index in indices])
        if self.cached_states is None:
            return TagBatch(tokens, packed_indices(self.train.positions, indices, tokens.offsets), tags=tags)
        positions = np.arange(len(tags), dtype=np.int64)  # only the states of these positions are cached
        return TagBatch(tokens, positions, tags=tags, cached_states=self.cached_states.get(indices))

    def loss(self, model: Bert, batch: TagBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Sums of the smoothed and the plain loss over the batch's words."""
        hidden, packed = encode_for_training(model, batch.tokens, noise, batch.cached_states, batch.positions)
        if batch.cached_states is not None:
            hidden = hidden[torch.from_numpy(batch.positions).to(hidden.device)]
        logits = model.head_logits(hidden, packed, noise).float()
        return cross_entropy_sums(logits, torch.from_numpy(batch.tags), smoothing, self.class_weights)


@dataclass(frozen=True)
class RnnTagBatch:
    """Sentences and the tags of their words."""

    texts: TextBatch
    positions: Indices  # among all tokens
    tags: Indices

    @property
    def num_predictions(self) -> int:
        """Number of words: each has one tag."""
        return max(1, len(self.tags))

    @property
    def description(self) -> str:
        """Size of the batch, as text."""
        return f"{len(self.texts.tokens)} sentences of up to {self.texts.tokens.lengths.max()} tokens"


class RnnTaggingObjective(RowObjective[RnnSentences]):
    """Cross-entropy of the tags that an RNN text encoder predicts."""

    unit = "words"

    def __init__(
        self,
        train: RnnSentences,
        tags: Sequence[Indices],
        *,
        seed: int,
        digest: str,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(train, seed=seed, digest=digest, class_weights=class_weights)
        self.tags = [sentence_tags[words] for sentence_tags, words in zip(tags, train.word_ids, strict=True)]

    def batch(self, indices: Indices, epoch: int) -> RnnTagBatch:
        """Training sentences and their tags."""
        texts = self.train.batch(indices)
        positions = packed_indices(self.train.positions, indices, texts.tokens.offsets)
        return RnnTagBatch(texts, positions, tags=np.concatenate([self.tags[index] for index in indices]))

    def loss(
        self, model: RnnTagger, batch: RnnTagBatch, smoothing: float, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Sums of the smoothed and the plain loss over the batch's words."""
        logits = model(batch.texts, torch.from_numpy(batch.positions).to(model.device()), noise).float()
        return cross_entropy_sums(logits, torch.from_numpy(batch.tags), smoothing, self.class_weights)
