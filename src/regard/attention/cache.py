"""What is remembered while a text is written: keys and values, once for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor


@dataclass
class KeyValues:
    """Keys and values of the tokens so far, in a fixed room that fills up."""

    key: Tensor  # [R, H, room, d]
    value: Tensor  # [R, H, room, d]
    length: int = 0

    @classmethod
    def empty(cls, rows: int, heads: int, room: int, width: int, like: Tensor) -> Self:
        """Return a cache with nothing in it, in the format of `like`."""
        made = like.new_empty(2, rows, heads, room, width)
        return cls(made[0], made[1])

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add [R, H, Q, d] at the end and return all so far."""
        end = self.length + key.shape[2]
        if end > self.key.shape[2]:
            room = max(end, 2 * self.key.shape[2])
            self.key, self.value = (self._grown(old, room) for old in (self.key, self.value))
        self.key[:, :, self.length : end] = key
        self.value[:, :, self.length : end] = value
        self.length = end
        return self.key[:, :, :end], self.value[:, :, :end]

    def select(self, rows: Tensor) -> Self:
        """Return the rows with these numbers, in this order; rows may repeat."""
        room = self.key.shape[2]
        key, value = (
            self._grown(old[:, :, : self.length].index_select(0, rows), room) for old in (self.key, self.value)
        )
        return type(self)(key, value, self.length)

    def _grown(self, old: Tensor, room: int) -> Tensor:
        made = old.new_empty(old.shape[0], old.shape[1], room, old.shape[3])
        made[:, :, : self.length] = old[:, :, : self.length]
        return made


@dataclass
class Memory:
    """Keys and values of a source, once per sentence however many rows look at it."""

    key: Tensor  # [S, H, K, d]
    value: Tensor  # [S, H, K, d]

    def select(self, sentences: Tensor) -> Memory:
        """Return the sentences with these numbers."""
        return Memory(self.key.index_select(0, sentences), self.value.index_select(0, sentences))
