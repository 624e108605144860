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
from regard.tasks.predictions import PredictedNextTokens, TokenBlocks
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
    return float(block_losses(model, stream).losses.sum())


def block_losses(model: LanguageModel[Any], stream: TokenStream, min_blocks: int = 1) -> TokenBlocks:
    """Losses of the blocks of a stream, at least `min_blocks` of them where there are as many rows."""
    ids = np.insert(stream.ids, 0, stream.ids[-1])  # a boundary precedes the first document, too
    rows = [ids[start : start + stream.length + 1] for start in range(0, len(stream.ids), stream.length)]
    block_size = max(1, min(EVALUATION_ROWS, len(rows) // min_blocks))
    blocks = [rows[start : start + block_size] for start in range(0, len(rows), block_size)]
    return TokenBlocks(
        losses=np.array([model.summed_loss(Tokens.from_rows(block)) for block in blocks]),
        tokens=np.array([sum(len(row) - 1 for row in block) for block in blocks]),
    )


def predict_next_tokens(
    model: LanguageModel[Any], stream: TokenStream, num_characters: int, *, min_blocks: int = 1
) -> PredictedNextTokens:
    """Predict all tokens of a stream, whose text has `num_characters`, in so many blocks at least."""
    blocks = block_losses(model, stream, min_blocks)
    total = float(blocks.losses.sum())
    return PredictedNextTokens(loss=total / len(stream.ids), loss_per_character=total / num_characters, blocks=blocks)
