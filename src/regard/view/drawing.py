"""A drawing: boxes, lines, texts and shaded grids in points, which SVG and TikZ write down alike.

Texts enter a drawing through `Drawing.text` alone: signs that hide or reorder others are shown there by their number,
and what does not fit is shortened, which the drawing remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from regard.view.lettering import shortened, wide
from regard.view.palette import Colour, Theme
from regard.view.record_text import visible

Levels = NDArray[np.int_]  # 0 is the ground; up to palette.LEVELS, and down to -LEVELS where values have a sign
Point = tuple[float, float]
SIZE = 7.0  # of text, in points
SMALL = 6.0
PAD = 2.0  # around a drawing, in points
LINE = 1.35  # from one line of text to the next, in sizes


@dataclass(frozen=True)
class Box:
    """A filled or outlined rectangle."""

    x: float
    y: float
    width: float
    height: float
    fill: Colour | None = None
    stroke: Colour | None = None
    radius: float = 0.0
    line: float = 0.6  # width of its outline


@dataclass(frozen=True)
class Stroke:
    """A line through points; with `bent`, the points are those of one cubic curve."""

    points: tuple[Point, ...]
    colour: Colour
    width: float = 0.6
    bent: bool = False
    dash: tuple[float, ...] = ()


@dataclass(frozen=True)
class Disc:
    """A filled circle."""

    x: float
    y: float
    radius: float
    fill: Colour


@dataclass(frozen=True)
class Words:
    """A line of text; `y` is its base line, `turn` its angle in degrees against the clock."""

    x: float
    y: float
    text: str
    size: float
    colour: Colour
    anchor: str = "start"  # start, middle, end
    turn: float = 0.0
    bold: bool = False


@dataclass(frozen=True)
class Grid:
    """Shaded cells, one for each level that is not 0."""

    x: float
    y: float
    cell: Point
    levels: Levels  # [rows, columns]
    gap: float = 0.0
    signed: bool = False  # in the colours of values with a sign


Mark = Box | Stroke | Disc | Words | Grid


@dataclass
class Drawing:
    """What has been drawn so far, top left first; y grows downwards."""

    width: float
    theme: Theme
    height: float = 0.0
    marks: list[Mark] = field(default_factory=list)
    shortened: bool = False  # whether a text had to be
    notes: list[str] = field(default_factory=list)  # what the picture leaves out

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = SIZE,
        colour: Colour | None = None,
        anchor: str = "start",
        turn: float = 0.0,
        bold: bool = False,
        room: float | None = None,
    ) -> float:
        """Write a line of text, shortened to `room`; return how wide it is."""
        shown = visible(text)
        if room is not None:
            cut = shortened(shown, size, room)
            self.shortened, shown = self.shortened or cut != shown, cut
        if shown:
            self.marks.append(Words(x, y, shown, size, colour or self.theme.text, anchor, turn, bold))
        return wide(shown, size)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: Colour | None = None,
        *,
        stroke: Colour | None = None,
        line: float = 0.6,
        radius: float = 0.0,
    ) -> None:
        """Draw a rectangle."""
        self.marks.append(Box(x, y, width, height, fill, stroke, radius, line))

    def stroke(
        self,
        points: Sequence[Point],
        colour: Colour,
        *,
        width: float = 0.6,
        bent: bool = False,
        dash: tuple[float, ...] = (),
    ) -> None:
        """Draw a line through points."""
        self.marks.append(Stroke(tuple(points), colour, width, bent, dash))

    def disc(self, x: float, y: float, radius: float, fill: Colour) -> None:
        """Draw a filled circle."""
        self.marks.append(Disc(x, y, radius, fill))

    def grid(self, x: float, y: float, cell: Point, levels: Levels, gap: float = 0.0, *, signed: bool = False) -> None:
        """Draw shaded cells."""
        self.marks.append(Grid(x, y, cell, levels, gap, signed))

    def end(self, bottom: float) -> None:
        """Close the drawing below `bottom`."""
        self.height = max(self.height, bottom)


def runs(levels: Levels) -> dict[int, list[tuple[int, int, int]]]:
    """Return the cells of each level as (row, first column, how many): neighbours of one shade are one run.

    >>> runs(np.array([[0, 2, 2], [1, 0, 2]]))
    {1: [(1, 0, 1)], 2: [(0, 1, 2), (1, 2, 1)]}
    """
    found: dict[int, list[tuple[int, int, int]]] = {}
    for number, row in enumerate(levels):
        edges = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), len(row)]
        for first, last in pairwise(edges):
            if last > first and row[first]:
                found.setdefault(int(row[first]), []).append((number, first, last - first))
    return dict(sorted(found.items()))


def short(value: float, digits: int = 2) -> str:
    """Return a number in as few signs as it needs.

    >>> short(2.50001), short(3.0), short(-0.001), short(0.12341, 4)
    ('2.5', '3', '0', '0.1234')
    """
    return f"{round(value, digits) + 0:.{digits}f}".rstrip("0").rstrip(".")
