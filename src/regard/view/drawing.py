"""Drawings: boxes, lines, texts and shaded grids in points, which SVG and TikZ render alike.

Text enters a drawing through `Drawing.text` only: invisible characters are escaped there, and what does not fit is
truncated and remembered. Text widths are estimated without a font, to within a few per cent for common sans fonts.
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

Levels = NDArray[np.int_]  # 0 is the background; up to palette.LEVELS, down to -LEVELS for signed values
Point = tuple[float, float]
SIZE = 7.0  # of text, in points
SMALL = 6.0
PAD = 2.0  # around a drawing, in points
LINE = 1.35  # line height, in font sizes


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
    line: float = 0.6  # width of the outline


@dataclass(frozen=True)
class Stroke:
    """A line through points; with `bent`, the control points of one cubic Bézier curve."""

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
    """A line of text; `y` is its baseline, `turn` its angle in degrees, anticlockwise."""

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
    """Shaded cells, one for each non-zero level."""

    x: float
    y: float
    cell: Point
    levels: Levels  # [rows, columns]
    gap: float = 0.0
    signed: bool = False  # in the colours of signed values


Mark = Box | Stroke | Disc | TextLine | Grid


@dataclass
class Drawing:
    """The marks drawn so far; y grows downwards from the top left."""

    width: float
    theme: Theme
    height: float = 0.0
    marks: list[Mark] = field(default_factory=list)
    shortened: bool = False  # whether any text was truncated
    notes: list[str] = field(default_factory=list)  # what the figure leaves out

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
        """Write a line of text, truncated to `room`; return its width."""
        line = escape_invisible(text)
        if room is not None:
            truncated = truncate_text(line, size, room)
            self.shortened = self.shortened or truncated != line
            line = truncated
        if line:
            self.marks.append(
                TextLine(
                    x,
                    y,
                    text=line,
                    size=size,
                    colour=colour or self.theme.text,
                    anchor=anchor,
                    turn=turn,
                    bold=bold,
                )
            )
        return text_width(line, size)

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
        self.marks.append(Box(x, y, width=width, height=height, fill=fill, stroke=stroke, radius=radius, line=line))

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
        self.marks.append(Stroke(tuple(points), colour, width=width, bent=bent, dash=dash))

    def disc(self, x: float, y: float, radius: float, fill: Colour) -> None:
        """Draw a filled circle."""
        self.marks.append(Disc(x, y, radius=radius, fill=fill))

    def grid(self, x: float, y: float, cell: Point, levels: Levels, gap: float = 0.0, *, signed: bool = False) -> None:
        """Draw shaded cells."""
        self.marks.append(Grid(x, y, cell=cell, levels=levels, gap=gap, signed=signed))

    def end(self, bottom: float) -> None:
        """Finish the drawing at `bottom`."""
        self.height = max(self.height, bottom)


def runs(levels: Levels) -> dict[int, list[tuple[int, int, int]]]:
    """Cells of each level as (row, first column, count): neighbours of one level are one run.

    >>> runs(np.array([[0, 2, 2], [1, 0, 2]]))
    {1: [(1, 0, 1)], 2: [(0, 1, 2), (1, 2, 1)]}
    """
    runs_by_level: dict[int, list[tuple[int, int, int]]] = {}
    for row, row_levels in enumerate(levels):
        edges = [0, *(np.flatnonzero(np.diff(row_levels)) + 1).tolist(), len(row_levels)]
        for start, stop in pairwise(edges):
            if stop > start and row_levels[start]:
                runs_by_level.setdefault(int(row_levels[start]), []).append((row, start, stop - start))
    return dict(sorted(runs_by_level.items()))


def format_number(value: float, digits: int = 2) -> str:
    """Format a number without trailing zeros.

    >>> format_number(2.50001), format_number(3.0), format_number(-0.001), format_number(0.12341, 4)
    ('2.5', '3', '0', '0.1234')
    """
    return f"{round(value, digits) + 0:.{digits}f}".rstrip("0").rstrip(".")


# advance widths of the characters from space to tilde in thousandths of the font size, as in Helvetica and Arial
_ADVANCES = (
    "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556 556 278 278 "
    "584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778 722 667 611 722 667 944 "
    "667 667 611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 "
    "278 556 500 722 500 500 500 334 260 334 584"
).split()
_ASCII_ADVANCES = {chr(32 + index): int(advance) for index, advance in enumerate(_ADVANCES)}
_WIDE_ADVANCE = 1000  # East Asian
_UPPER_ADVANCE = 720
_DEFAULT_ADVANCE = 600


@lru_cache(maxsize=8192)
def advance(sign: str) -> int:
    """Advance width of a character in thousandths of the font size.

    >>> advance("é") == advance("e"), advance("日"), advance("\u0301")
    (True, 1000, 0)
    """
    if sign in _ASCII_ADVANCES:
        return _ASCII_ADVANCES[sign]
    if unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    if unicodedata.east_asian_width(sign) in "WF":
        return _WIDE_ADVANCE
    base_letter = unicodedata.normalize("NFD", sign)[0]
    return _ASCII_ADVANCES.get(base_letter, _UPPER_ADVANCE if base_letter.isupper() else _DEFAULT_ADVANCE)


def text_width(text: str, size: float) -> float:
    """Estimated width of a text.

    >>> text_width("dogs", 10)
    21.68
    """
    return sum(advance(character) for character in text) * size / 1000


def truncate_text(text: str, size: float, max_width: float) -> str:
    """Truncate a text to a width with an ellipsis; no letter loses its combining marks.

    >>> truncate_text("Donaudampfschiff", 10, 50)
    'Donaud…'
    >>> truncate_text("dog", 10, 50)
    'dog'
    """
    if text_width(text, size) <= max_width:
        return text
    remaining = max_width - size
    prefix = ""
    for cluster in clusters(text):
        remaining -= text_width(cluster, size)
        if remaining < 0:
            break
        prefix += cluster
    return prefix.rstrip() + "…"


def clusters(text: str) -> list[str]:
    r"""Split a text into letters with their combining marks.

    >>> clusters("e\u0301a")
    ['e\u0301', 'a']
    """
    letters: list[str] = []
    for character in text:
        is_combining = unicodedata.category(character) in ("Mn", "Me", "Mc") or character == "\u200d"
        if letters and (is_combining or letters[-1].endswith("\u200d")):
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def is_right_to_left(text: str) -> bool:
    """Whether the first letter with a direction belongs to a right-to-left script.

    >>> is_right_to_left("(שלום)"), is_right_to_left("Shalom שלום")
    (True, False)
    """
    for character in text:
        direction = unicodedata.bidirectional(character)
        if direction in ("L", "R", "AL"):
            return direction != "L"
    return False
