"""Blocks in use: the same arithmetic as in training with fewer and larger operators.

Weights are packed for this processor where torch can do that; sums and activations go into the products. The training
blocks stay the definition: tests hold both to the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.attend import SCALED_DOT, attend
from regard.attention.cache import CrossKeyValues, KeyValueCache
from regard.attention.capture import AttentionCall, capture
from regard.attention.intervention import apply_ablation
from regard.attention.masks import BoundMask
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import Positions
from regard.attention.scores import softmax
from regard.attention.trace import active_trace
from regard.models.layers.block import (
    ACTIVATIONS,
    DecoderBlock,
    LayerMask,
    TransformerBlock,
    TransformerStack,
    activate,
)

LEAST = 32  # tokens that runs of equally long rows have on average where attention goes run by run
ROWS = 64  # how many rows weights are packed for; others work too
FUSED = {"relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "silu": ("swish", "")}


def can_pack(weight: Tensor) -> bool:
    """Whether torch packs weights of this kind on this device."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    halves = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32 or bool(halves)


class PackedLinear:
    """A linear layer, with what usually follows it in the same operator.

    >>> layer = nn.Linear(3, 2)
    >>> product = PackedLinear(layer.weight, layer.bias)
    >>> with torch.inference_mode():
    ...     bool(torch.allclose(product(torch.ones(1, 3)), layer(torch.ones(1, 3)), atol=1e-6))
    True
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, pack: bool = True) -> None:
        weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.packed = pack and can_pack(weight)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) if self.packed else weight

    def __call__(self, hidden: Tensor, activation: str = "") -> Tensor:
        """Return activation(states · weightᵀ + bias)."""
        if not self.packed:
            made = functional.linear(hidden, self.weight, self.bias)
            return ACTIVATIONS[activation](made) if activation else made
        if activation in FUSED:
            name, kind = FUSED[activation]
            fused: Tensor = torch.ops.mkldnn._linear_pointwise(hidden, self.weight, self.bias, name, [], kind)
            return fused
        plain: Tensor = torch.ops.mkldnn._linear_pointwise(hidden, self.weight, self.bias, "none", [], "")
        return ACTIVATIONS[activation](plain) if activation else plain

    def added(self, hidden: Tensor, to: Tensor) -> Tensor:
        """Return to + states · weightᵀ + bias."""
        if not self.packed:
            return to + functional.linear(hidden, self.weight, self.bias)
        summed: Tensor = torch.ops.mkldnn._linear_pointwise.binary(hidden, to, self.weight, self.bias, "add")
        return summed


class _LayerNorm:
    """A layer norm without its module's overhead."""

    def __init__(self, norm: nn.Module) -> None:
        self.norm = norm if isinstance(norm, nn.LayerNorm) else None
        if isinstance(norm, nn.LayerNorm):
            self.shape, self.weight, self.bias, self.epsilon = norm.normalized_shape, norm.weight, norm.bias, norm.eps

    def __call__(self, hidden: Tensor) -> Tensor:
        if self.norm is None:
            return hidden
        return torch.layer_norm(hidden, self.shape, self.weight, self.bias, self.epsilon)


