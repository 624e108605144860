"""Feed-forward part, residual arrangement, encoder and decoder blocks and their stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.cache import Memory
from regard.attention.masks import Padding, PlacedMask
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.noise import Noise, drop
from regard.attention.positions import Positions
from regard.attention.rows import Chosen, Rows

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda states: functional.gelu(states, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "quick_gelu": lambda states: states * torch.sigmoid(1.702 * states),
}


class View(NamedTuple):
    """What a layer is told beside the states: who may look at whom, and how places turn queries and keys."""

    mask: PlacedMask | None
    positions: Positions

    @property
    def whole(self) -> bool:
        """Whether everybody looks at its whole row."""
        return type(self.mask) is PlacedMask and type(self.mask.mask) is Padding


@dataclass(frozen=True)
class BlockShape:
    """What blocks of one stack have in common."""

    width: int
    heads: int
    feedforward: int
    activation: str
    norm_before: bool
    epsilon: float
    dropout: float
    attention_dropout: float
    activation_dropout: float
    gated: bool = False
    biases: bool = True
    first_norm: bool = True

    def norm(self) -> nn.LayerNorm:
        """Return a fresh layer norm."""
        return nn.LayerNorm(self.width, self.epsilon, bias=self.biases)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, for each token alone.

    A gated part makes twice as much inside, and multiplies the activated half with the other (Shazeer 2020).
    """

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.inner = nn.Linear(shape.width, shape.feedforward * (2 if shape.gated else 1), bias=shape.biases)
        self.outer = nn.Linear(shape.feedforward, shape.width, bias=shape.biases)
        self.activation, self.gated, self.dropout = shape.activation, shape.gated, shape.activation_dropout
        self.site = ""

    def forward(self, states: Tensor, noise: Noise | None) -> Tensor:
        active = activated(self.inner(states), self.activation, self.gated)
        return self.outer(drop(active, self.dropout, noise, f"{self.site}.inner"))


def activated(inner: Tensor, activation: str, gated: bool) -> Tensor:
    """Return what the second layer is given, of what the first one makes.

    >>> activated(torch.tensor([[-1.0, 2.0, 3.0, 4.0]]), "relu", gated=True).tolist()
    [[0.0, 8.0]]
    """
    if not gated:
        return ACTIVATIONS[activation](inner)
    left, gate = inner.chunk(2, dim=-1)
    return ACTIVATIONS[activation](left) * gate


class Residual(nn.Module):
    """Adds a part's result to its input, with the norm before the part or after the sum."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.norm_before, self.dropout = shape.norm_before, shape.dropout

    def add(
        self,
        states: Tensor,
        norm: nn.Module,
        part: Callable[[Tensor], Tensor],
        noise: Noise | None,
        site: str,
        chosen: Chosen | None = None,
    ) -> Tensor:
        """Return states + drop(part(norm(states))), or norm(states + drop(part(states))); of chosen ones alone."""
        kept = states if chosen is None else states.index_select(0, chosen.places)
        if self.norm_before:
            return kept + drop(part(norm(states)), self.dropout, noise, site)
        summed: Tensor = norm(kept + drop(part(states), self.dropout, noise, site))
        return summed


class EncoderBlock(Residual):
    """Self-attention, then feed-forward."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        self.attention = SelfAttention(shape.width, shape.heads, shape.attention_dropout, shape.biases)
        self.attention_norm: nn.Module = shape.norm()
        self.feedforward = FeedForward(shape)
        self.feedforward_norm = shape.norm()

    def forward(
        self,
        states: Tensor,  # [N, D]
        rows: Rows,
        mask: PlacedMask | None,
        positions: Positions,
        *,
        noise: Noise | None = None,
        chosen: Chosen | None = None,
    ) -> Tensor:
        return self.think(self.look_around(states, rows, mask, positions, noise, chosen), noise)

    def look_around(
        self,
        states: Tensor,
        rows: Rows,
        mask: PlacedMask | None,
        positions: Positions,
        noise: Noise | None,
        chosen: Chosen | None = None,
    ) -> Tensor:
        """The self-attention part."""

        def part(inner: Tensor) -> Tensor:
            return self.attention(inner, rows, mask, positions, noise=noise, chosen=chosen)

        return self.add(states, self.attention_norm, part, noise, f"{self.attention.site}.out", chosen)

    def think(self, states: Tensor, noise: Noise | None) -> Tensor:
        """The feed-forward part."""
        site = self.feedforward.site
        return self.add(states, self.feedforward_norm, lambda inner: self.feedforward(inner, noise), noise, site)


