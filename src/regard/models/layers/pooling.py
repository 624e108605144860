"""Reading a text: layers from one end to the other, a mix of layers, one state for a whole text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.attend import attend
from regard.attention.packed_batch import PackedBatch
from regard.attention.scores import Dot

POOLING = "pooling"  # the site where a text's own query looks at its tokens
DOT = Dot()


class ScalarMix(nn.Module):
    """One vector of several layers: γ Σ softmax(s)ₖ · layerₖ, each layer normalised first (Peters et al. 2018, eq. 1).

    >>> ScalarMix(2)(torch.tensor([[[1.0, 3.0], [2.0, 7.0]]])).round(decimals=3).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, layers: Tensor) -> Tensor:
        """Return the mix [N, F] of layers [N, K, F]."""
        shares = self.layer_weights().to(layers.dtype)
        return self.scale * torch.einsum("k,nkf->nf", shares, functional.layer_norm(layers, layers.shape[-1:]))

    def layer_weights(self) -> Tensor:
        """Return how much of each layer is in the mix, [K] float32."""
        return torch.softmax(self.weights.float(), dim=0)


class Pooling(nn.Module):
    """One state of all states of a row: their mean, their maximum, or what a learned query takes of them.

    The query looks through one more layer (Yang et al. 2016, eq. 5–7), by `attend`, so that a trace shows what counted.
    """

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "attention":
            self.key = nn.Linear(width, width)
            self.query = nn.Linear(width, 1, bias=False)

    def forward(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """Return [B, D] for states [N, D]; every row has at least one token."""
        padded = batch.pad(hidden)  # [B, T, D]
        if self.kind == "attention":
            key = batch.pad(torch.tanh(self.key(hidden))).unsqueeze(1)
            query = self.query.weight.expand(batch.num_rows, 1, 1, -1)
            mask = batch.cross_mask(_alone(batch))
            return attend(query, key, padded.unsqueeze(1), mask=mask, score=DOT, site=POOLING)[:, 0, 0]
        ended = batch.padded_positions >= batch.lengths[:, None]  # [B, T]
        if self.kind == "max":
            return padded.masked_fill(ended.unsqueeze(2), torch.finfo(padded.dtype).min).amax(1)
        return padded.sum(1) / batch.lengths[:, None]


def _alone(batch: PackedBatch) -> PackedBatch:
    """Return rows of one token each, as many as there are."""
    return PackedBatch(torch.ones_like(batch.lengths).cpu().numpy(), batch.lengths.device)
