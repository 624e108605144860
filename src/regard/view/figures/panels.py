"""What several views share: a shaded matrix with its names, the scale, text in lines, and the words below a picture.

What a figure is asked to show, and how it is to look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from regard.view.codec import Weights
from regard.view.drawing import LINE, SIZE, SMALL, Drawing, Levels, is_right_to_left, text_width
from regard.view.palette import LEVELS, TICKS, Colour, Theme
from regard.view.record.record import Record
from regard.view.selection import NORMS, AttentionSelection, AxisUnit, select_attention

TURN = 50.0  # degrees by which the names of columns are turned
LEAST = 4.6  # size of text below which names are left out
TALLEST = 640.0  # of a matrix, in points
LONGEST = 78.0  # of a name beside a matrix, in points
CELL = 15.0  # a cell is never larger
THINNEST = 0.5  # nor smaller


@dataclass(frozen=True)
class MatrixGeometry:
    """Where the cells of a matrix are."""

    left: float
    top: float
    cell: float
    right: float
    bottom: float
    rows: int  # that are shown
    columns: int


def draw_labelled_matrix(
    drawing: Drawing,
    top: float,
    levels: Levels,
    rows: Sequence[AxisUnit],
    columns: Sequence[AxisUnit],
    *,
    colours: tuple[Colour, Colour],
    left: float = 0.0,
    max_size: float | None = None,
) -> MatrixGeometry:
    """Draw a matrix with the names of its rows and columns, as large as `room` allows; what is cut is noted."""
    max_size = drawing.width - left if max_size is None else max_size
    cosine, sine = math.cos(math.radians(TURN)), math.sin(math.radians(TURN))
    longest = min(LONGEST, 0.34 * max_size)
    margin = min(longest, max((text_width(unit.label, SIZE) for unit in rows), default=0.0)) + 4
    cell = min(CELL, (max_size - margin) / max(1, len(columns)), TALLEST / max(1, len(rows)))
    lengths = [min(longest, text_width(unit.label, SIZE)) for unit in columns]
    for _ in range(4):  # the names of the last columns lean over the edge
        beyond = [length * cosine - cell * (len(lengths) - 0.5 - place) for place, length in enumerate(lengths)]
        over = max(0.0, *beyond, 0.0) if cell >= LEAST else 0.0
        cell = min(CELL, (max_size - margin - over) / max(1, len(columns)), TALLEST / max(1, len(rows)))
    cell = max(cell, THINNEST)
    shown_rows = min(len(rows), int(TALLEST / cell))
    shown_columns = min(len(columns), int((max_size - margin) / cell + 1e-6))
    size = min(SIZE, max(LEAST, 0.92 * cell))
    every = max(1, math.ceil(LEAST / cell))
    highest = max((lengths[place] for place in range(0, shown_columns, every)), default=0.0) * size / SIZE
    x = left + margin + max(0.0, (max_size - margin - over - cell * shown_columns) / 2)
    y = top + highest * sine + size * 0.7 + 2
    for place in range(0, shown_columns, every):
        unit, at = columns[place], x + cell * (place + 0.5) + 0.3 * size
        colour = drawing.theme.soft if unit.special else colours[1]
        drawing.text(at, y - 3, unit.label, size=size, colour=colour, turn=TURN, room=longest)
    for place in range(0, shown_rows, every):
        unit, at = rows[place], y + cell * (place + 0.5) + 0.35 * size
        colour = drawing.theme.soft if unit.special else colours[0]
        drawing.text(x - 4, at, unit.label, size=size, colour=colour, anchor="end", room=longest)
    gap = 0.5 if cell > 5 else 0.0
    drawing.box(x - 0.75, y - 0.75, cell * shown_columns + 1.5 - gap, cell * shown_rows + 1.5 - gap,
                stroke=drawing.theme.line, line=0.5)  # fmt: skip
    drawing.grid(x, y, (cell, cell), levels[:shown_rows, :shown_columns], gap)
    if every > 1:
        drawing.notes.append(f"every {ordinal(every)} token is named")
    for what, shown, total in (("rows", shown_rows, len(rows)), ("columns", shown_columns, len(columns))):
        if shown < total:
            drawing.notes.append(f"{what} 1 to {shown:,} of {total:,} are shown")
    return MatrixGeometry(x, y, cell, x + cell * shown_columns, y + cell * shown_rows, shown_rows, shown_columns)


def mark_row_maxima(drawing: Drawing, geometry: MatrixGeometry, table: Weights, threshold: float = 0.1) -> None:
    """Put a dot on each row's highest weight."""
    if geometry.cell < 2.5:
        return
    for row in range(geometry.rows):
        best = int(table[row].argmax())
        if best < geometry.columns and table[row, best] > threshold:
            gap = 0.25 if geometry.cell > 5 else 0.0
            x, y = geometry.left + geometry.cell * (best + 0.5) - gap, geometry.top + geometry.cell * (row + 0.5) - gap
            drawing.disc(x, y, max(0.7, 0.13 * geometry.cell), drawing.theme.dot)


