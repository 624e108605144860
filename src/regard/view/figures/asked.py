"""What a figure is asked to show, and how it is to look."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from regard.view.chosen import Chosen, choose
from regard.view.drawing import Drawing
from regard.view.palette import Theme
from regard.view.record import Record


@dataclass(frozen=True)
class Asked:
    """A record and the part of it that a figure shows."""

    record: Record
    width: float  # in points
    theme: Theme
    attention: str = ""
    layer: int | None = None
    head: int | None = None
    words: bool = False
    row: str | int | None = None
    norm: str = "raw"

    @cached_property
    def chosen(self) -> Chosen:
        """The table of weights."""
        return choose(self.record, self.attention, self.layer, self.head, words=self.words, norm=self.norm)

    def drawing(self) -> Drawing:
        """Return an empty drawing of the asked width."""
        return Drawing(self.width, self.theme)