class DecoderBlock(EncoderBlock):
    """Self-attention, then cross-attention to the source, then feed-forward."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        self.cross = CrossAttention(shape.width, shape.heads, shape.attention_dropout)
        self.cross_norm = shape.norm()

    def decode(
        self,
        states: Tensor,  # [N, D]
        view: DecoderView,
        memory: Memory,
        *,
        noise: Noise | None = None,
    ) -> Tensor:
        """Return the states after this block."""
        states = self.look_around(states, view.rows, view.mask, view.positions, noise)

        def part(inner: Tensor) -> Tensor:
            return self.cross(inner, view.rows, memory, view.source_mask, noise=noise)

        states = self.add(states, self.cross_norm, part, noise, f"{self.cross.site}.out")
        return self.think(states, noise)


@dataclass(frozen=True)
class DecoderView:
    """What all decoder blocks share in one forward: who stands where and who may look at whom."""

    rows: Rows  # the target's
    mask: PlacedMask | None
    positions: Positions
    source_mask: PlacedMask | None


class Stack(nn.Module):
    """Blocks one after another, with a last norm where norms come first; layers may share blocks."""

    def __init__(
        self, kind: type[EncoderBlock], layers: int, shape: BlockShape, name: str, shared: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind(shape) for _ in range(max(shared) + 1 if shared else layers))
        self.norm: nn.Module = shape.norm() if shape.norm_before else nn.Identity()
        if not shape.first_norm:
            self.blocks[0].attention_norm = nn.Identity()
        self._seen = [_seen(self.blocks[number]) for number in shared]  # not modules of the stack: no weights of theirs
        for number, block in enumerate(self.order):
            site = f"{name}.{number}"
            assert isinstance(block, EncoderBlock)
            block.attention.site = f"{site}.self"
            block.feedforward.site = f"{site}.feedforward"
            if isinstance(block, DecoderBlock):
                block.cross.site = f"{site}.cross"

    @property
    def order(self) -> Sequence[nn.Module]:
        """The block of each layer."""
        return self._seen or [*self.blocks]

    def alike(self, mask: PlacedMask | None, positions: Positions) -> list[View]:
        """Return the same view for each layer."""
        return [View(mask, positions)] * len(self.order)


def _seen(block: nn.Module) -> nn.Module:
    """Return a block with the same weights, whatever becomes of them, that has sites of its own."""
    view = copy(block)
    view._modules = {**block._modules, **{name: copy(block._modules[name]) for name in ("attention", "feedforward")}}
    return view


class Encoder(Stack):
    """A stack of encoder blocks; `shared` has the number of each layer's block where layers share them."""

    def __init__(self, layers: int, shape: BlockShape, name: str = "encoder", shared: Sequence[int] = ()) -> None:
        super().__init__(EncoderBlock, layers, shape, name, shared)

    def forward(
        self, states: Tensor, rows: Rows, views: Sequence[View], noise: Noise | None, chosen: Chosen | None = None
    ) -> Tensor:
        """Return the states after all blocks; of chosen tokens alone the last block need not make any others."""
        few = chosen if views[-1].whole else None
        for made in self.layers(states, rows, views, noise, few):
            states = made
        if chosen is not None and few is None:
            states = states.index_select(0, chosen.places)
        normed: Tensor = self.norm(states)
        return normed

    def layers(
        self, states: Tensor, rows: Rows, views: Sequence[View], noise: Noise | None, few: Chosen | None = None
    ) -> Iterator[Tensor]:
        """Yield the states after each block, before the last norm; of the last block only few where they are chosen."""
        for number, (block, view) in enumerate(zip(self.order, views, strict=True), 1):
            chosen = few if number == len(views) else None
            states = block(states, rows, view.mask, view.positions, noise=noise, chosen=chosen)
            yield states


class Decoder(Stack):
    """A stack of decoder blocks."""

    def __init__(self, layers: int, shape: BlockShape) -> None:
        super().__init__(DecoderBlock, layers, shape, "decoder")

    def remember(self, states: Tensor, rows: Rows) -> list[Memory]:
        """Return each layer's keys and values of the source."""
        return [block.cross.remember(states, rows) for block in self.blocks]  # type: ignore[operator, union-attr]

    def forward(
        self, states: Tensor, view: DecoderView, memories: Sequence[Memory], noise: Noise | None = None
    ) -> Tensor:
        for block, memory in zip(self.blocks, memories, strict=True):
            states = block.decode(states, view, memory, noise=noise)  # type: ignore[operator]
        normed: Tensor = self.norm(states)
        return normed
