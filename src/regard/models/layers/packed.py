"""Transformer blocks for inference: the arithmetic of training in fewer and larger operators.

Weights are packed for the processor where torch supports it; residual sums and activations are fused into the matmuls.
The training blocks are the definition: tests compare both.
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
from regard.attention.multihead import CrossAttention
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import Positions
from regard.attention.scores import softmax
from regard.attention.trace import active_trace
from regard.models.layers.block import ACTIVATIONS, LayerMask, TransformerBlock, TransformerStack, activate

MIN_TOKENS_PER_RUN = 32  # mean tokens of the runs of equal-length sequences from which attention goes run by run
PACKING_ROWS = 64  # batch size that oneDNN packs weights for; other sizes work, too
FUSED_ACTIVATIONS = {  # activation → name and algorithm of oneDNN's fused operator
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
}


def can_pack(weight: Tensor) -> bool:
    """Whether torch can pack a weight of this dtype on its device."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


class PackedLinear:
    """A linear layer whose activation or residual sum runs in the same operator.

    >>> layer = nn.Linear(3, 2)
    >>> packed = PackedLinear(layer.weight, layer.bias)
    >>> with torch.inference_mode():
    ...     bool(torch.allclose(packed(torch.ones(1, 3)), layer(torch.ones(1, 3)), atol=1e-6))
    True
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, pack: bool = True) -> None:
        weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.is_packed = pack and can_pack(weight)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKING_ROWS) if self.is_packed else weight

    @classmethod
    def from_module(cls, layer: nn.Linear, pack: bool) -> PackedLinear:
        """Pack the weights of a linear module."""
        return cls(layer.weight, layer.bias, pack)

    def __call__(self, hidden: Tensor, activation: str = "") -> Tensor:
        """activation(hidden · weightᵀ + bias)."""
        if not self.is_packed:
            output = functional.linear(hidden, self.weight, self.bias)
        elif activation in FUSED_ACTIVATIONS:
            name, algorithm = FUSED_ACTIVATIONS[activation]
            fused: Tensor = torch.ops.mkldnn._linear_pointwise(hidden, self.weight, self.bias, name, [], algorithm)
            return fused
        else:
            output = torch.ops.mkldnn._linear_pointwise(hidden, self.weight, self.bias, "none", [], "")
        return ACTIVATIONS[activation](output) if activation else output

    def add_residual(self, hidden: Tensor, residual: Tensor) -> Tensor:
        """residual + hidden · weightᵀ + bias."""
        if not self.is_packed:
            return residual + functional.linear(hidden, self.weight, self.bias)
        output: Tensor = torch.ops.mkldnn._linear_pointwise.binary(hidden, residual, self.weight, self.bias, "add")
        return output


class _LayerNorm:
    """A layer norm without the overhead of its module; the identity where the module is one."""

    def __init__(self, norm: nn.Module) -> None:
        self.norm = norm if isinstance(norm, nn.LayerNorm) else None
        if isinstance(norm, nn.LayerNorm):
            self.shape = norm.normalized_shape
            self.weight = norm.weight
            self.bias = norm.bias
            self.eps = norm.eps

    def __call__(self, hidden: Tensor) -> Tensor:
        if self.norm is None:
            return hidden
        return torch.layer_norm(hidden, self.shape, self.weight, self.bias, self.eps)


class PackedBlock:
    """A Transformer block for inference."""

    def __init__(self, block: TransformerBlock, pack: bool) -> None:
        attention = block.attention
        feed_forward = block.feed_forward
        self.pre_norm = block.pre_norm
        self.num_heads = attention.num_heads
        self.site = attention.site
        self.qkv = PackedLinear.from_module(attention.qkv, pack)
        self.out = PackedLinear.from_module(attention.out, pack)
        self.inner = PackedLinear.from_module(feed_forward.up, pack)
        self.outer = PackedLinear.from_module(feed_forward.down, pack)
        self.activation = feed_forward.activation
        self.gated = feed_forward.gated
        self.attention_norm = _LayerNorm(block.attention_norm)
        self.feed_forward_norm = _LayerNorm(block.feed_forward_norm)
        self.cross = (
            None if block.cross_attention is None else _PackedCrossAttention(block, block.cross_attention, pack)
        )

    def encode(
        self,
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        layer_mask: LayerMask,
        store_keys_values: Callable[[Tensor, Tensor], None] | None = None,
        by_length: bool = False,
    ) -> Tensor:
        """Hidden states of whole sequences after this block; `store_keys_values` receives both, each [B, H, T, d]."""
        normed = self.attention_norm(hidden) if self.pre_norm else hidden
        qkv = self.qkv(normed)
        if by_length:
            context = self._attend_by_length(qkv, batch, layer_mask)
        else:
            context = self._attend_padded(qkv, batch, layer_mask, store_keys_values)
        hidden = self.out.add_residual(context, hidden)
        if not self.pre_norm:
            hidden = self.attention_norm(hidden)
        return self._feed_forward(hidden)

    def _attend_padded(
        self,
        qkv: Tensor,  # [N, 3D]
        batch: PackedBatch,
        layer_mask: LayerMask,
        store_keys_values: Callable[[Tensor, Tensor], None] | None,
    ) -> Tensor:  # [N, D]
        """Self-attention of the padded batch."""
        query, key, value = batch.pad(qkv).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query = layer_mask.positions.rotate(query, batch.padded_positions)
        key = layer_mask.positions.rotate(key, batch.padded_positions)
        if store_keys_values is not None:
            store_keys_values(key, value)
        context = attend(query, key, value, mask=layer_mask.mask, site=self.site)
        return batch.pack(context.transpose(1, 2).flatten(2))

    def _attend_by_length(self, qkv: Tensor, batch: PackedBatch, layer_mask: LayerMask) -> Tensor:  # [N, 3D] → [N, D]
        """Self-attention of sequences of equal length together: no padding, in float32."""
        heads = qkv.float().unflatten(-1, (3, self.num_heads, -1))  # [N, 3, H, d]
        positions = layer_mask.positions
        contexts = []
        for start, count, length in batch.equal_length_runs:
            run = heads[start : start + count * length].unflatten(0, (count, length))
            query, key, value = run.permute(2, 0, 3, 1, 4)
            run_positions = batch.padded_positions[:, :length]
            query = positions.rotate(query, run_positions)
            key = positions.rotate(key, run_positions)
            context = apply_ablation(attend(query, key, value), self.site)
            contexts.append(context.transpose(1, 2).flatten(0, 1).flatten(1))
        trace = active_trace(self.site)
        if trace is not None:  # captures are padded as everywhere; the output stays the same
            query, key, value = batch.pad(heads).permute(2, 0, 3, 1, 4)
            query = positions.rotate(query, batch.padded_positions)
            key = positions.rotate(key, batch.padded_positions)
            call = AttentionCall(
                query, key, value=value, mask=layer_mask.mask, bias=None, score=SCALED_DOT, normalize=softmax
            )
            capture(trace, self.site, call)
        return torch.cat(contexts).to(qkv.dtype)

    def step(self, hidden: Tensor, context: StepContext, layer: int) -> Tensor:  # [R, D]
        """Hidden states of one more token of each row."""
        normed = self.attention_norm(hidden) if self.pre_norm else hidden
        qkv = self.qkv(normed).float().view(len(hidden), 3, self.num_heads, -1)
        if context.is_rotary:
            rotated = context.positions.rotate(qkv[:, :2], context.position)
            qkv = torch.cat([rotated, qkv[:, 2:]], dim=1)
        keys, values = context.cache.append(layer, qkv[:, 1:])
        attention = attend(qkv[:, 0].unsqueeze(2), keys, values, site=self.site)
        hidden = self.out.add_residual(attention.flatten(1).to(hidden.dtype), hidden)
        if not self.pre_norm:
            hidden = self.attention_norm(hidden)
        if self.cross is not None:
            hidden = self.cross.step(hidden, context.sources[layer], context.source_mask, self.pre_norm)
        return self._feed_forward(hidden)

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        """Feed-forward sublayer with its norm and residual connection."""
        if self.pre_norm:
            return self.outer.add_residual(self._activate(self.feed_forward_norm(hidden)), hidden)
        return self.feed_forward_norm(self.outer.add_residual(self._activate(hidden), hidden))

    def _activate(self, hidden: Tensor) -> Tensor:
        if self.gated:
            return activate(self.inner(hidden), self.activation, is_gated=True)
        return self.inner(hidden, self.activation)


class _PackedCrossAttention:
    """A block's cross-attention for inference."""

    def __init__(self, block: TransformerBlock, cross: CrossAttention, pack: bool) -> None:
        self.site = cross.site
        self.query = PackedLinear.from_module(cross.query, pack)
        self.out = PackedLinear.from_module(cross.out, pack)
        self.norm = _LayerNorm(block.cross_attention_norm)

    def step(self, hidden: Tensor, source: CrossKeyValues, mask: BoundMask | None, pre_norm: bool) -> Tensor:
        """Cross-attention of one token of each row, with norm and residual connection."""
        sentences, heads, _, head_size = source.key.shape
        normed = self.norm(hidden) if pre_norm else hidden
        query = self.query(normed).float().view(sentences, -1, heads, head_size).transpose(1, 2)  # [S, H, rows, d]
        context = attend(query, source.key, source.value, mask=mask, site=self.site)
        hidden = self.out.add_residual(context.transpose(1, 2).reshape(hidden.shape).to(hidden.dtype), hidden)
        return hidden if pre_norm else self.norm(hidden)


