"""What several figures share: requests, labelled heat maps, colour scales, wrapped text and notes."""

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

LABEL_ANGLE = 50.0  # degrees by which column labels are rotated
MIN_FONT_SIZE = 4.6  # labels are left out below it
MAX_HEIGHT = 640.0  # of a matrix, in points
MAX_LABEL_WIDTH = 78.0  # beside a matrix, in points
MAX_CELL = 15.0  # points
MIN_CELL = 0.5
SCALE_HEIGHT = 4.5
SCALE_FONT_SIZE = 5.2


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
    def selection(self) -> AttentionSelection:
        """The selected table of weights."""
        return select_attention(self.record, self.attention, self.layer, self.head, words=self.words, norm=self.norm)

    def drawing(self) -> Drawing:
        """Start an empty drawing of the requested width."""
        return Drawing(self.width, self.theme)


@dataclass(frozen=True)
class MatrixGeometry:
    """Where the cells of a matrix are."""

    left: float
    top: float
    cell: float
    right: float
    bottom: float
    rows: int  # visible ones
    columns: int


@dataclass(frozen=True)
class _MatrixLayout:
    """Sizes of a labelled matrix before it is drawn."""

    cell: float
    margin: float  # of row labels
    overhang: float  # of the last column labels
    label_width: float  # at most
    label_widths: list[float]  # of columns
    rows: int  # visible ones
    columns: int

    @property
    def font_size(self) -> float:
        return min(SIZE, max(MIN_FONT_SIZE, 0.92 * self.cell))

    @property
    def label_step(self) -> int:
        """Every how many cells a label fits."""
        return max(1, math.ceil(MIN_FONT_SIZE / self.cell))


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
    """Draw a matrix with row and column labels, at most `max_size` wide; what does not fit is noted."""
    max_size = drawing.width - left if max_size is None else max_size
    layout = _lay_out_matrix(rows, columns, max_size)
    cell = layout.cell
    size = layout.font_size
    step = layout.label_step
    label_height = max((layout.label_widths[column] for column in range(0, layout.columns, step)), default=0.0)
    label_height *= size / SIZE
    x = left + layout.margin
    x += max(0.0, (max_size - layout.margin - layout.overhang - cell * layout.columns) / 2)
    y = top + label_height * math.sin(math.radians(LABEL_ANGLE)) + size * 0.7 + 2
    for column in range(0, layout.columns, step):
        unit = columns[column]
        label_x = x + cell * (column + 0.5) + 0.3 * size
        colour = drawing.theme.soft if unit.special else colours[1]
        drawing.text(label_x, y - 3, unit.label, size=size, colour=colour, turn=LABEL_ANGLE, room=layout.label_width)
    for row in range(0, layout.rows, step):
        unit = rows[row]
        label_y = y + cell * (row + 0.5) + 0.35 * size
        colour = drawing.theme.soft if unit.special else colours[0]
        drawing.text(x - 4, label_y, unit.label, size=size, colour=colour, anchor="end", room=layout.label_width)
    gap = 0.5 if cell > 5 else 0.0
    drawing.box(
        x - 0.75,
        y - 0.75,
        cell * layout.columns + 1.5 - gap,
        cell * layout.rows + 1.5 - gap,
        stroke=drawing.theme.line,
        line=0.5,
    )
    drawing.grid(x, y, (cell, cell), levels[: layout.rows, : layout.columns], gap)
    if step > 1:
        drawing.notes.append(f"every {ordinal(step)} token is labelled")
    note_hidden_units(drawing, "rows", layout.rows, len(rows))
    note_hidden_units(drawing, "columns", layout.columns, len(columns))
    return MatrixGeometry(
        x,
        y,
        cell=cell,
        right=x + cell * layout.columns,
        bottom=y + cell * layout.rows,
        rows=layout.rows,
        columns=layout.columns,
    )


