"""Scalar mix of layers, and pooling of a text's hidden states into one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.attend import attend
from regard.attention.packed_batch import PackedBatch
from regard.attention.scores import Dot, Normalize, softmax
from regard.attention.sites import POOLING_SITE

DOT = Dot()


class ScalarMix(nn.Module):
    """γ Σ softmax(s)ₖ · layerₖ, each layer normalised first (Peters et al. 2018, eq. 1).

    >>> ScalarMix(2)(torch.tensor([[[1.0, 3.0], [2.0, 7.0]]])).round(decimals=3).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, layers: Tensor) -> Tensor:
        """Mix layers [N, K, F] into [N, F]."""
        layer_weights = self.layer_weights().to(layers.dtype)
        normed = functional.layer_norm(layers, layers.shape[-1:])
        return self.scale * torch.einsum("k,nkf->nf", layer_weights, normed)

    def layer_weights(self) -> Tensor:
        """Softmax weights of the layers, [K] float32."""
        return torch.softmax(self.weights.float(), dim=0)


class Pooling(nn.Module):
    """Pool the hidden states of each sequence: mean, maximum, last states, or attention with a learned query.

    The last state of a second direction, which reads backwards, is that of the first token. Attention pooling compares
    the query with keys from one more layer (Yang et al. 2016, eq. 5–7). It calls `attend`, so that a trace captures its
    weights.
    """

    def __init__(self, kind: str, hidden_size: int, num_directions: int = 1, *, normalize: Normalize = softmax) -> None:
        super().__init__()
        self.kind = kind
        self.num_directions = num_directions
        self.normalize = normalize
        if kind == "attention":
            self.key = nn.Linear(hidden_size, hidden_size)
            self.query = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """Pool hidden states [N, D] into [B, D]; every sequence has at least one token."""
        if self.kind == "last":
            return self._last_states(hidden, batch)
        padded = batch.pad(hidden)  # [B, T, D]
        if self.kind == "attention":
            key = batch.pad(torch.tanh(self.key(hidden))).unsqueeze(1)
            query = self.query.weight.expand(batch.num_rows, 1, 1, -1)
            value = padded.unsqueeze(1)
            mask = batch.pooling_mask()
            context = attend(query, key, value, mask=mask, score=DOT, normalize=self.normalize, site=POOLING_SITE)
            return context[:, 0, 0]
        is_padding = batch.is_padding.unsqueeze(2)
        if self.kind == "max":
            return padded.masked_fill(is_padding, torch.finfo(padded.dtype).min).amax(1)
        return padded.masked_fill(is_padding, 0).sum(1) / batch.lengths[:, None]

    def _last_states(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        last = hidden[batch.last_indices]
        if self.num_directions == 1:
            return last
        forward, _ = last.chunk(2, dim=1)
        _, backward = hidden[batch.first_indices].chunk(2, dim=1)
        return torch.cat([forward, backward], dim=1)