class PackedBlock:
    """An encoder or decoder block in use."""

    def __init__(self, block: TransformerBlock, pack: bool) -> None:
        attention, feedforward = block.attention, block.feedforward
        self.norm_before, self.heads, self.site = block.norm_before, attention.heads, attention.site
        self.qkv, self.out = _product(attention.qkv, pack), _product(attention.out, pack)
        self.inner, self.outer = _product(feedforward.inner, pack), _product(feedforward.outer, pack)
        self.activation, self.gated = feedforward.activation, feedforward.gated
        self.attention_norm, self.feedforward_norm = (
            _LayerNorm(block.attention_norm),
            _LayerNorm(block.feedforward_norm),
        )
        self.cross = _PackedCrossAttention(block, pack) if isinstance(block, DecoderBlock) else None

    def encode(
        self,
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        view: LayerMask,
        keep: Callable[[Tensor, Tensor], None] | None = None,
        by_length: bool = False,
    ) -> Tensor:
        """Return the states of whole rows after this block; `keep` is told keys and values, each [B, H, T, d]."""

        def look(normed: Tensor, hidden: Tensor) -> Tensor:
            if by_length:
                return self.out.added(self._by_length(self.qkv(normed), batch, view), hidden)
            padded = batch.pad(self.qkv(normed))  # [B, T, 3D]
            query, key, value = padded.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            query, key = (
                view.positions.rotate(query, batch.padded_positions),
                view.positions.rotate(key, batch.padded_positions),
            )
            if keep is not None:
                keep(key, value)
            mixed = attend(query, key, value, mask=view.mask, site=self.site)
            return self.out.added(batch.pack(mixed.transpose(1, 2).flatten(2)), hidden)

        return self._think(self._with(self.attention_norm, hidden, look))

    def _by_length(self, three: Tensor, batch: PackedBatch, view: LayerMask) -> Tensor:  # [N, 3D]
        """Return what tokens take from their own rows, [N, D]: rows of one length together, no padding, in float32."""
        heads = three.float().unflatten(-1, (3, self.heads, -1))  # [N, 3, H, d]
        made = []
        for first, count, length in batch.equal_length_runs:
            run = heads[first : first + count * length].unflatten(0, (count, length))
            query, key, value = run.permute(2, 0, 3, 1, 4)
            slots = batch.padded_positions[:, :length]
            query, key = view.positions.rotate(query, slots), view.positions.rotate(key, slots)
            mixed = apply_ablation(attend(query, key, value), self.site)
            made.append(mixed.transpose(1, 2).flatten(0, 1).flatten(1))
        if (
            seen := active_trace(self.site)
        ) is not None:  # what is seen is padded as ever; what is computed stays the same
            query, key, value = batch.pad(heads).permute(2, 0, 3, 1, 4)
            query, key = (
                view.positions.rotate(query, batch.padded_positions),
                view.positions.rotate(key, batch.padded_positions),
            )
            capture(seen, self.site, AttentionCall(query, key, value, view.mask, None, SCALED_DOT, softmax))
        return torch.cat(made).to(three.dtype)

    def step(self, hidden: Tensor, past: PackedCache, number: int) -> Tensor:  # [R, D]
        """Return the states of one more token of each row; `number` is the layer's."""
        normed = self.attention_norm(hidden) if self.norm_before else hidden
        three = self.qkv(normed).float().view(len(hidden), 3, self.heads, -1)
        if past.turned:
            three = torch.cat([past.positions.rotate(three[:, :2], past.at), three[:, 2:]], dim=1)
        keys, values = past.cache.append(number, three[:, 1:])
        mixed = attend(three[:, 0].unsqueeze(2), keys, values, site=self.site)
        hidden = self.out.added(mixed.flatten(1).to(hidden.dtype), hidden)
        hidden = hidden if self.norm_before else self.attention_norm(hidden)
        if self.cross is not None:
            hidden = self.cross.step(hidden, past.memories[number], past.mask, self.norm_before)
        return self._think(hidden)

    def _think(self, hidden: Tensor) -> Tensor:
        return self._with(
            self.feedforward_norm, hidden, lambda normed, states: self.outer.added(self._inside(normed), states)
        )

    def _inside(self, hidden: Tensor) -> Tensor:
        return (
            activate(self.inner(hidden), self.activation, True) if self.gated else self.inner(hidden, self.activation)
        )

    def _with(self, norm: _LayerNorm, hidden: Tensor, part: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return states + part(norm(states)), or norm(states + part(states)); the part adds the states itself."""
        return part(norm(hidden), hidden) if self.norm_before else norm(part(hidden, hidden))


class _PackedCrossAttention:
    """A decoder block's look at the source."""

    def __init__(self, block: DecoderBlock, pack: bool) -> None:
        self.heads, self.site = block.cross.heads, block.cross.site
        self.query, self.out = _product(block.cross.query, pack), _product(block.cross.out, pack)
        self.norm = _LayerNorm(block.cross_norm)

    def step(self, hidden: Tensor, memory: CrossKeyValues, mask: BoundMask | None, norm_before: bool) -> Tensor:
        """Return the states with what they take from their sentence's memory added, normed before or after."""
        sentences, heads, _, width = memory.key.shape
        normed = self.norm(hidden) if norm_before else hidden
        grouped = self.query(normed).float().view(sentences, -1, heads, width).transpose(1, 2)  # [S, H, rows, d]
        mixed = attend(grouped, memory.key, memory.value, mask=mask, site=self.site)
        hidden = self.out.added(mixed.transpose(1, 2).reshape(hidden.shape).to(hidden.dtype), hidden)
        return hidden if norm_before else self.norm(hidden)


def _product(layer: nn.Linear, pack: bool) -> PackedLinear:
    return PackedLinear(layer.weight, layer.bias, pack)


def _packed_blocks(stack: TransformerStack, pack: bool) -> list[PackedBlock]:
    """Return the block of each layer; those that layers share are packed once."""
    made, packed = [], {}
    for block in stack.layer_blocks:
        assert isinstance(block, TransformerBlock)
        weights = id(block.attention.qkv)
        if weights not in packed:
            packed[weights] = PackedBlock(block, pack)
        one = copy(packed[weights])
        one.site = block.attention.site
        made.append(one)
    return made


@dataclass(frozen=True)
class PackedCache:
    """What a step looks back at."""

    cache: KeyValueCache
    memories: Sequence[CrossKeyValues]
    mask: BoundMask | None  # which places of its memory a row may look at
    positions: Positions
    at: Tensor  # [1, 1], the place of the token
    turned: bool  # whether places turn queries and keys


class PackedStack:
    """A stack of blocks in use; not packed, it follows its modules' weights."""

    def __init__(
        self, stack: TransformerStack, positions: Positions, pack: bool = True, by_length: bool = False
    ) -> None:
        self.by_length = by_length  # where rows are whole and sorted, those of one length look around together
        self.blocks = _packed_blocks(stack, pack)
        self.norm, self.positions = _LayerNorm(stack.norm), positions
        self.turned = type(positions).rotate is not Positions.rotate
        self.remembering = [
            (_product(block.cross.key_value, pack), block.cross.heads)
            for block in stack.blocks
            if isinstance(block, DecoderBlock)
        ]

    def encode(
        self, hidden: Tensor, batch: PackedBatch, views: Sequence[LayerMask], cache: KeyValueCache | None = None
    ) -> Tensor:
        """Return the states of whole rows after all blocks, [N, D]; an empty cache is filled with equally long rows."""
        plain = batch.num_padding == 0 and all(view.is_global for view in views)
        by_length = self.by_length and plain and 0 < LEAST * len(batch.equal_length_runs) <= batch.num_tokens
        for number, (block, view) in enumerate(zip(self.blocks, views, strict=True)):
            keep = None if cache is None else partial(cache.prefill, number)
            hidden = block.encode(hidden, batch, view, keep, by_length)
        if cache is not None:
            cache.length = batch.max_length
        return self.norm(hidden)

    def remember(self, hidden: Tensor, batch: PackedBatch) -> list[CrossKeyValues]:
        """Return each layer's keys and values of the source, in float32."""
        made = []
        for product, heads in self.remembering:
            padded = batch.pad(product(hidden).float())  # [S, K, 2D]
            key, value = padded.unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4).contiguous()  # each [S, H, K, d]
            made.append(CrossKeyValues(key, value))
        return made

    def step(
        self, hidden: Tensor, cache: KeyValueCache, memories: Sequence[CrossKeyValues], mask: BoundMask | None
    ) -> Tensor:
        """Return the last states [R, D] of one more token of each row, whose keys and values join the cache."""
        cache.reserve()
        at = torch.full((1, 1), cache.length, device=hidden.device)
        past = PackedCache(cache, memories, mask, self.positions, at, self.turned)
        for number, block in enumerate(self.blocks):
            hidden = block.step(hidden, past, number)
        cache.length += 1
        return self.norm(hidden)
