"""`PaddedBatch`: the layout of a padded tensor, for graphs that are exported before the sequences are known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.attention.masks import BoundMask, Mask, window
from regard.attention.packed_batch import PackedBatch


class PaddedBatch(PackedBatch):
    """Layout of B sequences in a padded tensor [B, T]: padding counts as tokens, and masks hide it.

    Nothing here depends on the values of a tensor: what torch exports holds for any batch, length and padding.

    >>> batch = PaddedBatch(torch.tensor([[1, 1, 1], [1, 0, 0]]))
    >>> batch.positions.tolist(), batch.lengths.tolist()
    ([0, 1, 2, 0, 1, 2], [3, 1])
    >>> batch.full_mask().dense[:, 0, 0].int().tolist()
    [[1, 1, 1], [1, 0, 0]]
    """

    def __init__(self, attention_mask: Tensor) -> None:
        """`attention_mask` is [B, T], 0 at padding, wherever that is."""
        self.num_rows, self.max_length = attention_mask.shape
        self.num_tokens = self.num_rows * self.max_length
        self.num_padding = 0  # none after the last sequence
        self.is_rectangular = True
        self.position_offset = 0
        self.is_padding = attention_mask == 0
        self.lengths = (~self.is_padding).sum(1)
        self.positions = self.padded_positions.expand(self.num_rows, -1).flatten()

    def pad(self, packed: Tensor) -> Tensor:
        """[B · T, …] → [B, T, …]."""
        return packed.unflatten(0, (self.num_rows, self.max_length))

    def pack(self, padded: Tensor) -> Tensor:
        """[B, T, …] → [B · T, …]."""
        return padded.flatten(0, 1)

    @property
    def first_indices(self) -> Tensor:
        """Index of each sequence's first token, [B]."""
        return torch.arange(self.num_rows, device=self.lengths.device) * self.max_length

    def may_exceed(self, length: int) -> bool:
        """Always true: the sequences may have any length."""
        return True

    def bind(self, mask: Mask) -> BoundMask:
        """Bind a mask to the sequences of this batch; padding is masked, too."""
        return _AnyMask(mask & _KeyPadding(self.is_padding), self.padded_positions, self.padded_positions)

    def full_mask(self) -> BoundMask:
        """Bidirectional mask: a token attends to every token of its sequence."""
        return _AnyMask(_KeyPadding(self.is_padding), self.padded_positions, self.padded_positions)

    def pooling_mask(self) -> BoundMask:
        """Mask from one query for each sequence to all tokens of the sequence."""
        return _AnyMask(_KeyPadding(self.is_padding), self.padded_positions[:, :1], self.padded_positions)

    def local_mask(self, window_size: int) -> BoundMask:
        """Sliding-window mask, dense: chunks of queries would have a fixed number."""
        return self.bind(window(window_size))


@dataclass(frozen=True, eq=False)
class _KeyPadding(Mask):
    """No query attends to padding."""

    is_padding: Tensor  # [B, K]

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return ~self.is_padding[:, None, None, :]

    def __str__(self) -> str:
        return "padding()"


class _AnyMask(BoundMask):
    """A mask that is applied whatever its values are: none of the shortcuts for full or empty rows is taken."""

    @cached_property
    def dense(self) -> Tensor:
        return self.mask.allows(self.query[:, None, :, None], self.key[:, None, None, :], self.key.shape[1])

    @cached_property
    def masked_queries(self) -> Tensor | None:
        return None

    @cached_property
    def is_full(self) -> bool:
        return False
