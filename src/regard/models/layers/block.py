"""Feed-forward part, residual arrangement, encoder and decoder blocks and their stacks."""

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
    "gelu_tanh": lambda states: functional.gelu(states, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "quick_gelu": lambda states: states * torch.sigmoid(1.702 * states),
}


class LayerMask(NamedTuple):
    """What a layer is told beside the states: who may look at whom, and how places turn queries and keys."""

    mask: BoundMask | None
    positions: Positions

    @property
    def is_global(self) -> bool:
        """Whether everybody looks at its whole row."""
        return type(self.mask) is BoundMask and type(self.mask.mask) is Padding


@dataclass(frozen=True)
class BlockConfig:
    """What blocks of one stack have in common."""

    hidden_size: int
    heads: int
    feedforward: int
    activation: str
    norm_before: bool
    norm_eps: float
    dropout: float
    attention_dropout: float
    activation_dropout: float
    gated: bool = False
    biases: bool = True
    first_norm: bool = True

    def norm(self) -> nn.LayerNorm:
        """Return a fresh layer norm."""
        return nn.LayerNorm(self.hidden_size, self.norm_eps, bias=self.biases)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, for each token alone.

    A gated part makes twice as much inside, and multiplies the activated half with the other (Shazeer 2020).
    """

    def __init__(self, shape: BlockConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(shape.hidden_size, shape.feedforward * (2 if shape.gated else 1), bias=shape.biases)
        self.outer = nn.Linear(shape.feedforward, shape.hidden_size, bias=shape.biases)
        self.activation, self.gated, self.dropout = shape.activation, shape.gated, shape.activation_dropout
        self.site = ""

    def forward(self, hidden: Tensor, noise: Noise | None) -> Tensor:
        active = activate(self.inner(hidden), self.activation, self.gated)
        return self.outer(apply_dropout(active, self.dropout, noise, f"{self.site}.inner"))


def activate(inner: Tensor, activation: str, is_gated: bool) -> Tensor:
    """Return what the second layer is given, of what the first one makes.

    >>> activate(torch.tensor([[-1.0, 2.0, 3.0, 4.0]]), "relu", is_gated=True).tolist()
    [[0.0, 8.0]]
    """
    if not is_gated:
        return ACTIVATIONS[activation](inner)
    left, gate = inner.chunk(2, dim=-1)
    return ACTIVATIONS[activation](left) * gate


class Residual(nn.Module):
    """Adds a part's result to its input, with the norm before the part or after the sum."""

    def __init__(self, shape: BlockConfig) -> None:
        super().__init__()
        self.norm_before, self.dropout = shape.norm_before, shape.dropout

    def add(
        self,
        hidden: Tensor,
        norm: nn.Module,
        part: Callable[[Tensor], Tensor],
        noise: Noise | None,
        site: str,
        selected: SelectedTokens | None = None,
    ) -> Tensor:
        """Return states + drop(part(norm(states))), or norm(states + drop(part(states))); of chosen ones alone."""
        kept = hidden if selected is None else hidden.index_select(0, selected.indices)
        if self.norm_before:
            return kept + apply_dropout(part(norm(hidden)), self.dropout, noise, site)
        summed: Tensor = norm(kept + apply_dropout(part(hidden), self.dropout, noise, site))
        return summed


class TransformerBlock(Residual):
    """Self-attention, then feed-forward."""

    def __init__(self, shape: BlockConfig) -> None:
        super().__init__(shape)
        self.attention = SelfAttention(shape.hidden_size, shape.heads, shape.attention_dropout, shape.biases)
        self.attention_norm: nn.Module = shape.norm()
        self.feedforward = FeedForward(shape)
        self.feedforward_norm = shape.norm()

    def forward(
        self,
        hidden: Tensor,  # [N, D]
        batch: PackedBatch,
        mask: BoundMask | None,
        positions: Positions,
        *,
        noise: Noise | None = None,
        selected: SelectedTokens | None = None,
    ) -> Tensor:
        return self.feed_forward(self.self_attend(hidden, batch, mask, positions, noise, selected), noise)

    def self_attend(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        mask: BoundMask | None,
        positions: Positions,
        noise: Noise | None,
        selected: SelectedTokens | None = None,
    ) -> Tensor:
        """The self-attention part."""

        def part(inner: Tensor) -> Tensor:
            return self.attention(inner, batch, mask, positions, noise=noise, selected=selected)

        return self.add(hidden, self.attention_norm, part, noise, f"{self.attention.site}.out", selected)

    def feed_forward(self, hidden: Tensor, context: Noise | None) -> Tensor:
        """The feed-forward part."""
        site = self.feedforward.site
        return self.add(hidden, self.feedforward_norm, lambda inner: self.feedforward(inner, context), context, site)


