"""Reading a text: layers from one end to the other, a mix of layers, one state for a whole text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.attend import attend
from regard.attention.noise import Noise, drop
from regard.attention.rows import Rows
from regard.attention.scores import Dot
from regard.blocks.cells import CELLS, Cell
from regard.blocks.recurrent import Walk, blank

POOLING = "pooling"  # the site where a text's own query looks at its tokens
DOT = Dot()


class Reading(nn.Module):
    """Cells above one another that read rows from one end; what every layer says of every token is there to be used.

    Whole sequences in fused kernels. Nothing of a row that has ended is used, so rows of unequal length need no mask.
    """

    def __init__(self, cell: str, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CELLS[cell](width, width) for _ in range(layers))

    def forward(self, states: Tensor, walk: Walk, dropout: float, noise: Noise | None, site: str) -> list[Tensor]:
        """Return each layer's outputs step by step, [T, B, D], for states [N, D]."""
        steps, made = walk.spread(states), list[Tensor]()
        for number, layer in enumerate(self.layers):
            cell: Cell = layer  # type: ignore[assignment]
            given = drop(made[-1], dropout, noise, f"{site}.{number}") if made else steps
            made.append(cell.run(given, blank(cell, walk.rows.count), None)[0])
        return made


class Mix(nn.Module):
    """One vector of several layers: γ Σ softmax(s)ₖ · layerₖ, each layer normalised first (Peters et al. 2018, eq. 1).

    >>> Mix(2)(torch.tensor([[[1.0, 3.0], [2.0, 7.0]]])).round(decimals=3).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, layers: Tensor) -> Tensor:
        """Return the mix [N, F] of layers [N, K, F]."""
        shares = self.shares().to(layers.dtype)
        return self.scale * torch.einsum("k,nkf->nf", shares, functional.layer_norm(layers, layers.shape[-1:]))

    def shares(self) -> Tensor:
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

    def forward(self, states: Tensor, rows: Rows) -> Tensor:
        """Return [B, D] for states [N, D]; every row has at least one token."""
        padded = rows.pad(states)  # [B, T, D]
        if self.kind == "attention":
            key = rows.pad(torch.tanh(self.key(states))).unsqueeze(1)
            query = self.query.weight.expand(rows.count, 1, 1, -1)
            mask = rows.seen_from(_alone(rows))
            return attend(query, key, padded.unsqueeze(1), mask=mask, score=DOT, site=POOLING)[:, 0, 0]
        ended = rows.slots >= rows.lengths[:, None]  # [B, T]
        if self.kind == "max":
            return padded.masked_fill(ended.unsqueeze(2), torch.finfo(padded.dtype).min).amax(1)
        return padded.sum(1) / rows.lengths[:, None]


def _alone(rows: Rows) -> Rows:
    """Return rows of one token each, as many as there are."""
    return Rows(torch.ones_like(rows.lengths).cpu().numpy(), rows.lengths.device)
