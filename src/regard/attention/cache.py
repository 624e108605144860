"""What is remembered while a text is written: keys and values of all layers, once for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass
class KeyValueCache:
    """Keys and values of the tokens so far, of all layers together, in a room that fills up.

    Tokens come first in memory: a step writes one block, and rows are put in another order by one copy.
    """

    values: Tensor  # [room, L, 2, R, H, d]: keys, then values
    length: int = 0  # tokens that every layer has
    capacity_step: Tensor | None = None  # a second room, where rows are put in another order

    @classmethod
    def empty(
        cls, layers: int, rows: int, heads: int, capacity: int, head_size: int, device: torch.device | str = "cpu"
    ) -> Self:
        """Return a cache with nothing in it; its numbers are float32, in which one query is looked up fastest."""
        return cls(torch.empty(capacity, layers, 2, rows, heads, head_size, device=device))

    def reserve(self) -> None:
        """Have a place for one more token of each row."""
        room = len(self.values)
        if self.length == room:
            made = self.values.new_empty(2 * room, *self.values.shape[1:])
            made[:room] = self.values
            self.values, self.capacity_step = made, None

    def prefill(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write a layer's keys and values of the first tokens of all rows, each [R, H, T, d]; the room suffices."""
        places = self.values[: key.shape[2], layer]
        places[:, 0] = key.permute(2, 0, 1, 3)
        places[:, 1] = value.permute(2, 0, 1, 3)

    def append(self, layer: int, key_value: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of a layer's next token, [R, 2, H, d]; return all of its so far, each [R, H, t, d]."""
        self.values[self.length, layer].copy_(key_value.transpose(0, 1))
        key, value = self.values[: self.length + 1, layer].permute(1, 2, 3, 0, 4).unbind(0)
        return key, value

    def select(self, rows: Tensor) -> Self:
        """Return the rows with these numbers, in this order; rows may repeat. This cache is used up."""
        shape = (*self.values.shape[:3], len(rows), *self.values.shape[4:])
        same = self.capacity_step is not None and self.capacity_step.shape == shape
        made = self.capacity_step if same and self.capacity_step is not None else self.values.new_empty(shape)
        torch.index_select(self.values[: self.length], 3, rows, out=made[: self.length])
        again = self.values if len(rows) == self.values.shape[3] else None
        return type(self)(made, self.length, again)


@dataclass(frozen=True)
class CrossKeyValues:
    """Keys and values of a source, once per sentence however many rows look at it."""

    key: Tensor  # [S, H, K, d]
    value: Tensor  # [S, H, K, d]

    def select(self, sentences: Tensor) -> CrossKeyValues:
        """Return the sentences with these numbers."""
        return CrossKeyValues(self.key.index_select(0, sentences), self.value.index_select(0, sentences))
