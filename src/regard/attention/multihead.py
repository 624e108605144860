"""Multi-head self-attention and cross-attention: project, split into heads, attend, merge, project."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.attention.attend import attend
from regard.attention.cache import CrossKeyValues, LayerCache
from regard.attention.capture import AttentionCall, capture
from regard.attention.dropout import Noise
from regard.attention.masks import BoundMask
from regard.attention.packed_batch import PackedBatch, SelectedTokens
from regard.attention.positions import BoundPositions
from regard.attention.scores import ScaledDot, build_normalizer
from regard.attention.trace import active_trace
from regard.config.block import BlockConfig


class RowLinear(nn.Linear):
    """A linear layer that can compute some of its outputs alone."""

    def project_rows(self, hidden: Tensor, start: int, stop: int) -> Tensor:
        """Output with rows `start:stop` of the weight."""
        return linear(hidden, self.weight[start:stop], None if self.bias is None else self.bias[start:stop])


class Heads(NamedTuple):
    """Queries, keys and values of all heads, and what is added to their scores."""

    query: Tensor  # [B, H, Q, d]
    key: Tensor  # [B, H, K, d]
    value: Tensor  # [B, H, K, v]
    bias: Tensor | None = None  # [B|1, H|1, Q, K]


class _MultiHead(nn.Module):
    """What self-attention and cross-attention share: splitting into heads, and the only call of `attend`."""

    def __init__(
        self, config: BlockConfig, query_norm: nn.Module | None = None, key_norm: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        query_factor = config.attention_scale * math.sqrt(config.key_dim) if config.attention_scale else 1.0
        self.score = ScaledDot(1.0 if math.isclose(query_factor, 1) else query_factor)
        self.normalize = build_normalizer(config.attention_normalization, config.attention_top_k)
        self.site = ""
        self.query_norm = query_norm  # of each head
        self.key_norm = key_norm

    def _split_query(self, query: Tensor) -> Tensor:
        """[B, T, H · d] → [B, H, T, d], normalised if there is a norm."""
        heads = query.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return heads if self.query_norm is None else self.query_norm(heads)

    def _split_key_value(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, heads · size] → [B, heads, T, size], keys normalised if there is a norm."""
        keys = key.unflatten(-1, (self.config.kv_heads, -1)).transpose(1, 2)
        values = value.unflatten(-1, (self.config.kv_heads, -1)).transpose(1, 2)
        return keys if self.key_norm is None else self.key_norm(keys), values

    def _align_heads(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Heads:
        """Heads as `attend` takes them: a key and a value for each query head, queries with the score's factor."""
        config = self.config
        if self.score.query_factor != 1:
            query = query * self.score.query_factor
        if config.kv_heads != config.num_heads:  # grouped queries (Ainslie et al. 2023)
            queries_per_key = config.num_heads // config.kv_heads
            key = key.repeat_interleave(queries_per_key, dim=1)
            value = value.repeat_interleave(queries_per_key, dim=1)
        if bias is not None:
            bias = bias.to(query.dtype)
            if config.attention_bias_scale != 1:
                bias = bias * config.attention_bias_scale
        return Heads(query, key, value, bias)

    def _attend(self, heads: Heads, mask: BoundMask | None, noise: Noise | None, is_traced: bool = True) -> Tensor:
        """Attention output with merged heads, [B, Q, H · v]."""
        context = attend(
            heads.query,
            heads.key,
            heads.value,
            mask=mask,
            bias=heads.bias,
            score=self.score,
            normalize=self.normalize,
            dropout=self.dropout,
            noise=noise,
            site=self.site,
            is_traced=is_traced,
        )
        return context.transpose(1, 2).flatten(2)


class SelfAttention(_MultiHead):
    """Multi-head self-attention within each sequence of a packed batch (Vaswani et al. 2017, section 3.2.2)."""

    def __init__(
        self, config: BlockConfig, query_norm: nn.Module | None = None, key_norm: nn.Module | None = None
    ) -> None:
        super().__init__(config, query_norm, key_norm)
        self.qkv = RowLinear(config.hidden_size, sum(config.qkv_widths), bias=config.bias.qkv)
        self.out = nn.Linear(config.output_width, config.hidden_size, bias=config.bias.output)

    def forward(
        self,
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        mask: BoundMask | None,
        positions: BoundPositions,
        *,
        noise: Noise | None = None,
        selected: SelectedTokens | None = None,
        cache: LayerCache | None = None,
        by_length: bool = False,
    ) -> Tensor:  # [N, D], or [M, D] for selected tokens
        """Attention output of all tokens, or of the selected ones.

        Selected tokens attend to the whole of their sequences as far as the mask allows it; the mask must be a plain
        one. With a cache, the new tokens also attend to those before them. `by_length`: sequences of equal length
        attend together, without padding and mask.
        """
        if selected is not None:
            return self.out(self._attend_selected(hidden, batch, selected, mask, positions, noise))
        if by_length:
            return self.out(self._attend_by_length(hidden, batch, mask, positions))
        heads = self._split_heads(batch.pad(self.qkv(hidden)), positions, positions.query, positions.bias, cache)
        context = self._attend(heads, mask, noise)
        return self.out(batch.pack(context.to(hidden.dtype)))

    def _split_heads(
        self,
        qkv: Tensor,
        positions: BoundPositions,
        token_positions: Tensor,
        bias: Tensor | None,
        cache: LayerCache | None = None,
    ) -> Heads:
        """Heads of padded projections [B, T, …] at positions [B|1, T], with the positional scheme applied."""
        query, key, value = qkv.split(self.config.qkv_widths, dim=-1)
        query_heads = positions.rotate(self._split_query(query), token_positions)
        key_heads, value_heads = self._split_key_value(key, value)
        key_heads = positions.rotate(key_heads, token_positions)
        if cache is not None:
            query_heads = query_heads.float()
            key_heads, value_heads = cache.append(key_heads, value_heads)
        return self._align_heads(query_heads, key_heads, value_heads, bias)

    def _attend_selected(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        selected: SelectedTokens,
        mask: BoundMask | None,
        positions: BoundPositions,
        noise: Noise | None,
    ) -> Tensor:
        """Merged heads of the selected tokens; an active trace still captures the queries of all tokens."""
        assert mask is not None
        config = self.config
        query_width = config.query_width
        qkv_width = sum(config.qkv_widths)
        query = selected.pad(self.qkv.project_rows(hidden.index_select(0, selected.indices), 0, query_width))
        key_value = batch.pad(self.qkv.project_rows(hidden, query_width, qkv_width))
        key_heads, value_heads = self._split_key_value(*key_value.split(config.key_value_widths, dim=-1))
        heads = self._align_heads(
            positions.rotate(self._split_query(query), selected.padded_positions),
            positions.rotate(key_heads, positions.key),
            value_heads,
            positions.selected_bias(selected.padded_positions),
        )
        selected_mask = mask.mask.bind(selected.padded_positions, positions.key)
        context = self._attend(heads, selected_mask, noise, is_traced=False)
        self._capture_all(hidden, batch, mask, positions)
        return selected.pack(context)

    def _attend_by_length(
        self, hidden: Tensor, batch: PackedBatch, mask: BoundMask | None, positions: BoundPositions
    ) -> Tensor:  # [N, H · v]
        """Merged heads of sequences of equal length together: no padding, in float32."""
        qkv = self.qkv(hidden).float()
        contexts = []
        for start, count, length in batch.equal_length_runs:
            run = qkv[start : start + count * length].unflatten(0, (count, length))
            heads = self._split_heads(run, positions, positions.query[:, :length], positions.prefix_bias(length))
            contexts.append(self._attend(heads, None, None, is_traced=False).flatten(0, 1))
        self._capture_all(hidden, batch, mask, positions)
        return torch.cat(contexts).to(hidden.dtype)

    @torch.no_grad()
    def _capture_all(
        self, hidden: Tensor, batch: PackedBatch, mask: BoundMask | None, positions: BoundPositions
    ) -> None:
        """Give an active trace the attention of all tokens, padded as everywhere."""
        trace = active_trace(self.site)
        if trace is None:
            return
        heads = self._split_heads(batch.pad(self.qkv(hidden)), positions, positions.query, positions.bias)
        call = AttentionCall(
            heads.query,
            heads.key,
            value=heads.value,
            mask=mask,
            bias=heads.bias,
            score=self.score,
            normalize=self.normalize,
        )
        capture(trace, self.site, call)


class CrossAttention(_MultiHead):
    """Multi-head attention of target tokens to the hidden states of the source."""

    def __init__(
        self, config: BlockConfig, query_norm: nn.Module | None = None, key_norm: nn.Module | None = None
    ) -> None:
        super().__init__(config, query_norm, key_norm)
        self.query = nn.Linear(config.hidden_size, config.query_width, bias=config.bias.qkv)
        self.key_value = nn.Linear(config.hidden_size, sum(config.key_value_widths), bias=config.bias.qkv)
        self.out = nn.Linear(config.output_width, config.hidden_size, bias=config.bias.output)

    def precompute_keys_values(self, hidden: Tensor, batch: PackedBatch) -> CrossKeyValues:
        """Keys and values of the source's hidden states [M, D], computed once per source."""
        padded = batch.pad(self.key_value(hidden))  # [S, K, …]
        key, value = padded.split(self.config.key_value_widths, dim=-1)
        return CrossKeyValues(*self._split_key_value(key, value))

    def forward(
        self,
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        source: CrossKeyValues,
        mask: BoundMask | None,
        *,
        noise: Noise | None = None,
    ) -> Tensor:  # [N, D]
        """Attention output of the target tokens; the rows of the batch are equally many for each source sentence."""
        query = batch.pad(self.query(hidden))  # [B, T, H · d]
        num_sentences = len(source.key)
        queries_per_sentence = batch.num_rows * batch.max_length // max(1, num_sentences)
        by_sentence = query.reshape(num_sentences, queries_per_sentence, query.shape[2])
        query_heads = self._split_query(by_sentence).to(source.key.dtype)
        heads = self._align_heads(query_heads, source.key, source.value, None)
        context = self._attend(heads, mask, noise).to(hidden.dtype)
        return self.out(batch.pack(context.reshape(*query.shape[:2], self.config.output_width)))
