"""What is remembered while a text is written: keys and values of all layers, once for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass
class KeyValues:
    """Keys and values of the tokens so far, of all layers together, in a room that fills up."""

    values: Tensor  # [L, 2, R, H, room, d]: keys, then values
    length: int = 0  # tokens that every layer has

    @classmethod
    def empty(
        cls, layers: int, rows: int, heads: int, room: int, width: int, device: torch.device | str = "cpu"
    ) -> Self:
        """Return a cache with nothing in it; its numbers are float32, in which one query is looked up fastest."""
        return cls(torch.empty(layers, 2, rows, heads, room, width, device=device))

    @property
    def room(self) -> int:
        """How many tokens there is place for."""
        return self.values.shape[4]

    def make_room(self) -> None:
        """Have a place for one more token of each row."""
        if self.length == self.room:
            self.values = self._kept(self.values, 2 * self.room)

    def put(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values of the next token, each [R, H, d]; return all of its so far."""
        keys, values = self.values[layer].unbind()
        keys[:, :, self.length] = key
        values[:, :, self.length] = value
        return keys[:, :, : self.length + 1], values[:, :, : self.length + 1]

    def select(self, rows: Tensor) -> Self:
        """Return the rows with these numbers, in this order; rows may repeat."""
        chosen = self.values[..., : self.length, :].index_select(2, rows)
        return type(self)(self._kept(chosen, self.room), self.length)

    def _kept(self, old: Tensor, room: int) -> Tensor:
        made = old.new_empty(*old.shape[:4], room, old.shape[5])
        made[..., : self.length, :] = old[..., : self.length, :]
        return made


@dataclass(frozen=True)
class Memory:
    """Keys and values of a source, once per sentence however many rows look at it."""

    key: Tensor  # [S, H, K, d]
    value: Tensor  # [S, H, K, d]

    def select(self, sentences: Tensor) -> Memory:
        """Return the sentences with these numbers."""
        return Memory(self.key.index_select(0, sentences), self.value.index_select(0, sentences))