def _lay_out_matrix(rows: Sequence[AxisUnit], columns: Sequence[AxisUnit], max_size: float) -> _MatrixLayout:
    """Choose the cell size of a matrix with row labels and slanted column labels, of at most this width in all."""
    label_width = min(MAX_LABEL_WIDTH, 0.34 * max_size)
    margin = min(label_width, max((text_width(unit.label, SIZE) for unit in rows), default=0.0)) + 4
    max_cell = min(MAX_CELL, MAX_HEIGHT / max(1, len(rows)))
    cell = min(max_cell, (max_size - margin) / max(1, len(columns)))
    label_widths = [min(label_width, text_width(unit.label, SIZE)) for unit in columns]
    cosine = math.cos(math.radians(LABEL_ANGLE))
    overhang = 0.0
    for _ in range(4):  # the labels of the last columns lean over the edge, which depends on the cell size
        overhangs = [
            width * cosine - cell * (len(label_widths) - 0.5 - column) for column, width in enumerate(label_widths)
        ]
        overhang = max([0.0, *overhangs]) if cell >= MIN_FONT_SIZE else 0.0
        cell = min(max_cell, (max_size - margin - overhang) / max(1, len(columns)))
    cell = max(cell, MIN_CELL)
    return _MatrixLayout(
        cell,
        margin,
        overhang=overhang,
        label_width=label_width,
        label_widths=label_widths,
        rows=min(len(rows), int(MAX_HEIGHT / cell)),
        columns=min(len(columns), int((max_size - margin) / cell + 1e-6)),
    )


def note_hidden_units(drawing: Drawing, unit: str, visible: int, total: int) -> None:
    """Note that only the first rows or columns are visible."""
    if visible < total:
        drawing.notes.append(f"{unit} 1 to {visible:,} of {total:,} are shown")


def mark_row_maxima(drawing: Drawing, geometry: MatrixGeometry, table: Weights, threshold: float = 0.1) -> bool:
    """Put a dot on the largest weight of each row, unless several are equal; return whether there is any dot."""
    if geometry.cell < 2.5:
        return False
    gap = 0.25 if geometry.cell > 5 else 0.0
    has_dots = False
    for row in range(geometry.rows):
        column = int(table[row].argmax())
        is_unique = int((table[row] == table[row, column]).sum()) == 1
        if is_unique and column < geometry.columns and table[row, column] > threshold:
            has_dots = True
            x = geometry.left + geometry.cell * (column + 0.5) - gap
            y = geometry.top + geometry.cell * (row + 0.5) - gap
            drawing.disc(x, y, max(0.7, 0.13 * geometry.cell), drawing.theme.dot)
    return has_dots


def draw_weight_scale(drawing: Drawing, top: float, norm: str, title: str) -> float:
    """Draw the colour scale of weights with its normalization and a caption; return its lower edge."""
    length = _scale_length(drawing)
    drawing.grid(0.3, top, (length / LEVELS, SCALE_HEIGHT), np.arange(1, LEVELS + 1)[None])
    drawing.box(0.3, top, length, SCALE_HEIGHT, stroke=drawing.theme.line, line=0.4)
    anchors = {0.0: "start", 1.0: "end"}
    for tick in TICKS:
        label = f"{tick:g}".removeprefix("0") or "0"
        _label_scale(drawing, 0.3 + length * math.sqrt(tick), top, label, anchor=anchors.get(tick, "middle"))
    caption = f"{NORMS[norm].capitalize()}; the shade grows with its square root. {title}"
    return _caption_scale(drawing, top, caption)


def draw_signed_scale(drawing: Drawing, top: float, max_value: float, caption: str) -> float:
    """Draw the colour scale from `-max_value` to `max_value`; return its lower edge."""
    length = _scale_length(drawing)
    num_levels = 2 * LEVELS + 1
    drawing.grid(0.3, top, (length / num_levels, SCALE_HEIGHT), np.arange(-LEVELS, LEVELS + 1)[None], signed=True)
    drawing.box(0.3, top, length, SCALE_HEIGHT, stroke=drawing.theme.line, line=0.4)
    for fraction, anchor, value in ((0.0, "start", -max_value), (0.5, "middle", 0.0), (1.0, "end", max_value)):
        label = f"{value:.3g}".replace("-", "−")
        _label_scale(drawing, 0.3 + length * fraction, top, label, anchor=anchor)
    return _caption_scale(drawing, top, caption)


