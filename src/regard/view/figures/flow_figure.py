"""Flow (attention rollout): how much one token of the last layer depends on each token of every layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regard.attention.rollout import rollout_step
from regard.errors import UsageError
from regard.tasks.alignment import merge_subwords
from regard.view.codec import Weights
from regard.view.drawing import SIZE, Drawing, Point, text_width
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

ROW_HEIGHT = 9.4
MIN_ROW_HEIGHT = MIN_FONT_SIZE * 1.15
MIN_EDGE = 0.004  # smaller flows are left out
MAX_EDGES = 1500
TOP = 10.0


@dataclass(frozen=True)
class _FlowLayout:
    """Geometry of the tokens of all layers."""

    left: float
    right: float
    column: float  # from one layer to the next
    row_height: float
    font_size: float
    margin: float  # of labels
    num_visible: int

    def point(self, layer: int, token: int) -> Point:
        return self.left + self.column * layer, TOP + self.row_height * (token + 0.5)


def draw_flow(request: FigureRequest) -> Drawing:
    """Draw the rollout to one token: the width of an edge is its flow, layers go from left to right."""
    attention = self_attention(request.record, request.attention)
    drawing = request.drawing()
    tokens = axis_units(request.record.texts[attention.rows], words=request.words)
    steps = rollout_steps(attention, tokens)
    row = find_row(tokens, request.token)
    row = default_row(tokens) if row is None else row
    flow = rollout(steps, row)  # [layers + 1, tokens]; the first is the input
    layout = _lay_out_tokens(tokens, row, len(steps), drawing.width)
    _draw_edges(drawing, steps, flow, layout)
    _draw_layers(drawing, attention, flow, layout)
    _draw_input_tokens(drawing, tokens, flow, layout)
    x, y = layout.point(len(steps), row)
    drawing.text(
        x + 4,
        y + 0.35 * layout.font_size,
        tokens[row].label,
        size=layout.font_size,
        colour=drawing.theme.target,
        bold=True,
        room=drawing.width - x - 4,
    )
    if layout.num_visible < len(tokens):
        drawing.notes.append(f"tokens 1 to {layout.num_visible:,} of {len(tokens):,} are shown")
    residual = "without residual connections"
    if attention.has_residual:
        residual = "half of each token passed on by the residual connection"
    caption = (
        f"Rollout of {attention.name} to “{tokens[row].label}”: the mean of a layer’s heads, {residual}. "
        "It shows where attention leads, not why."
    )
    bottom = TOP + layout.row_height * layout.num_visible + 6
    draw_notes(drawing, draw_weight_scale(drawing, bottom, "raw", caption))
    return drawing


def _lay_out_tokens(tokens: list[AxisUnit], row: int, num_layers: int, width: float) -> _FlowLayout:
    row_height = max(MIN_ROW_HEIGHT, min(ROW_HEIGHT, MAX_HEIGHT / len(tokens)))
    font_size = min(SIZE, 0.8 * row_height)
    margin = min(0.3 * width, max(text_width(unit.label, font_size) for unit in tokens)) + 4
    left = margin + 18
    right = width - min(margin, text_width(tokens[row].label, font_size) + 6) - 2
    return _FlowLayout(
        left,
        right,
        column=(right - left) / num_layers,
        row_height=row_height,
        font_size=font_size,
        margin=margin,
        num_visible=min(len(tokens), int(MAX_HEIGHT / MIN_ROW_HEIGHT)),
    )


def _draw_edges(drawing: Drawing, steps: list[Weights], flow: Weights, layout: _FlowLayout) -> None:
    visible = range(layout.num_visible)
    edges = []
    for layer, weights in enumerate(steps):
        for query in visible:
            for key in visible:
                edge_flow = float(flow[layer + 1, query] * weights[query, key])
                if edge_flow >= MIN_EDGE:
                    edges.append((edge_flow, layer, query, key))
    bend = 0.45 * layout.column
    for edge_flow, layer, query, key in sorted(edges)[-MAX_EDGES:]:
        x, y = layout.point(layer + 1, query)
        key_x, key_y = layout.point(layer, key)
        points = ((x, y), (x - bend, y), (key_x + bend, key_y), (key_x, key_y))
        colour = drawing.theme.shade(max(3, round(LEVELS * edge_flow**0.5)))
        drawing.stroke(points, colour, width=0.3 + 2.2 * edge_flow, bent=True)


def _draw_layers(drawing: Drawing, attention: AttentionRecord, flow: Weights, layout: _FlowLayout) -> None:
    prefix = "layer " if layout.column > 24 else ""
    names = ["input", *(f"{prefix}{layer}" for layer in attention.layers)]
    for layer, name in enumerate(names):
        drawing.text(layout.point(layer, 0)[0], 6, name, size=5.6, colour=drawing.theme.soft, anchor="middle")
        for token in range(layout.num_visible):
            x, y = layout.point(layer, token)
            root = float(flow[layer, token]) ** 0.5
            drawing.disc(x, y, 0.6 + 2.0 * root, drawing.theme.shade(max(4, round(LEVELS * root))))


def _draw_input_tokens(drawing: Drawing, tokens: list[AxisUnit], flow: Weights, layout: _FlowLayout) -> None:
    theme = drawing.theme
    size = layout.font_size
    for index, unit in enumerate(tokens[: layout.num_visible]):
        y = layout.point(0, index)[1]
        token_flow = float(flow[0, index])
        colour = theme.soft if unit.special or token_flow < 0.5 / len(tokens) else theme.text
        x = layout.left
        drawing.text(x - 22, y + 0.35 * size, unit.label, size=size, colour=colour, anchor="end", room=layout.margin)
        drawing.text(x - 5, y + 0.32 * size, format_percent(token_flow), size=5.2, colour=theme.soft, anchor="end")


def rollout_steps(attention: AttentionRecord, tokens: list[AxisUnit]) -> list[Weights]:
    """What each layer passes on, [queries, keys]."""
    groups = [unit.members for unit in tokens]
    steps = []
    for layer in attention.layers:
        weights = merge_subwords(mean_head(attention, layer), groups, groups)
        step = rollout_step(weights, has_residual=attention.has_residual)
        steps.append(np.asarray(step, dtype=np.float32))
    return steps


def rollout(steps: list[Weights], row: int) -> Weights:
    """How much of a token of the last layer comes from each token of every layer, the input first.

    >>> rollout([np.array([[0.5, 0.5], [0.0, 1.0]]), np.eye(2)], 0).tolist()
    [[0.5, 0.5], [1.0, 0.0], [1.0, 0.0]]
    """
    flow = [np.eye(len(steps[0]))[row]]
    for weights in reversed(steps):
        flow.append(flow[-1] @ weights)
    return np.asarray(flow[::-1])


def self_attention(record: Record, name: str = "") -> AttentionRecord:
    """The self-attention of this name, or the first one."""
    if name:
        attention = record[name]
        if attention.is_self and not attention.is_generated:
            return attention
        raise UsageError(f"{attention.name} is not self-attention: flow needs layers whose tokens attend to each other")
    for attention in record.attention:
        if attention.is_self and not attention.is_generated:
            return attention
    raise UsageError("the record has no self-attention: flow cannot be drawn")


def default_row(tokens: list[AxisUnit]) -> int:
    """Index of the first token where it is special, such as [CLS], else of the last word."""
    if tokens[0].special:
        return 0
    return max((index for index, unit in enumerate(tokens) if not unit.special), default=0)
