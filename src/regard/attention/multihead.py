"""Project, split into heads, attend, merge: the only place where tokens exchange information."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear

from regard.attention.attend import SCALED_DOT, attend
from regard.attention.cache import Memory
from regard.attention.masks import PlacedMask
from regard.attention.noise import Noise
from regard.attention.positions import Positions
from regard.attention.rows import Chosen, Rows
from regard.attention.scores import softmax
from regard.attention.tap import Look, show
from regard.attention.trace import watching


class SelfAttention(nn.Module):
    """Tokens of a row look at one another (Vaswani et al. 2017, section 3.2.2)."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.site = ""
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(
        self,
        states: Tensor,  # [N, D]
        rows: Rows,
        mask: PlacedMask | None,
        positions: Positions,
        *,
        noise: Noise | None = None,
        chosen: Chosen | None = None,
    ) -> Tensor:  # [N, D], or [M, D] of chosen ones
        """Return what each token takes from the tokens it may look at, or each chosen one."""
        if chosen is not None:
            return self._of_chosen(states, rows, chosen, mask, positions, noise)
        query, key, value = self._heads(self.qkv(states), rows, 3)
        query, key = positions.rotate(query, rows.slots), positions.rotate(key, rows.slots)
        mixed = attend(query, key, value, mask=mask, dropout=self.dropout, noise=noise, site=self.site)
        return self.out(rows.pack(mixed.transpose(1, 2).flatten(2)))

    def _of_chosen(
        self,
        states: Tensor,
        rows: Rows,
        chosen: Chosen,
        mask: PlacedMask | None,
        positions: Positions,
        noise: Noise | None,
    ) -> Tensor:
        """Return what chosen tokens take from their whole rows; who watches sees all tokens look."""
        width = states.shape[1]
        (query,) = self._heads(self._made(states.index_select(0, chosen.places), 0, width), chosen, 1)
        key, value = self._heads(self._made(states, width, 3 * width), rows, 2)
        query, key = positions.rotate(query, chosen.slots), positions.rotate(key, rows.slots)
        whole = rows.seen_from(chosen)
        mixed = attend(query, key, value, mask=whole, dropout=self.dropout, noise=noise, site=self.site, shown=False)
        if (seen := watching(self.site)) is not None:
            (every,) = self._heads(self._made(states, 0, width), rows, 1)
            look = Look(positions.rotate(every, rows.slots), key, value, mask, None, SCALED_DOT, softmax)
            show(seen, self.site, look)
        return self.out(chosen.pack(mixed.transpose(1, 2).flatten(2)))

    def _heads(self, made: Tensor, rows: Rows, parts: int) -> Tensor:
        """Return queries, keys, values, so many of them, of packed tokens: [parts, B, H, T, d]."""
        return rows.pad(made).unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def _made(self, states: Tensor, first: int, last: int) -> Tensor:
        """Return these of the 3D numbers that are made of each state."""
        bias = self.qkv.bias
        return linear(states, self.qkv.weight[first:last], None if bias is None else bias[first:last])


class CrossAttention(nn.Module):
    """Tokens of one text look at the states of another."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.site = ""
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def remember(self, states: Tensor, rows: Rows) -> Memory:
        """Return keys and values of the states [M, D], made once however often they are looked at."""
        padded = rows.pad(self.key_value(states))  # [S, K, 2D]
        key, value = padded.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each [S, H, K, d]
        return Memory(key, value)

    def forward(
        self,
        states: Tensor,  # [N, D]
        rows: Rows,
        memory: Memory,
        mask: PlacedMask | None,
        *,
        noise: Noise | None = None,
    ) -> Tensor:  # [N, D]
        """Return what each token takes from the memory of the row with its number."""
        query = rows.pad(self.query(states)).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, d]
        mixed = attend(query, memory.key, memory.value, mask=mask, dropout=self.dropout, noise=noise, site=self.site)
        return self.out(rows.pack(mixed.transpose(1, 2).flatten(2)))