class DecoderBlock(TransformerBlock):
    """Self-attention, then cross-attention to the source, then feed-forward."""

    def __init__(self, shape: BlockConfig) -> None:
        super().__init__(shape)
        self.cross = CrossAttention(shape.hidden_size, shape.heads, shape.attention_dropout)
        self.cross_norm = shape.norm()

    def decode(
        self,
        hidden: Tensor,  # [N, D]
        view: LayerContext,
        memory: CrossKeyValues,
        *,
        noise: Noise | None = None,
    ) -> Tensor:
        """Return the states after this block."""
        hidden = self.self_attend(hidden, view.batch, view.mask, view.positions, noise)

        def part(inner: Tensor) -> Tensor:
            return self.cross(inner, view.batch, memory, view.source_mask, noise=noise)

        hidden = self.add(hidden, self.cross_norm, part, noise, f"{self.cross.site}.out")
        return self.feed_forward(hidden, noise)


@dataclass(frozen=True)
class LayerContext:
    """What all decoder blocks share in one forward: who stands where and who may look at whom."""

    batch: PackedBatch  # the target's
    mask: BoundMask | None
    positions: Positions
    source_mask: BoundMask | None


class TransformerStack(nn.Module):
    """Blocks one after another, with a last norm where norms come first; layers may share blocks."""

    def __init__(
        self, kind: type[TransformerBlock], layers: int, shape: BlockConfig, name: str, shared: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind(shape) for _ in range(max(shared) + 1 if shared else layers))
        self.norm: nn.Module = shape.norm() if shape.norm_before else nn.Identity()
        if not shape.first_norm:
            self.blocks[0].attention_norm = nn.Identity()
        self._seen = [_seen(self.blocks[number]) for number in shared]  # not modules of the stack: no weights of theirs
        for number, block in enumerate(self.layer_blocks):
            site = f"{name}.{number}"
            assert isinstance(block, TransformerBlock)
            block.attention.site = f"{site}.self"
            block.feedforward.site = f"{site}.feedforward"
            if isinstance(block, DecoderBlock):
                block.cross.site = f"{site}.cross"

    @property
    def layer_blocks(self) -> Sequence[nn.Module]:
        """The block of each layer."""
        return self._seen or [*self.blocks]

    def same_for_all_layers(self, mask: BoundMask | None, positions: Positions) -> list[LayerMask]:
        """Return the same view for each layer."""
        return [LayerMask(mask, positions)] * len(self.layer_blocks)


def _seen(block: nn.Module) -> nn.Module:
    """Return a block with the same weights, whatever becomes of them, that has sites of its own."""
    view = copy(block)
    view._modules = {**block._modules, **{name: copy(block._modules[name]) for name in ("attention", "feedforward")}}
    return view


class Encoder(TransformerStack):
    """A stack of encoder blocks; `shared` has the number of each layer's block where layers share them."""

    def __init__(self, layers: int, shape: BlockConfig, name: str = "encoder", shared: Sequence[int] = ()) -> None:
        super().__init__(TransformerBlock, layers, shape, name, shared)

    def forward(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        views: Sequence[LayerMask],
        noise: Noise | None,
        selected: SelectedTokens | None = None,
    ) -> Tensor:
        """Return the states after all blocks; of chosen tokens alone the last block need not make any others."""
        few = selected if views[-1].is_global else None
        for made in self.hidden_states(hidden, batch, views, noise, few):
            hidden = made
        if selected is not None and few is None:
            hidden = hidden.index_select(0, selected.indices)
        normed: Tensor = self.norm(hidden)
        return normed

    def hidden_states(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        masks: Sequence[LayerMask],
        noise: Noise | None,
        selected: SelectedTokens | None = None,
    ) -> Iterator[Tensor]:
        """Yield the states after each block, before the last norm; of the last block only few where they are chosen."""
        for number, (block, view) in enumerate(zip(self.layer_blocks, masks, strict=True), 1):
            chosen = selected if number == len(masks) else None
            hidden = block(hidden, batch, view.mask, view.positions, noise=noise, selected=chosen)
            yield hidden


class Decoder(TransformerStack):
    """A stack of decoder blocks."""

    def __init__(self, layers: int, shape: BlockConfig) -> None:
        super().__init__(DecoderBlock, layers, shape, "decoder")

    def precompute_keys_values(self, hidden: Tensor, batch: PackedBatch) -> list[CrossKeyValues]:
        """Return each layer's keys and values of the source."""
        return [block.cross.precompute_keys_values(hidden, batch) for block in self.blocks]  # type: ignore[operator, union-attr]

    def forward(
        self, hidden: Tensor, view: LayerContext, memories: Sequence[CrossKeyValues], noise: Noise | None = None
    ) -> Tensor:
        for block, memory in zip(self.blocks, memories, strict=True):
            hidden = block.decode(hidden, view, memory, noise=noise)  # type: ignore[operator]
        normed: Tensor = self.norm(hidden)
        return normed
