"""Keys and values kept during decoding: of the generated tokens, and of the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass
class KeyValueCache:
    """Keys and values of the tokens so far, of all layers, in a buffer that doubles when it is full.

    The token axis comes first: a step writes one contiguous block, and rows are reordered by one copy.
    """

    buffer: Tensor  # [capacity, L, R, H, d + v]: key, then value
    key_size: int  # d
    length: int = 0  # tokens that every layer holds
    reorder_buffer: Tensor | None = None  # second buffer, into which `select` copies

    @classmethod
    def empty(
        cls,
        layers: int,
        rows: int,
        heads: int,
        *,
        capacity: int,
        key_size: int,
        value_size: int,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Allocate an empty cache in float32, in which attention of a single query is fastest."""
        return cls(torch.empty(capacity, layers, rows, heads, key_size + value_size, device=device), key_size)

    def reserve(self, num_tokens: int = 1) -> None:
        """Make sure that this many more tokens of each row fit."""
        capacity = len(self.buffer)
        needed = self.length + num_tokens
        if needed > capacity:
            larger = self.buffer.new_empty(max(2 * capacity, needed), *self.buffer.shape[1:])
            larger[: self.length] = self.buffer[: self.length]
            self.buffer = larger
            self.reorder_buffer = None

    def select(self, rows: Tensor) -> Self:
        """Cache of these rows in this order; rows may repeat. This cache must not be used afterwards."""
        capacity, layers, num_rows, *head_shape = self.buffer.shape
        shape = (capacity, layers, len(rows), *head_shape)
        target = self.reorder_buffer
        if target is None or target.shape != shape:
            target = self.buffer.new_empty(shape)
        torch.index_select(self.buffer[: self.length], 2, rows, out=target[: self.length])
        reusable = self.buffer if len(rows) == num_rows else None
        return type(self)(target, self.key_size, length=self.length, reorder_buffer=reusable)


@dataclass(frozen=True)
class LayerCache:
    """The part of a key–value cache that belongs to one layer."""

    cache: KeyValueCache
    layer: int

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append new tokens' keys [R, H, T, d] and values [R, H, T, v]; return all of the layer, [R, H, t, …].

        There must be room (`reserve`); the cache's length is increased after the last layer.
        """
        cache = self.cache
        stop = cache.length + key.shape[2]
        states = cache.buffer[:stop, self.layer].permute(1, 2, 0, 3)  # [R, H, t, d + v]
        keys = states[..., : cache.key_size]
        values = states[..., cache.key_size :]
        keys[:, :, cache.length :] = key
        values[:, :, cache.length :] = value
        return keys, values


@dataclass(frozen=True)
class CrossKeyValues:
    """Keys and values of the source, once per sentence however many rows attend to it."""

    key: Tensor  # [S, H, K, d]
    value: Tensor  # [S, H, K, v]

    def to_contiguous_float(self) -> CrossKeyValues:
        """Copy in float32 and in order, in which attention of a single query is fastest."""
        return CrossKeyValues(self.key.float().contiguous(), self.value.float().contiguous())

    def select(self, sentences: Tensor) -> CrossKeyValues:
        """Keys and values of these sentences."""
        return CrossKeyValues(self.key.index_select(0, sentences), self.value.index_select(0, sentences))
