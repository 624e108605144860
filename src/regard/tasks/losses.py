"""Texts as rows that an encoder reads: special tokens around them, long ones in overlapping windows, nothing silent.

What classifying, tagging and answering share.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.tasks.windows import Floats, Numbers


def cross_entropy_sums(
    logits: Tensor,
    targets: Tensor,
    smoothing: float = 0.0,
    class_weights: Tensor | None = None,
    row_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # scores [N, labels], wanted [N], weights [labels], shares [N]
    """Return the sums over rows of what is minimised – smoothed, weighed by label and row – and of the plain loss.

    >>> minimised, plain = cross_entropy_sums(torch.zeros(2, 4), torch.tensor([0, 1]))
    >>> round(plain.item(), 4), bool(minimised == plain)
    (2.7726, True)
    """
    targets = targets.to(logits.device)
    each = cross_entropy(logits, targets, reduction="none")
    plain = each
    if smoothing:
        each = (1 - smoothing) * each - smoothing * torch.log_softmax(logits, dim=1).mean(1)
    if class_weights is not None:
        each = each * class_weights.to(logits.device)[targets]
    if row_weights is not None:
        each, plain = each * row_weights.to(logits.device), plain * row_weights.to(logits.device)
    return each.sum(), plain.detach().sum()


def balanced_weights(counts: Numbers) -> Floats:
    """Return a weight for each label, so that all labels weigh the same in all; what never occurs weighs nothing.

    >>> balanced_weights(np.array([3, 1, 0])).tolist()
    [0.6666666865348816, 2.0, 0.0]
    """
    occurs = counts > 0
    made = np.zeros(len(counts), dtype=np.float32)
    made[occurs] = counts.sum() / (occurs.sum() * counts[occurs])
    return made
