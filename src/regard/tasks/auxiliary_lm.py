"""Language modelling as an auxiliary objective of fine-tuning a causal model (Radford et al. 2018)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.dropout import Noise
from regard.attention.packed_batch import PackedBatch
from regard.models.bert import Bert
from regard.models.layers.losses import vocabulary_loss
from regard.packed_tokens import Tokens
from regard.tasks.base import Objective, WrappedObjective
from regard.tasks.encoder_states import encode_for_training


class AuxiliaryLMObjective(WrappedObjective):
    """Batches of another objective; the loss is L_task + λ · L_lm, from the same hidden states.

    L_lm is the mean loss of all tokens of the batch but the first of each row, and counts for each prediction of the
    task. The output projection is the token embedding.
    """

    def __init__(self, objective: Objective, weight: float) -> None:
        super().__init__(objective)
        self.weight = weight  # λ

    def loss(self, model: Bert, batch: Any, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Sums over the batch's predictions of the loss to minimise and of the task's plain loss."""
        hidden, packed = encode_for_training(model, batch.tokens, noise)
        loss, plain_loss = self.objective.loss(model, replace(batch, cached_states=hidden), smoothing, noise)
        lm_loss = mean_lm_loss(model, hidden, batch.tokens, packed)
        return loss + self.weight * batch.num_predictions * lm_loss, plain_loss


def mean_lm_loss(model: Bert, hidden: Tensor, tokens: Tokens, packed: PackedBatch) -> Tensor:
    """Mean cross-entropy of the token after each token, by the hidden states of all tokens [N, D]; 0 without any."""
    is_last = torch.zeros(packed.num_tokens, dtype=torch.bool, device=hidden.device)
    is_last[packed.last_indices] = True
    predicting = torch.nonzero(~is_last)[:, 0]
    if not len(predicting):
        return hidden.sum() * 0
    ids = torch.from_numpy(tokens.ids.astype("int64")).to(hidden.device)
    loss, _ = vocabulary_loss(hidden[predicting], model.token_embedding.weight, None, ids[predicting + 1])
    return loss / len(predicting)