def draw_weight_scale(drawing: Drawing, top: float, norm: str, title: str) -> float:
    """Draw the scale of weights with its normalisation, and write what is shown; return where it ends."""
    theme, high, long = drawing.theme, 4.5, min(84.0, 0.36 * drawing.width)
    drawing.grid(0.3, top, (long / LEVELS, high), np.arange(1, LEVELS + 1)[None])
    drawing.box(0.3, top, long, high, stroke=theme.line, line=0.4)
    for tick in TICKS:
        x = 0.3 + long * math.sqrt(tick)
        anchor = "start" if tick == 0 else "end" if tick == 1 else "middle"
        drawing.text(
            x, top + high + SMALL, f"{tick:g}".removeprefix("0") or "0", size=5.2, colour=theme.soft, anchor=anchor
        )
    said = f"{NORMS[norm]}; shade grows with its root. {title}"
    return max(top + high + SMALL + 2, draw_small_text(drawing, top - 1, said, left=long + 9))


def draw_signed_scale(drawing: Drawing, top: float, most: float, said: str) -> float:
    """Draw the scale of values from minus `most` to `most`; return where it ends."""
    theme, high, long = drawing.theme, 4.5, min(84.0, 0.36 * drawing.width)
    drawing.grid(0.3, top, (long / (2 * LEVELS + 1), high), np.arange(-LEVELS, LEVELS + 1)[None], signed=True)
    drawing.box(0.3, top, long, high, stroke=theme.line, line=0.4)
    for place, anchor, value in ((0.0, "start", -most), (0.5, "middle", 0.0), (1.0, "end", most)):
        shown = f"{value:.3g}".replace("-", "−")
        drawing.text(0.3 + long * place, top + high + SMALL, shown, size=5.2, colour=theme.soft, anchor=anchor)
    return max(top + high + SMALL + 2, draw_small_text(drawing, top - 1, said, left=long + 9))


def draw_small_text(drawing: Drawing, top: float, text: str, left: float = 0.0) -> float:
    """Write small soft lines; return where they end."""
    return draw_paragraph(drawing, top, text, size=5.6, colour=drawing.theme.soft, left=left)


def selection_caption(selection: AttentionSelection, dots: bool = False) -> str:
    """Return which head this is, and what the dots in its picture are."""
    best = ", best aligning head" if selection.is_best else ""
    best += ", read when a token is the next step’s input" if selection.later else ""
    return f"{selection.site}{best}." + (" Dot: the row’s highest." if dots else "")


def draw_notes(drawing: Drawing, top: float) -> None:
    """Write below the picture what it leaves out, and close it."""
    notes = list(drawing.notes)
    if drawing.shortened:
        notes.append("“…” ends what is too long")
    bottom = top
    if notes:
        said = "; ".join(notes)
        bottom = draw_small_text(drawing, top + 1, said[0].upper() + said[1:] + ".")
    drawing.end(bottom + 2)


def draw_paragraph(drawing: Drawing, top: float, text: str, *, size: float = SIZE, colour: Colour | None = None,
              most: int = 8, left: float = 0.0) -> float:  # fmt: skip
    """Write a text in lines as wide as the drawing; return where it ends."""
    lines, line = [], ""
    for word in text.split():
        if line and text_width(f"{line} {word}", size) > drawing.width - left - 2:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    lines.append(line)
    if len(lines) > most:
        lines, drawing.shortened = [*lines[: most - 1], lines[most - 1] + " …"], True
    for number, one in enumerate(lines):
        x, anchor = (drawing.width, "end") if is_right_to_left(text) else (left, "start")
        drawing.text(x, top + size * (0.8 + LINE * number), one, size=size, colour=colour, anchor=anchor,
                     room=drawing.width - left)  # fmt: skip
    return top + size * LINE * len(lines)


def format_percent(value: float) -> str:
    """Return a share of one as figures write it.

    >>> format_percent(0.631), format_percent(1.0), format_percent(0.05), format_percent(0.0004)
    ('.63', '1.00', '.05', '.00')
    """
    return f"{value:.2f}".removeprefix("0") if value < 0.995 else "1.00"


def ordinal(number: int) -> str:
    """Return a number as in a row.

    >>> [ordinal(number) for number in (2, 3, 4, 11, 21)]
    ['2nd', '3rd', '4th', '11th', '21st']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def smallest_set(weights: Weights, mass: float = 0.9, max_count: int = 12) -> list[int]:
    """Return the places of the fewest weights that hold so much of a row, the largest first.

    >>> smallest_set(np.array([0.05, 0.7, 0.25]))
    [1, 2]
    """
    order = np.argsort(-weights, kind="stable")
    held = np.cumsum(weights[order]) - weights[order]
    return [int(place) for place in order[held < mass * weights.sum() - 1e-9][:max_count] if weights[place] > 0]


@dataclass(frozen=True)
class FigureRequest:
    """A record and the part of it that a figure shows."""

    record: Record
    width: float  # in points
    theme: Theme
    attention: str = ""
    layer: int | None = None
    head: int | None = None
    words: bool = False
    token: str | int | None = None
    norm: str = "raw"

    @cached_property
    def chosen(self) -> AttentionSelection:
        """The table of weights."""
        return select_attention(self.record, self.attention, self.layer, self.head, words=self.words, norm=self.norm)

    def drawing(self) -> Drawing:
        """Return an empty drawing of the asked width."""
        return Drawing(self.width, self.theme)