def _pack_blocks(stack: TransformerStack, pack: bool) -> list[PackedBlock]:
    """Pack the block of each layer; blocks that layers share are packed once."""
    layers = []
    packed_by_weight: dict[int, PackedBlock] = {}
    for block in stack.layer_blocks:
        weight_id = id(block.attention.qkv)
        if weight_id not in packed_by_weight:
            packed_by_weight[weight_id] = PackedBlock(block, pack)
        packed = copy(packed_by_weight[weight_id])
        packed.site = block.attention.site
        layers.append(packed)
    return layers


@dataclass(frozen=True)
class StepContext:
    """What all layers share in one decoding step."""

    cache: KeyValueCache
    sources: Sequence[CrossKeyValues]  # keys and values of the source, by layer
    source_mask: BoundMask | None
    positions: Positions
    position: Tensor  # [1, 1], position of the token
    is_rotary: bool  # whether the positional scheme rotates queries and keys


class PackedStack:
    """A stack of blocks for inference; unpacked, it uses its modules' current weights."""

    def __init__(
        self, stack: TransformerStack, positions: Positions, pack: bool = True, by_length: bool = False
    ) -> None:
        self.by_length = by_length  # whether sequences of equal length may attend together, without padding
        self.blocks = _pack_blocks(stack, pack)
        self.final_norm = _LayerNorm(stack.final_norm)
        self.positions = positions
        self.is_rotary = type(positions).rotate is not Positions.rotate
        self._source_projections = [
            (PackedLinear.from_module(block.cross_attention.key_value, pack), block.cross_attention.num_heads)
            for block in stack.layer_blocks
            if block.cross_attention is not None
        ]

    def encode(
        self, hidden: Tensor, batch: PackedBatch, layer_masks: Sequence[LayerMask], cache: KeyValueCache | None = None
    ) -> Tensor:
        """Hidden states of whole sequences, [N, D]; sequences of equal length fill an empty cache."""
        by_length = self._should_attend_by_length(batch, layer_masks)
        for layer, (block, layer_mask) in enumerate(zip(self.blocks, layer_masks, strict=True)):
            store_keys_values = None if cache is None else partial(cache.prefill, layer)
            hidden = block.encode(hidden, batch, layer_mask, store_keys_values, by_length)
        if cache is not None:
            cache.length = batch.max_length
        return self.final_norm(hidden)

    def _should_attend_by_length(self, batch: PackedBatch, layer_masks: Sequence[LayerMask]) -> bool:
        """Whether runs of equal-length sequences are long enough, and all attention is global."""
        if not self.by_length or batch.num_padding or not all(layer_mask.is_global for layer_mask in layer_masks):
            return False
        num_runs = len(batch.equal_length_runs)
        return 0 < MIN_TOKENS_PER_RUN * num_runs <= batch.num_tokens

    def precompute_keys_values(self, hidden: Tensor, batch: PackedBatch) -> list[CrossKeyValues]:
        """Keys and values of the source for every layer, in float32."""
        keys_values = []
        for projection, num_heads in self._source_projections:
            padded = batch.pad(projection(hidden).float())  # [S, K, 2D]
            key, value = padded.unflatten(-1, (2, num_heads, -1)).permute(2, 0, 3, 1, 4).contiguous()  # [S, H, K, d]
            keys_values.append(CrossKeyValues(key, value))
        return keys_values

    def step(
        self, hidden: Tensor, cache: KeyValueCache, sources: Sequence[CrossKeyValues], source_mask: BoundMask | None
    ) -> Tensor:
        """Last hidden states of one more token of each row, [R, D]; its keys and values are appended to the cache."""
        cache.reserve()
        context = StepContext(
            cache,
            sources,
            source_mask=source_mask,
            positions=self.positions,
            position=torch.full((1, 1), cache.length, device=hidden.device),
            is_rotary=self.is_rotary,
        )
        for layer, block in enumerate(self.blocks):
            hidden = block.step(hidden, context, layer)
        cache.length += 1
        return self.final_norm(hidden)
