"""Translation: tokenized pairs, the training objective, validation loss and search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise
from regard.config.inference import DecodingConfig
from regard.data.batching import epoch_batches, length_sorted_batches
from regard.data.pairs import ParallelTexts
from regard.decoding.batch_search import search_all
from regard.decoding.search import Hypothesis
from regard.hardware import WorkerPool
from regard.models.base import EncoderDecoder
from regard.packed_tokens import Ids, PairBatch, Tokens
from regard.text.bpe_dropout import BpeDropout
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenizedPairs:
    """Sentence pairs as token ids."""

    texts: ParallelTexts
    source: list[Ids]  # with the end token
    target: list[Ids]  # without the end token

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Source and target lengths including the end token, [examples, 2]."""
        lengths = [(len(source), len(target) + 1) for source, target in zip(self.source, self.target, strict=True)]
        return np.array(lengths, dtype=np.int64)

    def select(self, indices: NDArray[np.int64]) -> TokenizedPairs:
        """Examples by index."""
        source = [self.source[index] for index in indices]
        target = [self.target[index] for index in indices]
        return TokenizedPairs(self.texts.select(indices), source, target=target)

    def batch(self, indices: NDArray[np.int64]) -> PairBatch:
        """Batch of the pairs at these indices."""
        return PairBatch(
            Tokens.from_rows([self.source[index] for index in indices]),
            Tokens.from_rows([self.target[index] for index in indices]),
        )


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of source and target."""

    source: Tokenizer
    target: Tokenizer

    def tokenize(self, pairs: ParallelTexts) -> TokenizedPairs:
        """Tokenize the pairs; source rows get the end token."""
        eos_id = self.source.eos_id
        source = [np.array([*ids, eos_id], dtype=np.int32) for ids in self.source.encode_batch(pairs.source)]
        target = [np.array(ids, dtype=np.int32) for ids in self.target.encode_batch(pairs.target)]
        return TokenizedPairs(pairs, source, target=target)


class TranslationObjective:
    """Cross-entropy of target tokens; with BPE dropout, every epoch has its own segmentation."""

    unit = "tokens"

    def __init__(
        self, tokenizers: TokenizerPair, train: TokenizedPairs, valid: TokenizedPairs, *, seed: int, bpe_dropout: float
    ) -> None:
        self.tokenizers = tokenizers
        self.train = train
        self.valid = valid
        self.seed = seed
        self.segmenters: tuple[BpeDropout, BpeDropout] | None = None
        if bpe_dropout:
            self.segmenters = (
                BpeDropout(tokenizers.source, train.texts.source, bpe_dropout, seed),
                BpeDropout(tokenizers.target, train.texts.target, bpe_dropout, seed + 1),
            )
        self._sampled_epoch = -1
        self._sampled = train  # the segmentation of that epoch

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths of the training examples, including the end token."""
        return self.train.lengths

    def epoch_batches(self, epoch: int, max_tokens: int) -> list[NDArray[np.int64]]:
        """Example indices of each batch of an epoch, in order."""
        lengths = self._segment(epoch).lengths
        return epoch_batches(
            lengths, max_tokens=max_tokens, seed=self.seed, epoch=epoch, digest=self.train.texts.digest
        )

    def batch(self, indices: NDArray[np.int64], epoch: int) -> PairBatch:
        """Training examples in the segmentation of this epoch."""
        return self._segment(epoch).batch(indices)

    def _segment(self, epoch: int) -> TokenizedPairs:
        """Training examples in the segmentation of this epoch; the last one is cached."""
        if self.segmenters is None:
            return self.train
        if self._sampled_epoch != epoch:
            source_segmenter, target_segmenter = self.segmenters
            source = list(source_segmenter.sample_all(epoch))
            target = list(target_segmenter.sample_all(epoch))
            end = np.array([self.tokenizers.source.eos_id], dtype=np.int32)
            source_with_end = [np.concatenate([row, end]) for row in source]
            self._sampled_epoch = epoch
            self._sampled = TokenizedPairs(self.train.texts, source_with_end, target=target)
        return self._sampled

    def loss(
        self, model: EncoderDecoder, batch: PairBatch, smoothing: float, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Sums of the smoothed and the plain loss over the batch's target tokens."""
        return model.loss(batch.source, batch.target, smoothing=smoothing, noise=noise)


@torch.no_grad()
def mean_loss(model: EncoderDecoder, examples: TokenizedPairs, max_tokens: int = 4096) -> float:
    """Plain loss per target token."""
    total = 0.0
    count = 0
    for indices in length_sorted_batches(examples.lengths, max_tokens=max_tokens):
        batch = examples.batch(indices)
        total += float(model.loss(batch.source, batch.target)[1])
        count += batch.num_predictions
    return total / max(1, count)


def search_translations(
    model: EncoderDecoder, rows: Sequence[Ids], config: DecodingConfig, workers: int = 1
) -> list[list[Hypothesis]]:
    """Hypotheses of each source row (with its end token), searched in batches of similar length."""
    return search_all(
        model, rows, config, max_length=model.settings.max_positions - 1, map_batches=WorkerPool(workers).map
    )
