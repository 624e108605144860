"""Classification as a task: labelled texts in, batches and measures out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from regard.attention.noise import Noise
from regard.models.classifier import Classifier
from regard.models.encoder import Encoder
from regard.models.reader import Texts
from regard.tasks.base import RowTask
from regard.tasks.encoding import Encoded, KeptStates, encoder_states, summed_losses
from regard.tasks.perception import TextRows
from regard.tokens import Tokens

Numbers = NDArray[np.int64]


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


class ClassificationTask(RowTask[TextRows]):
    """Knows what a batch of labelled texts means."""

    counted = "texts"

    def __init__(
        self,
        train: TextRows,
        labels: Numbers,
        *,
        seed: int,
        digest: str,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(train, seed=seed, digest=digest, weights=weights)
        self.labels = labels

    def batch(self, numbers: Numbers, epoch: int) -> LabelBatch:
        """Return training texts and their labels."""
        return LabelBatch(self.train.batch(numbers), self.labels[numbers])

    def loss(
        self, model: Classifier, batch: LabelBatch, smoothing: float, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's texts."""
        if self.weights is None:
            return model.loss(batch.texts, batch.labels, smoothing=smoothing, noise=noise)
        scores = model.output(model(batch.texts, noise)).float()
        return summed_losses(scores, torch.from_numpy(batch.labels), smoothing, self.weights)


def label_chances(model: Classifier, texts: TextRows) -> NDArray[np.float32]:
    """Return the probability of each label for each text, [texts, labels]."""
    made = np.zeros((len(texts), model.config.labels), dtype=np.float32)
    for numbers, some in texts.batches():
        made[numbers] = model.chances(some)
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


class EncodedTask(RowTask[Encoded]):
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
        super().__init__(train, seed=seed, digest=digest, weights=weights)
        self.kept = kept
        self.wanted = wanted[np.asarray(train.owners, dtype=np.int64)]

    def batch(self, numbers: Numbers, epoch: int) -> EncodedBatch:
        """Return training rows and their labels."""
        rest = self.wanted[numbers], self.train.shares[numbers]
        if self.kept is None:
            return EncodedBatch(self.train.batch(numbers), *rest)
        return EncodedBatch(Tokens.from_rows([[0]] * len(numbers)), *rest, self.kept.of(numbers))

    def loss(self, model: Encoder, batch: EncodedBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of what is minimised and of the plain loss over the batch's texts."""
        firsts = batch.tokens.offsets[:-1].astype(np.int64) if model.config.scores_firsts else None
        states, rows = encoder_states(model, batch.tokens, noise, batch.states, firsts)
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
