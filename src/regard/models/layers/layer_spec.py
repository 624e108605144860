"""What differs between the layers of a stack: block, mask, window and positional scheme, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks import BoundMask, Padding, causal, window
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import NO_POSITIONS, BoundPositions, Positions
from regard.attention.sparse import BlockSparseMask, big_bird
from regard.config.description import LayerDescription
from regard.errors import UsageError


@dataclass(frozen=True)
class BlockSparsity:
    """BigBird's attention between few blocks of a long sequence."""

    block_size: int
    random_blocks: int = 0
    extra_first_block: int = 0  # how many more times the first block's keys count
    max_full_length: int = 0  # longest sequence with full attention

    def bind(self, batch: PackedBatch) -> BlockSparseMask:
        """The mask of a batch."""
        return BlockSparseMask(
            big_bird(self.random_blocks),
            self.block_size,
            batch.lengths,
            max_full_length=self.max_full_length,
            extra_first_block=self.extra_first_block,
        )


@dataclass(frozen=True, eq=False)
class LayerSpec:
    """One layer of a stack.

    ALBERT's layers share `block`; ModernBERT's and Gemma's differ in `window` and `positions`; BigBird's are `sparse`.
    """

    block: int  # index of its block among those of the stack
    positions: Positions = NO_POSITIONS
    is_causal: bool = False
    window: int = 0  # tokens on either side that a token attends to, earlier ones if causal; 0: all
    sparsity: BlockSparsity | None = None

    def mask_key(self, batch: PackedBatch) -> tuple[bool, int, BlockSparsity | None]:
        """What determines the layer's mask: layers with the same key share it."""
        is_sparse = self.sparsity is not None and batch.may_exceed(self.sparsity.max_full_length)
        is_local = self.window > 0 and batch.may_exceed(self.window + 1)
        return self.is_causal, self.window if is_local else 0, self.sparsity if is_sparse else None


class LayerMask(NamedTuple):
    """Mask and positional scheme of one layer, for one batch."""

    mask: BoundMask | None  # None: attention to everything
    positions: BoundPositions

    @property
    def is_global(self) -> bool:
        """Whether every token attends to its whole sequence."""
        return type(self.mask) is BoundMask and type(self.mask.mask) is Padding

    @property
    def can_select(self) -> bool:
        """Whether the mask can be bound to selected queries alone: it is neither local nor block-sparse."""
        return type(self.mask) is BoundMask


def same_layers(num_layers: int, positions: Positions = NO_POSITIONS, *, is_causal: bool = False) -> list[LayerSpec]:
    """Layers that differ in their blocks alone."""
    return [LayerSpec(block, positions, is_causal=is_causal) for block in range(num_layers)]


def build_layers(layers: Sequence[LayerDescription], positions: Positions) -> list[LayerSpec]:
    """Layers of a description that share a positional scheme."""
    return [LayerSpec(layer.block, positions, is_causal=layer.is_causal, window=layer.window) for layer in layers]


def bind_masks(layers: Sequence[LayerSpec], batch: PackedBatch, *, is_cached: bool = False) -> list[LayerMask]:
    """Masks and positions of each layer for a batch; layers with the same ones share them.

    `is_cached`: the tokens of the batch follow those of a cache.
    """
    query_positions = batch.padded_positions
    key_positions = _cached_positions(batch) if is_cached else query_positions
    masks: dict[object, BoundMask | None] = {}
    schemes: dict[Positions, BoundPositions] = {}
    layer_masks = []
    for layer in layers:
        key = layer.mask_key(batch)
        if key not in masks:
            masks[key] = _bind_cached_mask(*key, batch) if is_cached else _bind_mask(*key, batch)
        if layer.positions not in schemes:
            schemes[layer.positions] = layer.positions.bind(query_positions, key_positions)
        layer_masks.append(LayerMask(masks[key], schemes[layer.positions]))
    return layer_masks


def _bind_mask(is_causal: bool, window_size: int, sparsity: BlockSparsity | None, batch: PackedBatch) -> BoundMask:
    """The mask of whole sequences."""
    if sparsity is not None:
        return sparsity.bind(batch)
    if not is_causal:
        return batch.local_mask(window_size) if window_size else batch.full_mask()
    if not window_size:
        return batch.causal_mask()
    return batch.bind(causal() & window(window_size))


def _bind_cached_mask(
    is_causal: bool, window_size: int, sparsity: BlockSparsity | None, batch: PackedBatch
) -> BoundMask | None:
    """The mask from new tokens, equally many in each row, to all tokens so far."""
    if not is_causal or sparsity is not None or not batch.is_rectangular:
        raise UsageError(
            "only causal layers decode with a cache, with equally many new tokens in each row: "
            "compute whole sequences instead"
        )
    if batch.max_length == 1 and not window_size:
        return None
    mask = causal() & window(window_size) if window_size else causal()
    return mask.bind(batch.padded_positions, _cached_positions(batch))


def _cached_positions(batch: PackedBatch) -> Tensor:
    """Positions of all tokens so far, [1, K]."""
    return torch.arange(batch.position_offset + batch.max_length, device=batch.lengths.device)[None]
