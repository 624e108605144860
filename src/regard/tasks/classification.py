"""Text classification: batches and losses of encoders and of models with their own vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from regard.attention.dropout import Noise
from regard.models.bert import Bert
from regard.models.text_classifier import TextBatch, TextClassifierModel
from regard.packed_tokens import Tokens
from regard.tasks.base import RowObjective
from regard.tasks.encoder_states import encode_for_training, pooled_indices
from regard.tasks.losses import cross_entropy_sums
from regard.tasks.text_model import PreprocessedTexts
from regard.tasks.windows import EncodedTexts

Indices = NDArray[np.int64]
Labels = Indices | NDArray[np.float32]  # [texts], or a label matrix [texts, labels]


@dataclass(frozen=True)
class TextLabelBatch:
    """Texts and the indices of their labels."""

    texts: TextBatch
    labels: Indices

    @property
    def num_predictions(self) -> int:
        """Number of texts: each has one label."""
        return len(self.labels)

    @property
    def description(self) -> str:
        """Size of the batch, as text."""
        return f"{len(self.labels)} texts of up to {self.texts.tokens.lengths.max()} tokens"


class TextClassificationObjective(RowObjective[PreprocessedTexts, Indices]):
    """Cross-entropy of the labels that a text classifier with its own vocabulary predicts."""

    unit = "texts"

    def batch(self, indices: Indices, epoch: int) -> TextLabelBatch:
        """Training texts and their labels."""
        return TextLabelBatch(self.train.batch(indices), self.targets[indices])

    def loss(
        self, model: TextClassifierModel, batch: TextLabelBatch, smoothing: float, noise: Noise | None
    ) -> tuple[Tensor, Tensor]:
        """Sums of the smoothed and the plain loss over the batch's texts."""
        if self.class_weights is None:
            return model.loss(batch.texts, batch.labels, smoothing=smoothing, noise=noise)
        logits = model.label_logits(batch.texts, noise).float()
        return cross_entropy_sums(logits, torch.from_numpy(batch.labels), smoothing, self.class_weights)


# ---- pretrained encoders


@dataclass(frozen=True)
class LabelBatch:
    """Rows of an encoder with their labels, or with a label matrix where a text may have several."""

    tokens: Tokens
    targets: Labels
    row_weights: NDArray[np.float32]  # [B], the windows of a text share a weight of 1
    cached_states: Tensor | None = None  # of the tokens that are pooled, if the encoder is frozen

    @property
    def num_predictions(self) -> float:
        """Number of texts: each has one label, or one row of the label matrix."""
        return float(self.row_weights.sum())

    @property
    def description(self) -> str:
        """Size of the batch, as text."""
        return f"{len(self.tokens)} texts of up to {self.tokens.lengths.max()} tokens"


class ClassificationObjective(RowObjective[EncodedTexts, Labels]):
    """Cross-entropy of the labels that an encoder predicts; binary cross-entropy for a label matrix."""

    unit = "texts"

    def targets_of_rows(self, targets: Labels) -> Labels:
        """Labels of the text of each row."""
        return targets[np.asarray(self.train.text_indices, dtype=np.int64)]

    def batch(self, indices: Indices, epoch: int) -> LabelBatch:
        """Training rows and their labels."""
        targets = self.targets[indices]
        row_weights = self.train.row_weights[indices]
        if self.cached_states is None:
            return LabelBatch(self.train.batch(indices), targets, row_weights=row_weights)
        return LabelBatch(
            Tokens.from_rows([[0] * length for length in self.cached_states.lengths(indices)]),
            targets,
            row_weights=row_weights,
            cached_states=self.cached_states.get(indices),
        )

    def loss(self, model: Bert, batch: LabelBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Sums of the loss to minimise and of the plain loss over the batch's texts."""
        pooled = pooled_indices(model.config, batch.tokens)
        hidden, packed = encode_for_training(model, batch.tokens, noise, batch.cached_states, pooled)
        logits = model.head_logits(hidden, packed, noise).float()
        row_weights = torch.from_numpy(batch.row_weights)
        targets = torch.from_numpy(batch.targets)
        if targets.dim() == 1:
            return cross_entropy_sums(logits, targets, smoothing, self.class_weights, row_weights)
        label_matrix = targets.to(logits.device)
        return _multi_label_sums(logits, label_matrix, smoothing, self.class_weights, row_weights.to(logits.device))


def _multi_label_sums(
    logits: Tensor, label_matrix: Tensor, smoothing: float, class_weights: Tensor | None, row_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums over rows of the binary losses of all labels, smoothed and plain; class weights apply to positive labels."""
    plain_losses = binary_cross_entropy_with_logits(logits, label_matrix, reduction="none").sum(1)
    positive_weights = None if class_weights is None else class_weights.to(logits.device)
    smoothed_targets = label_matrix * (1 - smoothing) + smoothing / 2
    losses = binary_cross_entropy_with_logits(
        logits, smoothed_targets, pos_weight=positive_weights, reduction="none"
    ).sum(1)
    return (losses * row_weights).sum(), (plain_losses.detach() * row_weights).sum()
