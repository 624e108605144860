"""Maths: the six steps from one token's query to its new value, with the numbers of one head."""

from __future__ import annotations

import math

import numpy as np

from regard.errors import UsageError
from regard.view.codec import Weights
from regard.view.drawing import SIZE, SMALL, Drawing
from regard.view.figures.panels import FigureRequest, draw_notes, draw_signed_scale, format_percent
from regard.view.palette import LEVELS, signed_levels
from regard.view.record.parts import HeadQKV
from regard.view.record.record import Record
from regard.view.selection import AttentionSelection, parse_site, select_attention

ACROSS = 16  # numbers of a vector in one line
NAMES = 64.0  # width of the names of the steps
COLUMN = 36.0  # width of a key's column, at least


def draw_math(request: FigureRequest) -> Drawing:
    """Draw the six steps for one row of one head; keys are the most looked at, in their order."""
    inside = find_head_qkv(request.record, request.attention, request.layer, request.head)
    chosen = select_attention(request.record, inside.attention, inside.layer, inside.head)
    drawing, theme = request.drawing(), request.theme
    row = chosen.find_row(request.token)
    row = first_word_row(chosen) if row is None else row
    dots, scores, weights, scaled = six_steps(inside, row)
    seen = min(int(np.isfinite(scores).sum()), len(chosen.columns), max(2, int((drawing.width - NAMES) / COLUMN)))
    keys = sorted(np.argsort(-weights, kind="stable")[:seen].tolist())
    column = min(60.0, (drawing.width - NAMES) / len(keys))
    vector = _Vectors(drawing, min(column - 4, 40.0), max(inside.query.shape[1], inside.value.shape[1]))
    most = [
        float(np.abs(some).max()) or 1.0
        for some in (np.vstack([inside.query[row], inside.key[keys]]), inside.value[keys])
    ]
    centre = [NAMES + column * (place + 0.5) for place in range(len(keys))]

    def name(y: float, number: int, text: str) -> None:
        drawing.text(0, y, f"{number}", size=SMALL, colour=theme.mark, bold=True)
        drawing.text(7, y, text, size=SMALL, room=NAMES - 9)

    drawing.text(drawing.width, 5, f"{len(keys)} keys, and their values", size=5.6, colour=theme.soft, anchor="end")
    drawing.text(7, 5, "query", size=5.6, colour=theme.soft)
    y = 15.0
    for x, key in zip(centre, keys, strict=True):
        colour = theme.soft if chosen.columns[key].special else theme.source
        drawing.text(x, y, chosen.columns[key].label, colour=colour, anchor="middle", room=column - 2)
    drawing.text(7, y, chosen.rows[row].label, colour=theme.target, bold=True, room=NAMES - 9)
    y += 5
    name(y + vector.high / 2 + 2, 1, "q, k")
    vector.draw(NAMES - vector.wide - 1, y, inside.query[row], most[0])
    for x, key in zip(centre, keys, strict=True):
        vector.draw(x - vector.wide / 2, y, inside.key[key], most[0])
    y += vector.high + 12
    if scaled:
        name(y, 2, "query · key")
        _numbers(drawing, centre, y, [f"{value:.1f}" for value in dots[keys]])
        y += 11
        name(y, 3, f"÷ √{inside.query.shape[1]}")
    else:
        name(y, 2, "score")
    _numbers(drawing, centre, y, [f"{value:.2f}" for value in scores[keys]])
    y += 11
    name(y, 4, "softmax")
    for x, key in zip(centre, keys, strict=True):
        level = round(LEVELS * float(weights[key]) ** 0.5)
        drawing.box(x - 11, y - 7, 22, 9.4, theme.shade(level), stroke=theme.line, line=0.3)
        ink = theme.ink_on(theme.shade(level))
        drawing.text(x, y, format_percent(float(weights[key])), colour=ink, anchor="middle")
    y += 9
    name(y + vector.high / 2 + 2, 5, "× value")
    for x, key in zip(centre, keys, strict=True):
        vector.draw(x - vector.wide / 2, y, inside.value[key], most[1])
        vector.draw(x - vector.wide / 2, y + vector.high + 5, weights[key] * inside.value[key], most[1])
        drawing.stroke([(x, y + vector.high + 0.8), (x, y + vector.high + 4.2)], theme.soft, width=0.5)
    y += 2 * vector.high + 9
    total = weights @ inside.value.astype(np.float64)
    for x in centre:
        middle = NAMES + vector.wide / 2
        drawing.stroke([(x, y - 3), (x, y + 1), (middle, y + 2), (middle, y + 6)], theme.line, width=0.5, bent=True)
    y += 7
    name(y + vector.high / 2 + 2, 6, "sum")
    vector.draw(NAMES, y, total, most[1])
    rest = int((weights > 0).sum()) - len(keys)
    if rest > 0:
        held = 1 - float(weights[keys].sum())
        drawing.notes.append(
            f"the {len(keys)} keys most looked at are shown; the sum is over all, {rest} others hold {held:.0%}"
        )
    said = (
        f"Each square is one number of a vector: of queries and keys as a share of {most[0]:.2g}, of values of "
        f"{most[1]:.2g}. {chosen.site}."
    )
    draw_notes(drawing, draw_signed_scale(drawing, y + vector.high + 8, 1.0, said))
    return drawing


