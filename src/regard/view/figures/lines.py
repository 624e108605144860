"""Look: what looked on the left, what was looked at on the right, and lines that hold most of the weight between."""

from __future__ import annotations

from dataclasses import dataclass

from regard.view.drawing import SIZE, Drawing, text_width
from regard.view.figures.panels import (
    LEAST,
    TALLEST,
    FigureRequest,
    draw_notes,
    draw_weight_scale,
    format_percent,
    selection_caption,
    smallest_set,
)
from regard.view.palette import HEAD_COLOURS, LEVELS, blend
from regard.view.selection import AttentionSelection, AxisUnit, select_attention

HELD = 0.9  # share of a row that its lines hold
LINE = 9.4  # from one token to the next
SQUARE = 4.6  # of one head beside a token
FAINT = 0.04  # a weight below this has no line of its own where all rows are shown


@dataclass(frozen=True)
class _TokenColumns:
    """Where the tokens of both columns are."""

    left: float  # where lines begin
    right: float  # and end
    top: float
    line: float
    size: float  # of text
    visible: tuple[int, int]  # tokens of each column
    margins: tuple[float, float]  # room of their names

    def at(self, column: int, place: int) -> float:
        """Return the middle of a token; both columns stand around the same middle."""
        return self.top + self.line * ((max(self.visible) - self.visible[column]) / 2 + place + 0.5)


def draw_lines(request: FigureRequest) -> Drawing:
    """Draw two columns of tokens and where one of them, or each of them, looked."""
    chosen, drawing = request.chosen, request.drawing()
    row = chosen.find_row(request.token)
    several = _heads(request, row)
    places = _placed(chosen, drawing.width, several)
    _lines(drawing, chosen, row, places)
    _lookers(drawing, chosen, row, places)
    _looked_at(drawing, chosen, row, places)
    if several and row is not None:
        _squares(drawing, several, row, places)
    for what, units, count in (
        ("rows", chosen.rows, places.visible[0]),
        ("columns", chosen.columns, places.visible[1]),
    ):
        if count < len(units):
            drawing.notes.append(f"{what} 1 to {count:,} of {len(units):,} are shown")
    said = selection_caption(chosen) + (f" Lines hold {HELD:.0%} of each row." if row is None else "")
    bottom = places.top + places.line * max(places.visible)
    draw_notes(drawing, draw_weight_scale(drawing, bottom + 6, chosen.norm, said))
    return drawing


def _placed(chosen: AttentionSelection, width: float, several: list[AttentionSelection]) -> _TokenColumns:
    most = int(TALLEST / (LEAST * 1.15))
    shown = min(len(chosen.rows), most), min(len(chosen.columns), most)
    line = max(LEAST * 1.15, min(LINE, TALLEST / max(1, *shown)))
    size = min(SIZE, line * 0.8)
    margins = _margin(chosen.rows, size, width), _margin(chosen.columns, size, width)
    beyond = 16.0 + (SQUARE * len(several) + 4 if several else 0.0)
    spare = max(0.0, width - sum(margins) - beyond - 120) / 2
    top = 8.0 if several else 2.0
    return _TokenColumns(margins[0] + spare, width - margins[1] - beyond - spare, top, line, size, shown, margins)


def _margin(units: list[AxisUnit], size: float, width: float) -> float:
    return min(0.32 * width, max((text_width(unit.label, size) for unit in units), default=0.0)) + 4


def _heads(asked: FigureRequest, row: int | None) -> list[AttentionSelection]:
    """Return every head of the layer, eight at most, where a single row is looked at and no head was asked for."""
    chosen = asked.chosen
    if row is None or asked.head is not None or ":" in asked.attention or chosen.attention.heads == 1:
        return []
    return [
        select_attention(asked.record, chosen.attention.name, chosen.layer, head, words=asked.words, norm=asked.norm)
        for head in range(min(len(HEAD_COLOURS), chosen.attention.heads))
    ]


def _lines(drawing: Drawing, chosen: AttentionSelection, row: int | None, places: _TokenColumns) -> None:
    middle = (places.right - places.left) / 2.4
    found = []
    for number in range(places.visible[0]) if row is None else [row]:
        weights = chosen.table[number]
        held = smallest_set(weights, HELD)
        found += [
            (float(weights[place]), number, place)
            for place in held
            if place < places.visible[1] and (row is not None or weights[place] >= FAINT)
        ]
        if row is not None and (rest := len(weights) - len(held)):
            missing = float(weights.sum() - weights[held].sum())
            drawing.notes.append(f"{rest} other{'s' * (rest > 1)} hold {missing:.0%}")
    for weight, number, place in sorted(found):
        y, to = places.at(0, number), places.at(1, place)
        points = ((places.left, y), (places.left + middle, y), (places.right - middle, to), (places.right, to))
        colour = drawing.theme.shade(max(3, round(LEVELS * min(1.0, weight) ** 0.5)))
        drawing.stroke(points, colour, width=0.35 + 2.0 * weight, bent=True)


def _lookers(drawing: Drawing, chosen: AttentionSelection, row: int | None, places: _TokenColumns) -> None:
    theme = drawing.theme
    for number, unit in enumerate(chosen.rows[: places.visible[0]]):
        colour = theme.text if chosen.attention.own else theme.target
        if unit.special or (row is not None and number != row):
            colour = theme.soft
        y = places.at(0, number) + 0.35 * places.size
        drawing.text(places.left - 3, y, unit.label, size=places.size, colour=colour, anchor="end",
                     bold=number == row, room=places.margins[0])  # fmt: skip


def _looked_at(drawing: Drawing, chosen: AttentionSelection, row: int | None, places: _TokenColumns) -> None:
    theme, right = drawing.theme, places.right
    looked = smallest_set(chosen.table[row], HELD) if row is not None else []
    for number, unit in enumerate(chosen.columns[: places.visible[1]]):
        colour = theme.text if chosen.attention.own else theme.source
        if unit.special or (row is not None and number not in looked):
            colour = theme.soft
        y = places.at(1, number) + 0.35 * places.size
        drawing.text(right + 3, y, unit.label, size=places.size, colour=colour, room=places.margins[1],
                     bold=looked[:1] == [number])  # fmt: skip
        if row is not None and number in looked:
            value = format_percent(float(chosen.table[row, number]))
            drawing.text(right + places.margins[1] + 13, y, value, size=5.2, colour=theme.soft, anchor="end")


def _squares(drawing: Drawing, several: list[AttentionSelection], row: int, places: _TokenColumns) -> None:
    """Draw what each head gave to each token, in the head's colour; numbers stand above."""
    for head, one in enumerate(several):
        x = places.right + places.margins[1] + 15 + SQUARE * head
        middle = x + SQUARE / 2
        drawing.text(middle, places.at(1, 0) - 6, str(head), size=4.8, colour=drawing.theme.soft, anchor="middle")
        for place in range(places.visible[1]):
            weight = float(one.table[row, place])
            if weight >= 0.005:
                colour = blend(drawing.theme.ground, HEAD_COLOURS[head], min(1.0, weight**0.5))
                drawing.box(x, places.at(1, place) - SQUARE / 2, SQUARE - 0.6, SQUARE - 0.3, colour)
    total = several[0].attention.heads
    which = f"the first {len(several)} of {total} heads" if len(several) < total else f"its {total} heads"
    drawing.notes.append(f"squares: what {which} in this layer gave")
