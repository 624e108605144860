"""Look: what looked on the left, what was looked at on the right, and lines that hold most of the weight between."""

from __future__ import annotations

from dataclasses import dataclass

from regard.view.chosen import Chosen, Unit, choose
from regard.view.drawing import SIZE, Drawing
from regard.view.figures.asked import Asked
from regard.view.figures.panels import LEAST, TALLEST, fewest, foot, named, share, weight_scale
from regard.view.lettering import wide
from regard.view.palette import HEAD_COLOURS, LEVELS, mixed

HELD = 0.9  # share of a row that its lines hold
LINE = 9.4  # from one token to the next
SQUARE = 4.6  # of one head beside a token
FAINT = 0.04  # a weight below this has no line of its own where all rows are shown


@dataclass(frozen=True)
class _Columns:
    """Where the tokens of both columns are."""

    left: float  # where lines begin
    right: float  # and end
    top: float
    line: float
    size: float  # of text
    shown: tuple[int, int]  # tokens of each column
    margins: tuple[float, float]  # room of their names

    def at(self, column: int, place: int) -> float:
        """Return the middle of a token; both columns stand around the same middle."""
        return self.top + self.line * ((max(self.shown) - self.shown[column]) / 2 + place + 0.5)


def look(asked: Asked) -> Drawing:
    """Draw two columns of tokens and where one of them, or each of them, looked."""
    chosen, drawing = asked.chosen, asked.drawing()
    row = chosen.row_of(asked.row)
    several = _heads(asked, row)
    places = _placed(chosen, drawing.width, several)
    _lines(drawing, chosen, row, places)
    _lookers(drawing, chosen, row, places)
    _looked_at(drawing, chosen, row, places)
    if several and row is not None:
        _squares(drawing, several, row, places)
    for what, units, count in (
        ("rows", chosen.rows, places.shown[0]),
        ("columns", chosen.columns, places.shown[1]),
    ):
        if count < len(units):
            drawing.notes.append(f"{what} 1 to {count:,} of {len(units):,} are shown")
    said = named(chosen) + (f" Lines hold {HELD:.0%} of each row." if row is None else "")
    bottom = places.top + places.line * max(places.shown)
    foot(drawing, weight_scale(drawing, bottom + 6, chosen.norm, said))
    return drawing


def _placed(chosen: Chosen, width: float, several: list[Chosen]) -> _Columns:
    most = int(TALLEST / (LEAST * 1.15))
    shown = min(len(chosen.rows), most), min(len(chosen.columns), most)
    line = max(LEAST * 1.15, min(LINE, TALLEST / max(1, *shown)))
    size = min(SIZE, line * 0.8)
    margins = _margin(chosen.rows, size, width), _margin(chosen.columns, size, width)
    beyond = 16.0 + (SQUARE * len(several) + 4 if several else 0.0)
    spare = max(0.0, width - sum(margins) - beyond - 120) / 2
    top = 8.0 if several else 2.0
    return _Columns(margins[0] + spare, width - margins[1] - beyond - spare, top, line, size, shown, margins)


def _margin(units: list[Unit], size: float, width: float) -> float:
    return min(0.32 * width, max((wide(unit.label, size) for unit in units), default=0.0)) + 4


def _heads(asked: Asked, row: int | None) -> list[Chosen]:
    """Return every head of the layer, eight at most, where a single row is looked at and no head was asked for."""
    chosen = asked.chosen
    if row is None or asked.head is not None or ":" in asked.attention or chosen.seen.heads == 1:
        return []
    return [
        choose(asked.record, chosen.seen.name, chosen.layer, head, words=asked.words, norm=asked.norm)
        for head in range(min(len(HEAD_COLOURS), chosen.seen.heads))
    ]


def _lines(drawing: Drawing, chosen: Chosen, row: int | None, places: _Columns) -> None:
    middle = (places.right - places.left) / 2.4
    found = []
    for number in range(places.shown[0]) if row is None else [row]:
        weights = chosen.table[number]
        held = fewest(weights, HELD)
        found += [
            (float(weights[place]), number, place)
            for place in held
            if place < places.shown[1] and (row is not None or weights[place] >= FAINT)
        ]
        if row is not None and (rest := len(weights) - len(held)):
            missing = float(weights.sum() - weights[held].sum())
            drawing.notes.append(f"{rest} other{'s' * (rest > 1)} hold {missing:.0%}")
    for weight, number, place in sorted(found):
        y, to = places.at(0, number), places.at(1, place)
        points = ((places.left, y), (places.left + middle, y), (places.right - middle, to), (places.right, to))
        colour = drawing.theme.shade(max(3, round(LEVELS * min(1.0, weight) ** 0.5)))
        drawing.stroke(points, colour, width=0.35 + 2.0 * weight, bent=True)


def _lookers(drawing: Drawing, chosen: Chosen, row: int | None, places: _Columns) -> None:
    theme = drawing.theme
    for number, unit in enumerate(chosen.rows[: places.shown[0]]):
        colour = theme.text if chosen.seen.own else theme.target
        if unit.special or (row is not None and number != row):
            colour = theme.soft
        y = places.at(0, number) + 0.35 * places.size
        drawing.text(places.left - 3, y, unit.label, size=places.size, colour=colour, anchor="end",
                     bold=number == row, room=places.margins[0])  # fmt: skip


def _looked_at(drawing: Drawing, chosen: Chosen, row: int | None, places: _Columns) -> None:
    theme, right = drawing.theme, places.right
    looked = fewest(chosen.table[row], HELD) if row is not None else []
    for number, unit in enumerate(chosen.columns[: places.shown[1]]):
        colour = theme.text if chosen.seen.own else theme.source
        if unit.special or (row is not None and number not in looked):
            colour = theme.soft
        y = places.at(1, number) + 0.35 * places.size
        drawing.text(right + 3, y, unit.label, size=places.size, colour=colour, room=places.margins[1],
                     bold=looked[:1] == [number])  # fmt: skip
        if row is not None and number in looked:
            value = share(float(chosen.table[row, number]))
            drawing.text(right + places.margins[1] + 13, y, value, size=5.2, colour=theme.soft, anchor="end")


def _squares(drawing: Drawing, several: list[Chosen], row: int, places: _Columns) -> None:
    """Draw what each head gave to each token, in the head's colour; numbers stand above."""
    for head, one in enumerate(several):
        x = places.right + places.margins[1] + 15 + SQUARE * head
        middle = x + SQUARE / 2
        drawing.text(middle, places.at(1, 0) - 6, str(head), size=4.8, colour=drawing.theme.soft, anchor="middle")
        for place in range(places.shown[1]):
            weight = float(one.table[row, place])
            if weight >= 0.005:
                colour = mixed(drawing.theme.ground, HEAD_COLOURS[head], min(1.0, weight**0.5))
                drawing.box(x, places.at(1, place) - SQUARE / 2, SQUARE - 0.6, SQUARE - 0.3, colour)
    total = several[0].seen.heads
    which = f"the first {len(several)} of {total} heads" if len(several) < total else f"its {total} heads"
    drawing.notes.append(f"squares: what {which} in this layer gave")
