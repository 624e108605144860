"""The Transformer block (self-attention, cross-attention, feed-forward), for training and for cached decoding."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from regard.attention.cache import CrossKeyValues, LayerCache
from regard.attention.dropout import Noise, apply_dropout
from regard.attention.masks import BoundMask
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.packed_batch import PackedBatch, SelectedTokens
from regard.attention.positions import BoundPositions
from regard.config.block import BlockConfig
from regard.models.layers.activations import ACTIVATIONS
from regard.models.layers.norms import build_norm
from regard.models.layers.prepacked import linear_with_activation


@dataclass(frozen=True)
class LayerContext:
    """What the sublayers of one block share in a forward pass."""

    batch: PackedBatch
    mask: BoundMask | None
    positions: BoundPositions
    noise: Noise | None = None
    selected: SelectedTokens | None = None  # tokens whose output is needed; None: all
    cache: LayerCache | None = None  # decoding: keys and values of the tokens before
    source: CrossKeyValues | None = None  # the layer's keys and values of the source
    source_mask: BoundMask | None = None
    by_length: bool = False  # whether sequences of equal length attend together, without padding


class FeedForward(nn.Module):
    """Two linear layers with an activation in between (Vaswani et al. 2017, section 3.3), gated (Shazeer 2020) or not.

    A gated layer has a first matrix of twice the size: the activation of one half is multiplied by the other half.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        inner_size = config.feed_forward_size * (2 if config.gated else 1)
        self.up = nn.Linear(config.hidden_size, inner_size, bias=config.bias.feed_forward)
        self.down = nn.Linear(config.feed_forward_size, config.hidden_size, bias=config.bias.feed_forward)
        self.activation = config.activation
        self.gated = config.gated
        self.dropout = config.activation_dropout
        self.site = ""

    def forward(self, hidden: Tensor, noise: Noise | None) -> Tensor:
        if self.gated:
            value, gate = self.up(hidden).chunk(2, dim=-1)
            active = ACTIVATIONS[self.activation](value) * gate
        else:
            active = linear_with_activation(self.up, hidden, self.activation)
        return self.down(apply_dropout(active, self.dropout, noise, f"{self.site}.inner"))


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention in a decoder, feed-forward (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.norm_placement = config.norm_placement
        self.has_input_norms = config.has_input_norms
        self.residual = config.residual
        self.dropout = config.dropout
        self.attention = SelfAttention(config, _build_head_norm(config), _build_head_norm(config))
        self.attention_norm = _build_block_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = _build_block_norm(config)
        self.cross_attention: CrossAttention | None = None
        if config.cross_attention:
            self.cross_attention = CrossAttention(config, _build_head_norm(config), _build_head_norm(config))
            self.cross_attention_norm = _build_block_norm(config)
        # norms of sublayer outputs, before the residual sum (Gemma 2)
        self.attention_output_norm: nn.Module | None = None
        self.cross_attention_output_norm: nn.Module | None = None
        self.feed_forward_output_norm: nn.Module | None = None
        if config.norm_placement == "both":
            self.attention_output_norm = _build_block_norm(config)
            self.feed_forward_output_norm = _build_block_norm(config)
            if config.cross_attention:
                self.cross_attention_output_norm = _build_block_norm(config)

    def forward(self, hidden: Tensor, context: LayerContext) -> Tensor:  # [N, D] → [N, D], or [M, D] if selected
        """Self-attention, cross-attention if there is a source, feed-forward; each with norms and a residual."""
        selected = context.selected
        residual = hidden if selected is None else hidden.index_select(0, selected.indices)
        normed = self.attention_norm(hidden) if self.has_input_norms else hidden
        attention = self.self_attend(normed, context)
        hidden = self._add_and_norm(residual, attention, self.attention_norm, self.attention_output_norm)

        if self.cross_attention is not None:
            normed = self.cross_attention_norm(hidden) if self.has_input_norms else hidden
            attention = self.cross_attend(normed, context)
            hidden = self._add_and_norm(hidden, attention, self.cross_attention_norm, self.cross_attention_output_norm)

        normed = self.feed_forward_norm(hidden) if self.has_input_norms else hidden
        output = self.apply_feed_forward(normed, context)
        return self._add_and_norm(hidden, output, self.feed_forward_norm, self.feed_forward_output_norm)

    def _add_and_norm(self, residual: Tensor, output: Tensor, norm: nn.Module, output_norm: nn.Module | None) -> Tensor:
        """Add a sublayer's output to its residual, with the norms that come after the sublayer."""
        if output_norm is not None:
            output = output_norm(output)
        if self.residual:
            output = residual + output
        return norm(output) if self.norm_placement == "post" else output

    def self_attend(self, hidden: Tensor, context: LayerContext) -> Tensor:
        """Self-attention with dropout."""
        attention = self.attention(
            hidden,
            context.batch,
            context.mask,
            context.positions,
            noise=context.noise,
            selected=context.selected,
            cache=context.cache,
            by_length=context.by_length,
        )
        return apply_dropout(attention, self.dropout, context.noise, f"{self.attention.site}.out")

    def cross_attend(self, hidden: Tensor, context: LayerContext) -> Tensor:
        """Cross-attention to the source, with dropout."""
        assert self.cross_attention is not None
        queries = context.batch
        mask = context.source_mask
        if context.selected is not None:
            queries = context.selected
            mask = None if mask is None else mask.mask.bind(queries.padded_positions, mask.key)
        attention = self.cross_attention(hidden, queries, context.source, mask, noise=context.noise)
        return apply_dropout(attention, self.dropout, context.noise, f"{self.cross_attention.site}.out")

    def apply_feed_forward(self, hidden: Tensor, context: LayerContext) -> Tensor:
        """Feed-forward layer with dropout."""
        output = self.feed_forward(hidden, context.noise)
        return apply_dropout(output, self.dropout, context.noise, self.feed_forward.site)


def linear_parts(block: TransformerBlock) -> dict[str, dict[str, int]]:
    """Linear layers of a block by path, each with the rows of the projections that it fuses, in their order.

    >>> config = BlockConfig(hidden_size=12, num_heads=4, num_kv_heads=2, value_size=5, feed_forward_size=7)
    >>> for path, parts in linear_parts(TransformerBlock(config)).items():
    ...     print(path, parts)
    attention.qkv {'query': 12, 'key': 6, 'value': 10}
    attention.out {'out': 12}
    feed_forward.up {'up': 7}
    feed_forward.down {'down': 12}
    """
    config = block.attention.config
    parts = {
        "attention.qkv": dict(zip(("query", "key", "value"), config.qkv_widths, strict=True)),
        "attention.out": {"out": block.attention.out.out_features},
    }
    if block.cross_attention is not None:
        parts |= {
            "cross_attention.query": {"query": config.query_width},
            "cross_attention.key_value": dict(zip(("key", "value"), config.key_value_widths, strict=True)),
            "cross_attention.out": {"out": block.cross_attention.out.out_features},
        }
    parts["feed_forward.up"] = {"up": block.feed_forward.up.out_features}
    parts["feed_forward.down"] = {"down": block.feed_forward.down.out_features}
    return parts


def _build_block_norm(config: BlockConfig) -> nn.Module:
    """Build a norm of hidden states; the identity in blocks without norms."""
    if config.norm_placement == "none":
        return nn.Identity()
    return build_norm(config.norm, config.hidden_size, config.norm_eps, config.bias.norm)


def _build_head_norm(config: BlockConfig) -> nn.Module | None:
    """Build a norm of queries or keys, if the block has them."""
    if not config.qk_norm:
        return None
    return build_norm(config.norm, config.key_dim, config.norm_eps, config.bias.norm)
