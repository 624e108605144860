"""Causal language modelling: each token of a stream is predicted from the tokens before it in its row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from regard.attention.dropout import Noise
from regard.decoding.generator import LanguageModel
from regard.models.gpt import Gpt
from regard.packed_tokens import Tokens
from regard.tasks.predictions import PredictedNextTokens
from regard.tasks.token_stream import EVALUATION_ROWS, Indices, StreamObjective, TokenStream


@dataclass(frozen=True)
class CausalLMBatch:
    """Rows of a stream."""

    tokens: Tokens

    @property
    def num_predictions(self) -> int:
        """All tokens of a row but the first."""
        return len(self.tokens.ids) - len(self.tokens)

    @property
    def description(self) -> str:
        """Size of the batch, as text."""
        return f"{len(self.tokens)} rows of {self.tokens.lengths.max()} tokens"


class CausalLMObjective(StreamObjective):
    """Next-token prediction; where rows are whole documents, each starts after a boundary in every epoch."""

    unit = "tokens"

    def __init__(self, train: TokenStream, *, seed: int, whole_documents: bool = False) -> None:
        super().__init__(train, seed=seed)
        self.whole_documents = whole_documents

    def epoch_offset(self, epoch: int) -> int:
        """Stream index of the first token of an epoch; of whole documents, the last boundary."""
        return len(self.train.ids) - 1 if self.whole_documents else super().epoch_offset(epoch)

    def batch(self, indices: Indices, epoch: int) -> CausalLMBatch:
        """Training rows at the offset of this epoch."""
        return CausalLMBatch(self.train.rows(indices, self.epoch_offset(epoch)))

    def loss(self, model: Gpt, batch: CausalLMBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Sums of the smoothed and the plain loss over the batch's predictions."""
        return model.loss(batch.tokens, smoothing=smoothing, noise=noise)


def total_loss(model: LanguageModel[Any], stream: TokenStream) -> float:
    """Loss of all tokens of a stream, in nats: each is predicted once, from those before it in its row."""
    ids = np.insert(stream.ids, 0, stream.ids[-1])  # a boundary precedes the first document, too
    rows = [ids[start : start + stream.length + 1] for start in range(0, len(stream.ids), stream.length)]
    batches = [rows[start : start + EVALUATION_ROWS] for start in range(0, len(rows), EVALUATION_ROWS)]
    return sum(model.summed_loss(Tokens.from_rows(batch)) for batch in batches)


def predict_next_tokens(model: LanguageModel[Any], stream: TokenStream, num_characters: int) -> PredictedNextTokens:
    """Predict all tokens of a stream, whose text has `num_characters`."""
    total = total_loss(model, stream)
    return PredictedNextTokens(loss=total / len(stream.ids), loss_per_character=total / num_characters)
