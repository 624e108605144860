"""Classification as a task: labelled texts in, batches and measures out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from regard.attention.dropout import Noise
from regard.models.bert import Bert
from regard.models.rnn_text import RnnClassifier, TextBatch
from regard.tasks.base import RowObjective
from regard.tasks.losses import cross_entropy_sums
from regard.tasks.rnn_text import RnnTexts
from regard.tasks.windows import CachedStates, EncodedTexts, encode_for_training
from regard.tokens import Tokens

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class RnnLabelBatch:
    """Texts and the numbers of their labels."""

    texts: TextBatch
    labels: Numbers

    @property
    def num_predictions(self) -> int:
        """Texts: each has one label."""
        return len(self.labels)

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.labels)} texts of up to {self.texts.tokens.lengths.max()} tokens"


class RnnClassificationObjective(RowObjective[RnnTexts]):
    """Knows what a batch of labelled texts means."""

    unit = "texts"

    def __init__(
        self,
        train: RnnTexts,
        labels: Numbers,
        *,
        seed: int,
        digest: str,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(train, seed=seed, digest=digest, weights=weights)
        self.labels = labels

    def batch(self, numbers: Numbers, epoch: int) -> RnnLabelBatch:
        """Return training texts and their labels."""
        return RnnLabelBatch(self.train.batch(numbers), self.labels[numbers])

    def loss(
        self, model: RnnClassifier, batch: RnnLabelBatch, smoothing: float, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's texts."""
        if self.weights is None:
            return model.loss(batch.texts, batch.labels, smoothing=smoothing, noise=noise)
        scores = model.output(model(batch.texts, noise)).float()
        return cross_entropy_sums(scores, torch.from_numpy(batch.labels), smoothing, self.weights)


def label_probabilities(model: RnnClassifier, texts: RnnTexts) -> NDArray[np.float32]:
    """Return the probability of each label for each text, [texts, labels]."""
    made = np.zeros((len(texts), model.config.num_labels), dtype=np.float32)
    for numbers, some in texts.batches():
        made[numbers] = model.probabilities(some)
    return made


# ---- encoders that learned to read before


@dataclass(frozen=True)
class LabelBatch:
    """Rows that an encoder reads, and the label of each, or marks where a text may have several."""

    tokens: Tokens
    targets: Numbers | NDArray[np.float32]
    row_weights: NDArray[np.float32]  # a text's windows share it
    cached_states: Tensor | None = None  # of the first tokens, where the encoder does not change

    @property
    def num_predictions(self) -> float:
        """Texts: each has one label, or marks."""
        return float(self.row_weights.sum())

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.tokens)} texts of up to {self.tokens.lengths.max()} tokens"


class ClassificationObjective(RowObjective[EncodedTexts]):
    """Knows what a batch of labelled texts means to an encoder."""

    unit = "texts"

    def __init__(
        self,
        train: EncodedTexts,
        wanted: Numbers | NDArray[np.float32],
        *,
        seed: int,
        digest: str,
        weights: NDArray[np.float32] | None = None,
        kept: CachedStates | None = None,
    ) -> None:
        super().__init__(train, seed=seed, digest=digest, weights=weights)
        self.cached_states = kept
        self.targets = wanted[np.asarray(train.text_indices, dtype=np.int64)]

    def batch(self, numbers: Numbers, epoch: int) -> LabelBatch:
        """Return training rows and their labels."""
        rest = self.targets[numbers], self.train.row_weights[numbers]
        if self.cached_states is None:
            return LabelBatch(self.train.batch(numbers), *rest)
        return LabelBatch(Tokens.from_rows([[0]] * len(numbers)), *rest, self.cached_states.get(numbers))

    def loss(self, model: Bert, batch: LabelBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of what is minimised and of the plain loss over the batch's texts."""
        firsts = batch.tokens.offsets[:-1].astype(np.int64) if model.config.classifies_first_token else None
        states, rows = encode_for_training(model, batch.tokens, noise, batch.cached_states, firsts)
        scores, shares = model.head_logits(states, rows, noise).float(), torch.from_numpy(batch.row_weights)
        wanted = torch.from_numpy(batch.targets)
        if wanted.dim() == 1:
            return cross_entropy_sums(scores, wanted, smoothing, self.weights, shares)
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
