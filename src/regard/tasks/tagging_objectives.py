"""Objectives of taggers: batches of sentences and their loss, for encoders and for RNN text encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

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
from regard.tasks.encoder_states import encode_for_training
from regard.tasks.losses import cross_entropy_sums
from regard.tasks.tagging import EncodedSentences, RnnSentences, packed_indices

Indices = NDArray[np.int64]
SentencesT = TypeVar("SentencesT", EncodedSentences, RnnSentences)


@dataclass(frozen=True)
class TaggedRows:
    """Base of batches of sentences: the words that are predicted, and their tags."""

    tokens: Tokens
    positions: Indices  # of the words among all hidden states
    tags: Indices

    @property
    def num_predictions(self) -> int:
        """Number of words: each has one tag."""
        return max(1, len(self.tags))

    @property
    def description(self) -> str:
        """Size of the batch, as text."""
        return f"{len(self.tokens)} sentences of up to {self.tokens.lengths.max()} tokens"


@dataclass(frozen=True)
class TagBatch(TaggedRows):
    """Rows of an encoder and the tags of the words that they predict."""

    cached_states: Tensor | None = None  # of these positions, if the encoder is frozen


@dataclass(frozen=True)
class RnnTagBatch(TaggedRows):
    """Sentences of an RNN text encoder and the tags of their words."""

    features: NDArray[np.float16] | None = None  # of each token


class WordObjective(RowObjective[SentencesT, Sequence[Indices]]):
    """Base of objectives on the tags of words."""

    unit = "words"

    def targets_of_rows(self, targets: Sequence[Indices]) -> Sequence[Indices]:
        """Tags of the words that each row predicts, from those of all words of each sentence."""
        rows = zip(self.train.text_indices, self.train.word_ids, strict=True)
        return [targets[text_index][words] for text_index, words in rows]

    def tags_of(self, indices: Indices) -> Indices:
        """Tags of the words that these rows predict, end to end."""
        return np.concatenate([self.targets[index] for index in indices])


class TaggingObjective(WordObjective[EncodedSentences]):
    """Cross-entropy of the tags that an encoder predicts."""

    def batch(self, indices: Indices, epoch: int) -> TagBatch:
        """Training rows and their tags."""
        tokens = self.train.batch(indices)
        tags = self.tags_of(indices)
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


class RnnTaggingObjective(WordObjective[RnnSentences]):
    """Cross-entropy of the tags that an RNN text encoder predicts."""

    def batch(self, indices: Indices, epoch: int) -> RnnTagBatch:
        """Training sentences and their tags."""
        texts = self.train.batch(indices)
        positions = packed_indices(self.train.positions, indices, texts.tokens.offsets)
        return RnnTagBatch(texts.tokens, positions, tags=self.tags_of(indices), features=texts.features)

    def loss(
        self, model: RnnTagger, batch: RnnTagBatch, smoothing: float, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Sums of the smoothed and the plain loss over the batch's words."""
        texts = TextBatch(batch.tokens, batch.features)
        logits = model(texts, torch.from_numpy(batch.positions).to(model.device()), noise).float()
        return cross_entropy_sums(logits, torch.from_numpy(batch.tags), smoothing, self.class_weights)
