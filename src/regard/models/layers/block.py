"""The Transformer block (self-attention, cross-attention, feed-forward) and stacks of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.cache import CrossKeyValues
from regard.attention.dropout import Noise, apply_dropout
from regard.attention.masks import BoundMask, Padding
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.packed_batch import PackedBatch, SelectedTokens
from regard.attention.positions import Positions

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda hidden: functional.gelu(hidden, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "quick_gelu": lambda hidden: hidden * torch.sigmoid(1.702 * hidden),
}


class LayerMask(NamedTuple):
    """Mask and positional scheme of one layer."""

    mask: BoundMask | None
    positions: Positions

    @property
    def is_global(self) -> bool:
        """Whether every token attends to its whole sequence."""
        return type(self.mask) is BoundMask and type(self.mask.mask) is Padding


@dataclass(frozen=True)
class LayerContext:
    """What the sublayers of one block share in a forward pass."""

    batch: PackedBatch
    mask: BoundMask | None
    positions: Positions
    noise: Noise | None = None
    selected: SelectedTokens | None = None  # tokens whose output is needed; None: all
    source: CrossKeyValues | None = None  # the layer's keys and values of the source
    source_mask: BoundMask | None = None


@dataclass(frozen=True)
class BlockConfig:
    """Settings that all blocks of a stack share."""

    hidden_size: int
    num_heads: int
    feed_forward_size: int
    activation: str
    pre_norm: bool
    norm_eps: float
    dropout: float
    attention_dropout: float
    activation_dropout: float
    gated: bool = False
    bias: bool = True
    first_attention_norm: bool = True  # whether the first block normalises the input of its attention

    def build_norm(self) -> nn.LayerNorm:
        """Build a layer norm."""
        return nn.LayerNorm(self.hidden_size, self.norm_eps, bias=self.bias)


class FeedForward(nn.Module):
    """Two linear layers with an activation in between (Vaswani et al. 2017, section 3.3), gated (Shazeer 2020) or not.

    A gated layer has a first matrix of twice the size: the activation of one half is multiplied by the other half.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        inner_size = config.feed_forward_size * (2 if config.gated else 1)
        self.up = nn.Linear(config.hidden_size, inner_size, bias=config.bias)
        self.down = nn.Linear(config.feed_forward_size, config.hidden_size, bias=config.bias)
        self.activation = config.activation
        self.gated = config.gated
        self.dropout = config.activation_dropout
        self.site = ""

    def forward(self, hidden: Tensor, noise: Noise | None) -> Tensor:
        active = activate(self.up(hidden), self.activation, self.gated)
        return self.down(apply_dropout(active, self.dropout, noise, f"{self.site}.inner"))


def activate(inner: Tensor, activation: str, is_gated: bool) -> Tensor:
    """Apply the activation, with a gate where there is one.

    >>> activate(torch.tensor([[-1.0, 2.0, 3.0, 4.0]]), "relu", is_gated=True).tolist()
    [[0.0, 8.0]]
    """
    if not is_gated:
        return ACTIVATIONS[activation](inner)
    left, gate = inner.chunk(2, dim=-1)
    return ACTIVATIONS[activation](left) * gate


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention in a decoder, feed-forward (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, config: BlockConfig, has_cross_attention: bool = False) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.dropout = config.dropout
        self.attention = SelfAttention(config.hidden_size, config.num_heads, config.attention_dropout, config.bias)
        self.attention_norm: nn.Module = config.build_norm()
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = config.build_norm()
        self.cross_attention: CrossAttention | None = None
        if has_cross_attention:
            self.cross_attention = CrossAttention(config.hidden_size, config.num_heads, config.attention_dropout)
            self.cross_attention_norm = config.build_norm()

    def forward(self, hidden: Tensor, context: LayerContext) -> Tensor:  # [N, D] → [N, D], or [M, D] if selected
        """Self-attention, cross-attention if there is a source, feed-forward; each with a residual connection."""
        selected = context.selected
        residual = hidden if selected is None else hidden.index_select(0, selected.indices)
        if self.pre_norm:
            hidden = residual + self.self_attend(self.attention_norm(hidden), context)
            if self.cross_attention is not None:
                hidden = hidden + self.cross_attend(self.cross_attention_norm(hidden), context)
            return hidden + self.apply_feed_forward(self.feed_forward_norm(hidden), context)
        hidden = self.attention_norm(residual + self.self_attend(hidden, context))
        if self.cross_attention is not None:
            hidden = self.cross_attention_norm(hidden + self.cross_attend(hidden, context))
        return self.feed_forward_norm(hidden + self.apply_feed_forward(hidden, context))

    def self_attend(self, hidden: Tensor, context: LayerContext) -> Tensor:
        """Self-attention with dropout."""
        attention = self.attention(
            hidden,
            context.batch,
            context.mask,
            context.positions,
            noise=context.noise,
            selected=context.selected,
        )
        return apply_dropout(attention, self.dropout, context.noise, f"{self.attention.site}.out")

    def cross_attend(self, hidden: Tensor, context: LayerContext) -> Tensor:
        """Cross-attention to the source, with dropout."""
        assert self.cross_attention is not None
        attention = self.cross_attention(
            hidden, context.batch, context.source, context.source_mask, noise=context.noise
        )
        return apply_dropout(attention, self.dropout, context.noise, f"{self.cross_attention.site}.out")

    def apply_feed_forward(self, hidden: Tensor, context: LayerContext) -> Tensor:
        """Feed-forward layer with dropout."""
        output = self.feed_forward(hidden, context.noise)
        return apply_dropout(output, self.dropout, context.noise, self.feed_forward.site)


