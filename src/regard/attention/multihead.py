"""Project, split into heads, attend, merge: the only place where tokens exchange information."""

from __future__ import annotations

from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.cache import Memory
from regard.attention.masks import PlacedMask
from regard.attention.noise import Noise
from regard.attention.positions import Positions
from regard.attention.rows import Rows


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
    ) -> Tensor:  # [N, D]
        """Return what each token takes from the tokens it may look at."""
        padded = rows.pad(self.qkv(states))  # [B, T, 3D]
        query, key, value = padded.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, H, T, d]
        query, key = positions.rotate(query, rows.slots), positions.rotate(key, rows.slots)
        mixed = attend(query, key, value, mask=mask, dropout=self.dropout, noise=noise, site=self.site)
        return self.out(rows.pack(mixed.transpose(1, 2).flatten(2)))


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
