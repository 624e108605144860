"""ELMo: bidirectional language modelling (Peters et al. 2018).

`ElmoObjective` predicts each token of a stream from the tokens on its left and from those on its right. The layers of
the trained model are features of other ones (`frozen_features`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from regard.attention.dropout import Noise
from regard.models.elmo import Elmo
from regard.packed_tokens import Tokens
from regard.tasks.predictions import PredictedBothDirections
from regard.tasks.token_stream import EVALUATION_ROWS, Indices, StreamObjective, TokenStream

DEFAULT_SEQUENCE_LENGTH = 64  # of training


@dataclass(frozen=True)
class ElmoBatch:
    """Rows of a stream."""

    rows: Tokens

    @property
    def num_predictions(self) -> int:
        """All tokens of a row but one, in each direction."""
        return 2 * (len(self.rows.ids) - len(self.rows))

    @property
    def description(self) -> str:
        """Size of the batch, as text."""
        return f"{len(self.rows)} rows of {self.rows.lengths.max()} tokens"


class ElmoObjective(StreamObjective):
    """Prediction of each token from its left and from its right context."""

    def batch(self, indices: Indices, epoch: int) -> ElmoBatch:
        """Training rows at the offset of this epoch."""
        return ElmoBatch(self.train.rows(indices, self.epoch_offset(epoch)))

    def loss(self, model: Elmo, batch: ElmoBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Sums of the smoothed and the plain loss over the batch's predictions."""
        return model.loss(batch.rows, smoothing=smoothing, noise=noise)


def direction_losses(model: Elmo, stream: TokenStream) -> tuple[float, float]:
    """Plain loss per token of the forward and of the backward language model."""
    sums = np.zeros(2)
    count = 0
    for start in range(0, len(stream), EVALUATION_ROWS):
        rows = stream.rows(np.arange(start, min(start + EVALUATION_ROWS, len(stream))))
        sums += [float(loss) for loss in model.losses(rows)]
        count += len(rows.ids) - len(rows)
    forward, backward = sums / count
    return float(forward), float(backward)


def predict_both_directions(model: Elmo, stream: TokenStream) -> PredictedBothDirections:
    """Predict the tokens of a stream from the left and from the right; the loss is the mean of both directions."""
    forward, backward = direction_losses(model, stream)
    return PredictedBothDirections(loss=(forward + backward) / 2, forward_loss=forward, backward_loss=backward)
