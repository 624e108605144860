"""Classification as a task: labelled texts in, batches and measures out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from regard.attention.noise import Noise
from regard.data.batching import epoch_batches, sorted_batches
from regard.models.classifier import Classifier, Texts
from regard.models.encoder import Encoder
from regard.tasks.encoding import Encoded, KeptStates, encoder_states, summed_losses
from regard.tasks.features import Features, Spans
from regard.text.tokenizer import Tokenizer
from regard.tokens import Ids, Tokens

Numbers = NDArray[np.int64]
Halves = NDArray[np.float16]  # [T, layers, F]
BUDGET = 4096  # tokens that are read together where nothing is learned


@dataclass(frozen=True)
class Perception:
    """How a classifier reads texts: its tokenizer, how many tokens at most, and frozen features where it has them."""

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


@dataclass
class TextRows:
    """Texts as a classifier reads them."""

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


@dataclass(frozen=True)
class LabelBatch:
    """Texts and the numbers of their labels."""

    texts: Texts
    labels: Numbers

    @property
    def count(self) -> int:
        """Texts: each has one label."""
        return len(self.labels)

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.labels)} texts of up to {self.texts.tokens.lengths.max()} tokens"


class ClassificationTask:
    """Knows what a batch of labelled texts means."""

    counted = "texts"

    def __init__(self, train: TextRows, labels: Numbers, *, seed: int, digest: str) -> None:
        self.train, self.labels, self.seed, self.digest = train, labels, seed, digest

    @property
    def lengths(self) -> Numbers:
        """Lengths of the training texts, in tokens."""
        return self.train.lengths

    def epoch(self, epoch: int, budget: int) -> list[Numbers]:
        """Return the text numbers of each batch of an epoch, in order."""
        return epoch_batches(self.lengths, budget=budget, seed=self.seed, epoch=epoch, digest=self.digest)

    def batch(self, numbers: Numbers, epoch: int) -> LabelBatch:
        """Return training texts and their labels."""
        return LabelBatch(self.train.batch(numbers), self.labels[numbers])

    def loss(
        self, model: Classifier, batch: LabelBatch, smoothing: float, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's texts."""
        return model.loss(batch.texts, batch.labels, smoothing=smoothing, noise=noise)


def label_chances(model: Classifier, texts: TextRows) -> NDArray[np.float32]:
    """Return the probability of each label for each text, [texts, labels]."""
    made = np.zeros((len(texts), model.config.labels), dtype=np.float32)
    for numbers in sorted_batches(texts.lengths, budget=BUDGET):
        made[numbers] = model.chances(texts.batch(numbers))
    return made


# ---- encoders that learned to read before


@dataclass(frozen=True)
class EncodedBatch:
    """Rows that an encoder reads, and the label of each, or marks where a text may have several."""

    tokens: Tokens
    wanted: Numbers | NDArray[np.float32]
    shares: NDArray[np.float32]  # a text's windows share it
    states: Tensor | None = None  # of the first tokens, where the encoder does not change

    @property
    def count(self) -> float:
        """Texts: each has one label, or marks."""
        return float(self.shares.sum())

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.tokens)} texts of up to {self.tokens.lengths.max()} tokens"


class EncodedTask:
    """Knows what a batch of labelled texts means to an encoder."""

    counted = "texts"

    def __init__(
        self,
        train: Encoded,
        wanted: Numbers | NDArray[np.float32],
        *,
        seed: int,
        digest: str,
        weights: NDArray[np.float32] | None = None,
        kept: KeptStates | None = None,
    ) -> None:
        self.train, self.seed, self.digest, self.kept = train, seed, digest, kept
        self.wanted = wanted[np.asarray(train.owners, dtype=np.int64)]
        self.weights = None if weights is None else torch.from_numpy(weights)

    @property
    def lengths(self) -> Numbers:
        """Lengths of the training rows, in tokens."""
        return self.train.lengths

    def epoch(self, epoch: int, budget: int) -> list[Numbers]:
        """Return the row numbers of each batch of an epoch, in order."""
        return self.train.epoch(budget=budget, seed=self.seed, epoch=epoch, digest=self.digest)

    def batch(self, numbers: Numbers, epoch: int) -> EncodedBatch:
        """Return training rows and their labels."""
        rest = self.wanted[numbers], self.train.shares[numbers]
        if self.kept is None:
            return EncodedBatch(self.train.batch(numbers), *rest)
        return EncodedBatch(Tokens.from_rows([[0]] * len(numbers)), *rest, self.kept.of(numbers))

    def loss(self, model: Encoder, batch: EncodedBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of what is minimised and of the plain loss over the batch's texts."""
        states, rows = encoder_states(model, batch.tokens, noise, batch.states)
        scores, shares = model.label_scores(states, rows, noise).float(), torch.from_numpy(batch.shares)
        wanted = torch.from_numpy(batch.wanted)
        if wanted.dim() == 1:
            return summed_losses(scores, wanted, smoothing, self.weights, shares)
        return _marks_losses(scores, wanted.to(scores.device), smoothing, self.weights, shares.to(scores.device))


def _marks_losses(
    scores: Tensor, marks: Tensor, smoothing: float, weights: Tensor | None, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sums over rows of the losses of all labels, each for itself; weights are those of having a label."""
    plain = binary_cross_entropy_with_logits(scores, marks, reduction="none").sum(1)
    heavier = None if weights is None else weights.to(scores.device)
    aim = marks * (1 - smoothing) + smoothing / 2
    each = binary_cross_entropy_with_logits(scores, aim, pos_weight=heavier, reduction="none").sum(1)
    return (each * shares).sum(), (plain.detach() * shares).sum()