def _scale_length(drawing: Drawing) -> float:
    return min(84.0, 0.36 * drawing.width)


def _label_scale(drawing: Drawing, x: float, top: float, label: str, *, anchor: str) -> None:
    y = top + SCALE_HEIGHT + SMALL
    drawing.text(x, y, label, size=SCALE_FONT_SIZE, colour=drawing.theme.soft, anchor=anchor)


def _caption_scale(drawing: Drawing, top: float, caption: str) -> float:
    caption_bottom = draw_small_text(drawing, top - 1, caption, left=_scale_length(drawing) + 9)
    return max(top + SCALE_HEIGHT + SMALL + 2, caption_bottom)


def draw_small_text(drawing: Drawing, top: float, text: str, left: float = 0.0) -> float:
    """Write a small muted paragraph; return its lower edge."""
    return draw_paragraph(drawing, top, text, size=5.6, colour=drawing.theme.soft, left=left)


def selection_caption(selection: AttentionSelection, dots: bool = False) -> str:
    """Name the head, and explain the dots."""
    caption = selection.site
    if selection.is_best:
        caption += ", best alignment head"
    if selection.later:
        caption += ", read when a token is the next step’s input"
    return f"{caption}." + (" Dot: the largest weight of the row." if dots else "")


def draw_notes(drawing: Drawing, top: float) -> None:
    """Write below the figure what it leaves out, and finish the drawing."""
    notes = list(drawing.notes)
    if drawing.shortened:
        notes.append("“…” marks shortened text")
    bottom = top
    if notes:
        text = "; ".join(notes)
        bottom = draw_small_text(drawing, top + 1, text[0].upper() + text[1:] + ".")
    drawing.end(bottom + 2)


def draw_paragraph(
    drawing: Drawing,
    top: float,
    text: str,
    *,
    size: float = SIZE,
    colour: Colour | None = None,
    most: int = 8,
    left: float = 0.0,
) -> float:
    """Write a text in lines as wide as the drawing, at most `most` of them; return its lower edge."""
    lines = _wrap(text, size, drawing.width - left - 2)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1] + " …"]
        drawing.shortened = True
    is_rtl = is_right_to_left(text)
    for index, line in enumerate(lines):
        drawing.text(
            drawing.width if is_rtl else left,
            top + size * (0.8 + LINE * index),
            line,
            size=size,
            colour=colour,
            anchor="end" if is_rtl else "start",
            room=drawing.width - left,
        )
    return top + size * LINE * len(lines)


def _wrap(text: str, size: float, width: float) -> list[str]:
    lines = []
    line = ""
    for word in text.split():
        if line and text_width(f"{line} {word}", size) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


def format_percent(value: float) -> str:
    """Format a weight or probability between 0 and 1 with two decimals.

    >>> format_percent(0.631), format_percent(1.0), format_percent(0.05), format_percent(0.0004)
    ('.63', '1.00', '.05', '.00')
    """
    return f"{value:.2f}".removeprefix("0") if value < 0.995 else "1.00"


def ordinal(number: int) -> str:
    """Format an ordinal number.

    >>> [ordinal(number) for number in (2, 3, 4, 11, 21)]
    ['2nd', '3rd', '4th', '11th', '21st']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def smallest_set(weights: Weights, mass: float = 0.9, max_count: int = 12) -> list[int]:
    """Indices of the fewest weights that sum to `mass` of a row, largest first.

    >>> smallest_set(np.array([0.05, 0.7, 0.25]))
    [1, 2]
    """
    order = np.argsort(-weights, kind="stable")
    sum_of_larger = np.cumsum(weights[order]) - weights[order]
    selected = order[sum_of_larger < mass * weights.sum() - 1e-9][:max_count]
    return [int(index) for index in selected if weights[index] > 0]
