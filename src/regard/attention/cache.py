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

    values: Tensor  # [capacity, L, 2, R, H, d]: keys, then values
    length: int = 0  # tokens that every layer holds
    reorder_buffer: Tensor | None = None  # second buffer, into which `select` copies

    @classmethod
    def empty(
        cls, layers: int, rows: int, heads: int, capacity: int, head_size: int, device: torch.device | str = "cpu"
    ) -> Self:
        """Allocate an empty cache in float32, in which attention of a single query is fastest."""
        return cls(torch.empty(capacity, layers, 2, rows, heads, head_size, device=device))

    def reserve(self) -> None:
        """Make sure that one more token of each row fits."""
        capacity = len(self.values)
        if self.length == capacity:
            larger = self.values.new_empty(2 * capacity, *self.values.shape[1:])
            larger[:capacity] = self.values
            self.values = larger
            self.reorder_buffer = None

    def prefill(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write a layer's keys and values of the prompt, each [R, H, T, d]; the capacity must suffice."""
        prompt = self.values[: key.shape[2], layer]
        prompt[:, 0] = key.permute(2, 0, 1, 3)
        prompt[:, 1] = value.permute(2, 0, 1, 3)

    def append(self, layer: int, key_value: Tensor) -> tuple[Tensor, Tensor]:
        """Append one token's keys and values, [R, 2, H, d]; return all of the layer, each [R, H, t, d]."""
        self.values[self.length, layer].copy_(key_value.transpose(0, 1))
        key, value = self.values[: self.length + 1, layer].permute(1, 2, 3, 0, 4).unbind(0)
        return key, value

    def select(self, rows: Tensor) -> Self:
        """Cache of these rows in this order; rows may repeat. This cache must not be used afterwards."""
        shape = (*self.values.shape[:3], len(rows), *self.values.shape[4:])
        target = self.reorder_buffer
        if target is None or target.shape != shape:
            target = self.values.new_empty(shape)
        torch.index_select(self.values[: self.length], 3, rows, out=target[: self.length])
        reusable = self.values if len(rows) == self.values.shape[3] else None
        return type(self)(target, self.length, reusable)


@dataclass(frozen=True)
class CrossKeyValues:
    """Keys and values of the source, once per sentence however many rows attend to it."""

    key: Tensor  # [S, H, K, d]
    value: Tensor  # [S, H, K, d]

    def select(self, sentences: Tensor) -> CrossKeyValues:
        """Keys and values of these sentences."""
        return CrossKeyValues(self.key.index_select(0, sentences), self.value.index_select(0, sentences))
