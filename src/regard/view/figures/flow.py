"""Flow: from one token of the last layer back to the input, through all layers: attention rolled out."""

from __future__ import annotations

import numpy as np

from regard.errors import UsageError
from regard.tasks.alignment import merge_subwords
from regard.view.codec import Weights
from regard.view.drawing import SIZE, Drawing, text_width
from regard.view.figures.panels import (
    MAX_HEIGHT,
    MIN_FONT_SIZE,
    FigureRequest,
    draw_notes,
    draw_weight_scale,
    format_percent,
)
from regard.view.palette import LEVELS
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.selection import AxisUnit, axis_units, find_row, mean_head

LINE = 9.4
FAINT = 0.004  # an edge that carries less is left out
STAYS = 0.5  # share that a token passes on to itself beside attention


def draw_flow(request: FigureRequest) -> Drawing:
    """Draw what reaches one token: edges carry their share of it, layers from left to right."""
    seen, drawing, theme = self_attention(request.record, request.attention), request.drawing(), request.theme
    tokens = axis_units(request.record.texts[seen.rows], words=request.words)
    passed = rollout_steps(seen, tokens)
    row = find_row(tokens, request.token)
    row = default_row(tokens) if row is None else row
    reach = rollout(passed, row)  # [layers + 1, tokens]; the first is the input
    count = min(len(tokens), int(MAX_HEIGHT / (MIN_FONT_SIZE * 1.15)))
    line = max(MIN_FONT_SIZE * 1.15, min(LINE, MAX_HEIGHT / len(tokens)))
    size = min(SIZE, 0.8 * line)
    margin = min(0.3 * drawing.width, max(text_width(unit.label, size) for unit in tokens)) + 4
    left, right, top = margin + 18, drawing.width - min(margin, text_width(tokens[row].label, size) + 6) - 2, 10.0
    across = (right - left) / len(passed)

    def at(layer: int, place: int) -> tuple[float, float]:
        return left + across * layer, top + line * (place + 0.5)

    edges = [
        (float(reach[layer + 1, start] * weights[start, end]), layer, start, end)
        for layer, weights in enumerate(passed)
        for start in range(count)
        for end in range(count)
        if reach[layer + 1, start] * weights[start, end] >= FAINT
    ]
    for carried, layer, start, end in sorted(edges)[-1500:]:
        (x, y), (to, down) = at(layer + 1, start), at(layer, end)
        bend = 0.45 * across
        colour = theme.shade(max(3, round(LEVELS * carried**0.5)))
        drawing.stroke(
            ((x, y), (x - bend, y), (to + bend, down), (to, down)), colour, width=0.3 + 2.2 * carried, bent=True
        )
    for layer in range(len(passed) + 1):
        name = (
            "input" if layer == 0 else f"layer {seen.layers[layer - 1]}" if across > 24 else str(seen.layers[layer - 1])
        )
        drawing.text(at(layer, 0)[0], 6, name, size=5.6, colour=theme.soft, anchor="middle")
        for place in range(count):
            x, y = at(layer, place)
            drawing.disc(
                x,
                y,
                0.6 + 2.0 * float(reach[layer, place]) ** 0.5,
                theme.shade(max(4, round(LEVELS * float(reach[layer, place]) ** 0.5))),
            )
    for place, unit in enumerate(tokens[:count]):
        y = at(0, place)[1]
        given = float(reach[0, place])
        colour = theme.soft if unit.special or given < 0.5 / len(tokens) else theme.text
        drawing.text(left - 22, y + 0.35 * size, unit.label, size=size, colour=colour, anchor="end", room=margin)
        drawing.text(left - 5, y + 0.32 * size, format_percent(given), size=5.2, colour=theme.soft, anchor="end")
    x, y = at(len(passed), row)
    drawing.text(
        x + 4, y + 0.35 * size, tokens[row].label, size=size, colour=theme.target, bold=True, room=drawing.width - x - 4
    )
    if count < len(tokens):
        drawing.notes.append(f"tokens 1 to {count:,} of {len(tokens):,} are shown")
    said = (
        f"Rollout of {seen.name} to “{tokens[row].label}”: the mean of a layer’s heads, and half of each token passed "
        "on to itself. Where attention led, not why."
    )
    draw_notes(drawing, draw_weight_scale(drawing, top + line * count + 6, "raw", said))
    return drawing


def rollout_steps(attention: AttentionRecord, tokens: list[AxisUnit]) -> list[Weights]:
    """Return what each layer passes on, [rows, columns]: half attention, half the token itself."""
    members = [unit.members for unit in tokens]
    made = []
    for layer in attention.layers:
        weights = merge_subwords(mean_head(attention, layer), members, members)
        total = weights.sum(axis=1, keepdims=True)
        weights = np.where(total > 1e-6, weights / np.maximum(total, 1e-6), np.eye(len(tokens)))
        made.append(np.asarray((1 - STAYS) * weights + STAYS * np.eye(len(tokens)), dtype=np.float32))
    return made


def rollout(steps: list[Weights], row: int) -> Weights:
    """Return how much of a token of the last layer comes from each token of every layer, the input first.

    >>> rollout([np.array([[0.5, 0.5], [0.0, 1.0]]), np.eye(2)], 0).tolist()
    [[0.5, 0.5], [1.0, 0.0], [1.0, 0.0]]
    """
    reach = [np.eye(len(steps[0]))[row]]
    for weights in reversed(steps):
        reach.append(reach[-1] @ weights)
    return np.asarray(reach[::-1])


def self_attention(record: Record, name: str = "") -> AttentionRecord:
    """Return the attention of this name, or the first, whose tokens look at their own text."""
    if name:
        seen = record[name]
        if seen.own and not seen.produced:
            return seen
        raise UsageError(f"{seen.name} looks at another text: flow needs layers whose tokens look at their own")
    for seen in record.attention:
        if seen.own and not seen.produced:
            return seen
    raise UsageError("the record has no attention whose tokens look at their own text: flow cannot be drawn")


def default_row(tokens: list[AxisUnit]) -> int:
    """Return the first token where it is special, as [CLS] is, else the last word."""
    if tokens[0].special:
        return 0
    return max((place for place, unit in enumerate(tokens) if not unit.special), default=0)
