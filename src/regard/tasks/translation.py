"""Translation as a task: parallel text in, batches and measures out."""

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
from regard.text.bpe_dropout import BpeDropout
from regard.text.tokenizer import Tokenizer
from regard.tokens import Ids, PairBatch, Tokens


@dataclass(frozen=True)
class TokenizedPairs:
    """Tokenised pairs."""

    texts: ParallelTexts
    source: list[Ids]  # with the end
    target: list[Ids]

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[examples, 2]: source and target lengths, ends included."""
        return np.array([(len(s), len(t) + 1) for s, t in zip(self.source, self.target, strict=True)], dtype=np.int64)

    def select(self, indices: NDArray[np.int64]) -> TokenizedPairs:
        """Return some of the examples."""
        source = [self.source[index] for index in indices]
        target = [self.target[index] for index in indices]
        return TokenizedPairs(self.texts.select(indices), source, target)

    def batch(self, numbers: NDArray[np.int64]) -> PairBatch:
        """Return the examples with these numbers."""
        return PairBatch(
            Tokens.from_rows([self.source[number] for number in numbers]),
            Tokens.from_rows([self.target[number] for number in numbers]),
        )


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of both sides."""

    source: Tokenizer
    target: Tokenizer

    def examples(self, pairs: ParallelTexts) -> TokenizedPairs:
        """Return the pairs as token numbers; source rows get their end."""
        source = [
            np.array([*ids, self.source.eos_id], dtype=np.int32) for ids in self.source.encode_batch(pairs.source)
        ]
        target = [np.array(ids, dtype=np.int32) for ids in self.target.encode_batch(pairs.target)]
        return TokenizedPairs(pairs, source, target)


class TranslationObjective:
    """Knows what a batch of translation means."""

    unit = "tokens"

    def __init__(
        self, languages: TokenizerPair, train: TokenizedPairs, valid: TokenizedPairs, *, seed: int, sampling: float
    ) -> None:
        self.languages, self.train, self.valid, self.seed = languages, train, valid, seed
        self._epoch, self._examples = -1, train
        self.segmenters: tuple[BpeDropout, BpeDropout] | None = None
        if sampling:
            self.segmenters = (
                BpeDropout(languages.source, train.texts.source, sampling, seed),
                BpeDropout(languages.target, train.texts.target, sampling, seed + 1),
            )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths of the training examples, ends included."""
        return self.train.lengths

    def epoch_batches(self, epoch: int, max_tokens: int) -> list[NDArray[np.int64]]:
        """Return the example numbers of each batch of an epoch, in order."""
        lengths = self._drawn(epoch).lengths
        return epoch_batches(
            lengths, max_tokens=max_tokens, seed=self.seed, epoch=epoch, digest=self.train.texts.digest
        )

    def batch(self, numbers: NDArray[np.int64], epoch: int) -> PairBatch:
        """Return training examples, with segmentations drawn for this epoch where asked."""
        return self._drawn(epoch).batch(numbers)

    def _drawn(self, epoch: int) -> TokenizedPairs:
        """Return the training examples as this epoch sees them."""
        if self.segmenters is None:
            return self.train
        if self._epoch != epoch:
            source, target = (list(segmenter.sample_all(epoch)) for segmenter in self.segmenters)
            end = np.array([self.languages.source.eos_id], dtype=np.int32)
            self._epoch = epoch
            self._examples = TokenizedPairs(self.train.texts, [np.concatenate([row, end]) for row in source], target)
        return self._examples

    def loss(
        self, model: EncoderDecoder, batch: PairBatch, smoothing: float, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's target tokens."""
        return model.loss(batch.source, batch.target, smoothing=smoothing, noise=noise)


@torch.no_grad()
def mean_loss(model: EncoderDecoder, examples: TokenizedPairs, max_tokens: int = 4096) -> float:
    """Return the plain loss a target token."""
    total, count = 0.0, 0
    for numbers in length_sorted_batches(examples.lengths, max_tokens=max_tokens):
        batch = examples.batch(numbers)
        total += float(model.loss(batch.source, batch.target)[1])
        count += batch.num_predictions
    return total / max(1, count)


def search_translations(
    model: EncoderDecoder, rows: Sequence[Ids], config: DecodingConfig, workers: int = 1
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source row (with its end), searched in batches of like length."""
    return search_all(
        model, rows, config, max_length=model.settings.max_positions - 1, map_batches=WorkerPool(workers).map
    )
