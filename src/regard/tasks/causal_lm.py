"""Causal language modelling as a task: documents end to end in rows, each token told from those before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.attention.dropout import Noise
from regard.models.gpt import Gpt
from regard.tasks.metrics import perplexity
from regard.tasks.token_stream import EVALUATED, Numbers, StreamObjective, TokenStream
from regard.tokens import Tokens


@dataclass(frozen=True)
class CausalLMBatch:
    """Rows of running text."""

    tokens: Tokens

    @property
    def num_predictions(self) -> int:
        """Predictions: all tokens of a row but the first."""
        return len(self.tokens.ids) - len(self.tokens)

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.tokens)} rows of {self.tokens.lengths.max()} tokens"


class CausalLMObjective(StreamObjective):
    """Every epoch cuts the text at other places; where rows are documents, each begins at a boundary in every epoch."""

    unit = "tokens"

    def __init__(self, train: TokenStream, *, seed: int, whole: bool = False) -> None:
        super().__init__(train, seed=seed)
        self.whole = whole

    def epoch_offset(self, epoch: int) -> int:
        """Return the token that an epoch's first row begins with: documents begin after the last boundary."""
        return len(self.train.ids) - 1 if self.whole else super().epoch_offset(epoch)

    def batch(self, numbers: Numbers, epoch: int) -> CausalLMBatch:
        """Return training rows as this epoch cuts them."""
        return CausalLMBatch(self.train.rows(numbers, self.epoch_offset(epoch)))

    def loss(self, model: Gpt, batch: CausalLMBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the batch's predictions."""
        return model.loss(batch.tokens, smoothing=smoothing, noise=noise)


@torch.no_grad()
def total_loss(model: Gpt, text: TokenStream) -> float:
    """Return the loss of all tokens of a text together, in nats: each is told once, from those before it in its row."""
    ids = np.insert(text.ids, 0, text.ids[-1])  # a boundary stands before the first document, too
    rows = [ids[first : first + text.length + 1] for first in range(0, len(text.ids), text.length)]
    parts = (rows[first : first + EVALUATED] for first in range(0, len(rows), EVALUATED))
    return sum(float(model.loss(Tokens.from_rows(part))[1]) for part in parts)


def causal_lm_scores(model: Gpt, stream: TokenStream, num_characters: int) -> dict[str, float]:
    """Return the loss of a text in nats, a token and a character, and the perplexity of a token."""
    total = total_loss(model, stream)
    loss = total / len(stream.ids)
    return {"loss": loss, "loss_per_character": total / num_characters, "perplexity": perplexity(loss, 1)}