class TransformerStack(nn.Module):
    """Blocks in sequence, with a final norm in pre-norm stacks; layers may share blocks.

    `shared` has the index of each layer's block; empty: every layer has its own.
    """

    def __init__(
        self,
        num_layers: int,
        config: BlockConfig,
        name: str,
        shared: Sequence[int] = (),
        has_cross_attention: bool = False,
    ) -> None:
        super().__init__()
        num_blocks = max(shared) + 1 if shared else num_layers
        self.layers = nn.ModuleList(TransformerBlock(config, has_cross_attention) for _ in range(num_blocks))
        self.final_norm: nn.Module = config.build_norm() if config.pre_norm else nn.Identity()
        if not config.first_attention_norm:
            self.layers[0].attention_norm = nn.Identity()
        # a plain list: the copies are not submodules, so their weights appear once in the state dict
        self._shared_blocks = [_copy_with_own_sites(self.layers[index]) for index in shared]
        for layer, block in enumerate(self.layer_blocks):
            block.attention.site = f"{name}.{layer}.self"
            block.feed_forward.site = f"{name}.{layer}.feedforward"
            if block.cross_attention is not None:
                block.cross_attention.site = f"{name}.{layer}.cross"

    @property
    def layer_blocks(self) -> Sequence[TransformerBlock]:
        """The block of each layer."""
        return self._shared_blocks or [*self.layers]

    def same_for_all_layers(self, mask: BoundMask | None, positions: Positions) -> list[LayerMask]:
        """One mask and positional scheme for all layers."""
        return [LayerMask(mask, positions)] * len(self.layer_blocks)


def _copy_with_own_sites(block: nn.Module) -> TransformerBlock:
    """Copy a block that shares its weights with the original but has its own site names."""
    assert isinstance(block, TransformerBlock)
    shared = copy(block)
    own_modules = {name: copy(block._modules[name]) for name in ("attention", "feed_forward")}
    shared._modules = {**block._modules, **own_modules}
    return shared


class Encoder(TransformerStack):
    """A stack of blocks without cross-attention; with a causal mask, also a GPT decoder."""

    def __init__(self, num_layers: int, config: BlockConfig, name: str = "encoder", shared: Sequence[int] = ()) -> None:
        super().__init__(num_layers, config, name, shared)

    def forward(
        self,
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        layer_masks: Sequence[LayerMask],
        noise: Noise | None,
        selected: SelectedTokens | None = None,
    ) -> Tensor:  # [N, D], or [M, D] of the selected tokens
        """Hidden states of all tokens, or of the selected ones."""
        # the last block computes the selected tokens alone if these attend to their whole sequences
        selected_in_block = selected if layer_masks[-1].is_global else None
        for layer_output in self.hidden_states(hidden, batch, layer_masks, noise, selected_in_block):
            hidden = layer_output
        if selected is not None and selected_in_block is None:
            hidden = hidden.index_select(0, selected.indices)
        normed: Tensor = self.final_norm(hidden)
        return normed

    def hidden_states(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        masks: Sequence[LayerMask],
        noise: Noise | None,
        selected: SelectedTokens | None = None,
    ) -> Iterator[Tensor]:
        """Yield the hidden states after each block, before the final norm; after the last one, of selected tokens."""
        last_layer = len(masks) - 1
        for layer, (block, layer_mask) in enumerate(zip(self.layer_blocks, masks, strict=True)):
            context = LayerContext(
                batch,
                layer_mask.mask,
                positions=layer_mask.positions,
                noise=noise,
                selected=selected if layer == last_layer else None,
            )
            hidden = block(hidden, context)
            yield hidden


class Decoder(TransformerStack):
    """A stack of blocks with cross-attention."""

    def __init__(self, num_layers: int, config: BlockConfig) -> None:
        super().__init__(num_layers, config, "decoder", has_cross_attention=True)

    def precompute_keys_values(self, hidden: Tensor, batch: PackedBatch) -> list[CrossKeyValues]:
        """Keys and values of the source for every layer."""
        keys_values = []
        for block in self.layer_blocks:
            assert block.cross_attention is not None
            keys_values.append(block.cross_attention.precompute_keys_values(hidden, batch))
        return keys_values

    def forward(
        self,
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        layer_mask: LayerMask,
        sources: Sequence[CrossKeyValues],
        source_mask: BoundMask | None,
        noise: Noise | None = None,
    ) -> Tensor:  # [N, D]
        """Hidden states of the target tokens; `sources` has each layer's keys and values of the source."""
        for block, source in zip(self.layer_blocks, sources, strict=True):
            context = LayerContext(
                batch,
                layer_mask.mask,
                positions=layer_mask.positions,
                noise=noise,
                source=source,
                source_mask=source_mask,
            )
            hidden = block(hidden, context)
        normed: Tensor = self.final_norm(hidden)
        return normed
