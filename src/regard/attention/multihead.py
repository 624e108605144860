"""Multi-head self-attention and cross-attention: project, split into heads, attend, merge, project."""

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


class RowLinear(nn.Linear):
    """A linear layer of which some rows can be computed alone, for fused projections."""

    def project_rows(self, hidden: Tensor, start: int, stop: int) -> Tensor:
        """Output with rows `start:stop` of the weight."""
        return linear(hidden, self.weight[start:stop], None if self.bias is None else self.bias[start:stop])


class SelfAttention(nn.Module):
    """Multi-head self-attention within each sequence of a packed batch (Vaswani et al. 2017, section 3.2.2)."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.site = ""
        self.qkv = RowLinear(hidden_size, 3 * hidden_size, bias=bias)
        self.out = nn.Linear(hidden_size, hidden_size, bias=bias)

    def forward(
        self,
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        mask: BoundMask | None,
        positions: Positions,
        *,
        noise: Noise | None = None,
        selected: SelectedTokens | None = None,
    ) -> Tensor:  # [N, D], or [M, D] for selected tokens
        """Attention output of all tokens, or of the selected ones."""
        if selected is not None:
            return self._attend_selected(hidden, batch, selected, mask, positions, noise)
        query, key, value = self._split_heads(self.qkv(hidden), batch, 3)
        query = positions.rotate(query, batch.padded_positions)
        key = positions.rotate(key, batch.padded_positions)
        context = attend(query, key, value, mask=mask, dropout=self.dropout, noise=noise, site=self.site)
        return self.out(batch.pack(context.transpose(1, 2).flatten(2)))

    def _attend_selected(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        selected: SelectedTokens,
        mask: BoundMask | None,
        positions: Positions,
        noise: Noise | None,
    ) -> Tensor:
        """Selected tokens attend to their whole sequences; an active trace still captures the queries of all tokens."""
        hidden_size = hidden.shape[1]
        selected_queries = self.qkv.project_rows(hidden.index_select(0, selected.indices), 0, hidden_size)
        (query,) = self._split_heads(selected_queries, selected, 1)
        key, value = self._split_heads(self.qkv.project_rows(hidden, hidden_size, 3 * hidden_size), batch, 2)
        query = positions.rotate(query, selected.padded_positions)
        key = positions.rotate(key, batch.padded_positions)
        context = attend(
            query,
            key,
            value,
            mask=batch.cross_mask(selected),
            dropout=self.dropout,
            noise=noise,
            site=self.site,
            is_traced=False,
        )
        trace = active_trace(self.site)
        if trace is not None:
            (all_queries,) = self._split_heads(self.qkv.project_rows(hidden, 0, hidden_size), batch, 1)
            all_queries = positions.rotate(all_queries, batch.padded_positions)
            call = AttentionCall(
                all_queries, key, value=value, mask=mask, bias=None, score=SCALED_DOT, normalize=softmax
            )
            capture(trace, self.site, call)
        return self.out(selected.pack(context.transpose(1, 2).flatten(2)))

    def _split_heads(self, projected: Tensor, batch: PackedBatch, parts: int) -> Tensor:
        """Pad packed projections [N, parts · D] and split them: [parts, B, H, T, d]."""
        return batch.pad(projected).unflatten(-1, (parts, self.num_heads, -1)).permute(2, 0, 3, 1, 4)


class CrossAttention(nn.Module):
    """Multi-head attention of target tokens to the hidden states of the source."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.site = ""
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key_value = nn.Linear(hidden_size, 2 * hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)

    def precompute_keys_values(self, hidden: Tensor, batch: PackedBatch) -> CrossKeyValues:
        """Keys and values of the source's hidden states [M, D], computed once per source."""
        padded = batch.pad(self.key_value(hidden))  # [S, K, 2D]
        key, value = padded.unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # each [S, H, K, d]
        return CrossKeyValues(key, value)

    def forward(
        self,
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        source: CrossKeyValues,
        mask: BoundMask | None,
        *,
        noise: Noise | None = None,
    ) -> Tensor:  # [N, D]
        """Attention output of the target tokens; target sequence b attends to source sentence b."""
        query = batch.pad(self.query(hidden)).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, H, T, d]
        context = attend(query, source.key, source.value, mask=mask, dropout=self.dropout, noise=noise, site=self.site)
        return self.out(batch.pack(context.transpose(1, 2).flatten(2)))
