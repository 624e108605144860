"""Project, split into heads, attend, merge: the only place where tokens exchange information."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear

from regard.attention.attend import SCALED_DOT, attend
from regard.attention.cache import CrossKeyValues
from regard.attention.capture import AttentionCall, capture
from regard.attention.dropout import Noise
from regard.attention.masks import BoundMask
from regard.attention.packed_batch import PackedBatch, SelectedTokens
from regard.attention.positions import Positions
from regard.attention.scores import softmax
from regard.attention.trace import active_trace


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
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        mask: BoundMask | None,
        positions: Positions,
        *,
        noise: Noise | None = None,
        selected: SelectedTokens | None = None,
    ) -> Tensor:  # [N, D], or [M, D] of chosen ones
        """Return what each token takes from the tokens it may look at, or each chosen one."""
        if selected is not None:
            return self._of_chosen(hidden, batch, selected, mask, positions, noise)
        query, key, value = self._heads(self.qkv(hidden), batch, 3)
        query, key = positions.rotate(query, batch.padded_positions), positions.rotate(key, batch.padded_positions)
        mixed = attend(query, key, value, mask=mask, dropout=self.dropout, noise=noise, site=self.site)
        return self.out(batch.pack(mixed.transpose(1, 2).flatten(2)))

    def _of_chosen(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        selected: SelectedTokens,
        mask: BoundMask | None,
        positions: Positions,
        noise: Noise | None,
    ) -> Tensor:
        """Return what chosen tokens take from their whole rows; who watches sees all tokens look."""
        width = hidden.shape[1]
        (query,) = self._heads(self._made(hidden.index_select(0, selected.indices), 0, width), selected, 1)
        key, value = self._heads(self._made(hidden, width, 3 * width), batch, 2)
        query, key = positions.rotate(query, selected.padded_positions), positions.rotate(key, batch.padded_positions)
        whole = batch.cross_mask(selected)
        mixed = attend(
            query, key, value, mask=whole, dropout=self.dropout, noise=noise, site=self.site, is_traced=False
        )
        if (seen := active_trace(self.site)) is not None:
            (every,) = self._heads(self._made(hidden, 0, width), batch, 1)
            look = AttentionCall(
                positions.rotate(every, batch.padded_positions), key, value, mask, None, SCALED_DOT, softmax
            )
            capture(seen, self.site, look)
        return self.out(selected.pack(mixed.transpose(1, 2).flatten(2)))

    def _heads(self, made: Tensor, batch: PackedBatch, parts: int) -> Tensor:
        """Return queries, keys, values, so many of them, of packed tokens: [parts, B, H, T, d]."""
        return batch.pad(made).unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def _made(self, hidden: Tensor, first: int, last: int) -> Tensor:
        """Return these of the 3D numbers that are made of each state."""
        bias = self.qkv.bias
        return linear(hidden, self.qkv.weight[first:last], None if bias is None else bias[first:last])


class CrossAttention(nn.Module):
    """Tokens of one text look at the states of another."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.site = ""
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def precompute_keys_values(self, hidden: Tensor, batch: PackedBatch) -> CrossKeyValues:
        """Return keys and values of the states [M, D], made once however often they are looked at."""
        padded = batch.pad(self.key_value(hidden))  # [S, K, 2D]
        key, value = padded.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each [S, H, K, d]
        return CrossKeyValues(key, value)

    def forward(
        self,
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        memory: CrossKeyValues,
        mask: BoundMask | None,
        *,
        noise: Noise | None = None,
    ) -> Tensor:  # [N, D]
        """Return what each token takes from the memory of the row with its number."""
        query = batch.pad(self.query(hidden)).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, d]
        mixed = attend(query, memory.key, memory.value, mask=mask, dropout=self.dropout, noise=noise, site=self.site)
        return self.out(batch.pack(mixed.transpose(1, 2).flatten(2)))
