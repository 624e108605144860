"""Cross-entropy with label smoothing, class weights and row weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.tasks.windows import FloatArray, Indices


def cross_entropy_sums(
    logits: Tensor,  # [N, labels]
    targets: Tensor,  # [N]
    smoothing: float = 0.0,
    class_weights: Tensor | None = None,  # [labels]
    row_weights: Tensor | None = None,  # [N]
) -> tuple[Tensor, Tensor]:
    """Sums over rows of the smoothed loss, weighted by class and row, and of the plain loss, weighted by row.

    >>> loss, plain_loss = cross_entropy_sums(torch.zeros(2, 4), torch.tensor([0, 1]))
    >>> round(plain_loss.item(), 4), bool(loss == plain_loss)
    (2.7726, True)
    """
    targets = targets.to(logits.device)
    plain_losses = cross_entropy(logits, targets, reduction="none")
    losses = plain_losses
    if smoothing:
        losses = (1 - smoothing) * losses - smoothing * torch.log_softmax(logits, dim=1).mean(1)
    if class_weights is not None:
        losses = losses * class_weights.to(logits.device)[targets]
    if row_weights is not None:
        row_weights = row_weights.to(logits.device)
        losses = losses * row_weights
        plain_losses = plain_losses * row_weights
    return losses.sum(), plain_losses.detach().sum()


def balanced_weights(counts: Indices) -> FloatArray:
    """Class weights with which all labels contribute equally; 0 for a label that does not occur.

    >>> balanced_weights(np.array([3, 1, 0])).tolist()
    [0.6666666865348816, 2.0, 0.0]
    """
    occurs = counts > 0
    weights = np.zeros(len(counts), dtype=np.float32)
    weights[occurs] = counts.sum() / (occurs.sum() * counts[occurs])
    return weights
