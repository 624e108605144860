"""The weights of attention, explicitly: the plain kernel and the tap share this."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.masks import PlacedMask
from regard.attention.scores import Normalize, Score, softmax


def explicit_weights(
    query: Tensor,  # [B, H, Q, d]
    key: Tensor,  # [B, H, K, d]
    mask: PlacedMask | None,
    bias: Tensor | None,
    score: Score,
    normalize: Normalize,
) -> Tensor:
    """Return the weights [B, H, Q, K]."""
    scores = score(query, key)
    if bias is not None:
        scores = scores + bias
    if normalize is not softmax:
        return normalize(scores, None if mask is None else mask.dense)
    if mask is None:
        return torch.softmax(scores, dim=-1)
    # the least number, not -∞: a masked place gets exactly zero next to any allowed one, and no row becomes NaN
    weights = torch.softmax(scores + mask.additive(scores.dtype), dim=-1)
    return weights if mask.blank is None else weights.masked_fill(mask.blank, 0)