class _Vectors:
    """Draws vectors as fields of signed squares."""

    def __init__(self, drawing: Drawing, wide: float, numbers: int) -> None:
        self.drawing, self.wide = drawing, wide
        self.cell = wide / min(ACROSS, numbers)
        self.high = self.cell * math.ceil(numbers / ACROSS)

    def draw(self, x: float, y: float, values: Weights, most: float) -> None:
        """Draw one vector."""
        across = min(ACROSS, len(values))
        padded = np.zeros(math.ceil(len(values) / across) * across)
        padded[: len(values)] = values
        levels = signed_levels(padded.reshape(-1, across), most)
        high = self.cell * len(levels)
        self.drawing.grid(x, y, (self.cell, self.cell), levels, signed=True)
        self.drawing.box(x, y, self.cell * across, high, stroke=self.drawing.theme.line, line=0.4)


def _numbers(drawing: Drawing, centre: list[float], y: float, texts: list[str]) -> None:
    for x, text in zip(centre, texts, strict=True):
        drawing.text(x, y, text.replace("-", "−"), size=SIZE, anchor="middle")


def first_word_row(selection: AttentionSelection) -> int:
    """Return the first row that is a word."""
    return next((place for place, unit in enumerate(selection.rows) if not unit.special), 0)


def six_steps(inside: HeadQKV, row: int) -> tuple[Weights, Weights, Weights, bool]:
    """Return of one row: query · key, the scores, their softmax, and whether scores are the products divided by √d."""
    dots = inside.key @ inside.query[row]
    scores = np.where(np.isfinite(inside.scores[row]), inside.scores[row], -np.inf).astype(np.float64)
    weights = np.exp(scores - scores.max())
    seen = np.isfinite(scores)
    scaled = bool(np.allclose((dots / math.sqrt(inside.query.shape[1]))[seen], scores[seen], rtol=0.02, atol=0.05))
    return dots, np.asarray(scores, dtype=np.float32), np.asarray(weights / weights.sum(), dtype=np.float32), scaled


def find_head_qkv(record: Record, attention: str = "", layer: int | None = None, head: int | None = None) -> HeadQKV:
    """Return the numbers inside the head that is asked for, or inside the first that there is."""
    name, layer, head = parse_site(attention, layer, head)
    found = record.inside
    if not found:
        raise UsageError("the record has no numbers from inside a head: ask for them when it is made (inside)")
    for one in found:
        site = (one.attention, one.layer, one.head)
        if (not name or record[name].name == one.attention) and layer in (None, site[1]) and head in (None, site[2]):
            return one
    have = ", ".join(f"{one.attention} layer {one.layer} head {one.head}" for one in found)
    raise UsageError(f"the record has no numbers from inside that head: it has {have}")
