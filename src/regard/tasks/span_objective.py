"""Objective of extractive question answering: batches of passages and the loss of answer spans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise
from regard.attention.packed_batch import PackedBatch
from regard.models.bert import Bert
from regard.packed_tokens import Tokens
from regard.tasks.base import RowObjective
from regard.tasks.encoder_states import encode_for_training
from regard.tasks.question_answering import MASKED_LOGIT, EncodedPassages, answerable_positions

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class SpanBatch:
    """Rows and the positions of their answers."""

    tokens: Tokens
    targets: Indices  # [rows, 2], first and last position
    allowed: NDArray[np.bool_]  # [tokens], whether an answer may start or end there
    cached_states: Tensor | None = None

    @property
    def num_predictions(self) -> int:
        """Number of rows: each has a start and an end."""
        return len(self.targets)

    @property
    def description(self) -> str:
        """Size of the batch, as text."""
        return f"{len(self.tokens)} windows of up to {self.tokens.lengths.max()} tokens"


class SpanObjective(RowObjective[EncodedPassages, Indices]):
    """Cross-entropy of the start and the end of answers."""

    unit = "windows"

    def batch(self, indices: Indices, epoch: int) -> SpanBatch:
        """Training rows and their answers."""
        return SpanBatch(
            self.train.batch(indices),
            self.targets[indices],
            allowed=answerable_positions(self.train, indices),
            cached_states=None if self.cached_states is None else self.cached_states.get(indices),
        )

    def loss(self, model: Bert, batch: SpanBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Sum over rows of the mean loss of start and end, twice: there is no label smoothing."""
        hidden, packed = encode_for_training(model, batch.tokens, noise, batch.cached_states)
        logprobs = torch.log_softmax(span_logits(model, batch, hidden, packed, noise), dim=1)
        targets = torch.from_numpy(batch.targets).to(logprobs.device)
        loss = -logprobs.gather(1, targets[:, None])[:, 0].mean(1).sum()
        return loss, loss.detach()


def span_logits(model: Bert, batch: SpanBatch, hidden: Tensor, packed: PackedBatch, noise: Noise | None) -> Tensor:
    """Start and end logits of each position, [B, T, 2]; −10,000 where no answer is possible."""
    logits = model.head_logits(hidden, packed, noise).float()
    is_forbidden = torch.from_numpy(~batch.allowed).to(logits.device)
    padded = packed.pad(logits.masked_fill(is_forbidden[:, None], MASKED_LOGIT))
    is_token = torch.arange(packed.max_length, device=logits.device)[None] < packed.lengths[:, None]
    return padded.masked_fill(~is_token[:, :, None], MASKED_LOGIT)
