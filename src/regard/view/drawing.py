"""A drawing: boxes, lines, texts and shaded grids in points, which SVG and TikZ write down alike.

Texts enter a drawing through `Drawing.text` alone: signs that hide or reorder others are shown there by their number,
and what does not fit is shortened, which the drawing remembers.

How wide text is where no font can be asked, and texts cut to a room; good to a few percent for common sans fonts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from regard.view.palette import Colour, Theme
from regard.view.record.texts import escape_invisible

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
class TextLine:
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


Mark = Box | Stroke | Disc | TextLine | Grid


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
        shown = escape_invisible(text)
        if room is not None:
            cut = truncate_text(shown, size, room)
            self.shortened, shown = self.shortened or cut != shown, cut
        if shown:
            self.marks.append(TextLine(x, y, shown, size, colour or self.theme.text, anchor, turn, bold))
        return text_width(shown, size)

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


def format_number(value: float, digits: int = 2) -> str:
    """Return a number in as few signs as it needs.

    >>> format_number(2.50001), format_number(3.0), format_number(-0.001), format_number(0.12341, 4)
    ('2.5', '3', '0', '0.1234')
    """
    return f"{round(value, digits) + 0:.{digits}f}".rstrip("0").rstrip(".")


# advance of the signs from space to tilde in thousandths of the size, as in Helvetica, Arial and what replaces them
_ADVANCES = (
    "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556 556 278 278 "
    "584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778 722 667 611 722 667 944 "
    "667 667 611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 "
    "278 556 500 722 500 500 500 334 260 334 584"
).split()
_ASCII = {chr(32 + place): int(advance) for place, advance in enumerate(_ADVANCES)}
_BLANK, _WIDE, _UPPER, _OTHER = 0, 1000, 720, 600


@lru_cache(maxsize=8192)
def advance(sign: str) -> int:
    """Return the width of a sign in thousandths of the size.

    >>> advance("é") == advance("e"), advance("日"), advance("\u0301")
    (True, 1000, 0)
    """
    if sign in _ASCII:
        return _ASCII[sign]
    if unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return _BLANK
    if unicodedata.east_asian_width(sign) in "WF":
        return _WIDE
    plain = unicodedata.normalize("NFD", sign)[0]
    return _ASCII.get(plain, _UPPER if plain.isupper() else _OTHER)


def text_width(text: str, size: float) -> float:
    """Return about how wide a text is at a size.

    >>> text_width("dogs", 10)
    21.68
    """
    return sum(advance(sign) for sign in text) * size / 1000


def truncate_text(text: str, size: float, max_width: float) -> str:
    """Return the text, or as much of its beginning as fits with an ellipsis; no letter loses its marks.

    >>> truncate_text("Donaudampfschiff", 10, 50)
    'Donaud…'
    >>> truncate_text("dog", 10, 50)
    'dog'
    """
    if text_width(text, size) <= max_width:
        return text
    left, kept = max_width - size, ""
    for cluster in clusters(text):
        left -= text_width(cluster, size)
        if left < 0:
            break
        kept += cluster
    return kept.rstrip() + "…"


def clusters(text: str) -> list[str]:
    r"""Return the letters of a text, each with the marks that stand on it.

    >>> clusters("e\u0301a")
    ['e\u0301', 'a']
    """
    found: list[str] = []
    for sign in text:
        joined = unicodedata.category(sign) in ("Mn", "Me", "Mc") or sign == "\u200d"
        if found and (joined or found[-1].endswith("\u200d")):
            found[-1] += sign
        else:
            found.append(sign)
    return found


def is_right_to_left(text: str) -> bool:
    """Whether the first letter that has a direction is of a script written from right to left.

    >>> is_right_to_left("(שלום)"), is_right_to_left("Shalom שלום")
    (True, False)
    """
    for sign in text:
        direction = unicodedata.bidirectional(sign)
        if direction in ("L", "R", "AL"):
            return direction != "L"
    return False
