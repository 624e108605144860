"""Hops: the attention of each hop of a memory network, one row per sentence; question and answer below."""

from __future__ import annotations

import numpy as np

from regard.errors import UsageError
from regard.view.codec import Weights
from regard.view.drawing import SIZE, SMALL, Drawing, text_width
from regard.view.figures.panels import (
    MAX_HEIGHT,
    FigureRequest,
    draw_notes,
    draw_paragraph,
    draw_weight_scale,
    format_percent,
)
from regard.view.palette import LEVELS
from regard.view.record.record import Record
from regard.view.terminal import EMPTY_MEMORIES

ROW_HEIGHT = 10.5
MAX_COLUMN = 27.0  # of a hop
MIN_WEIGHT = 0.005  # smaller weights are not written


def draw_hops(request: FigureRequest) -> Drawing:
    """Draw sentences in rows and hops in columns."""
    sentences, weights = hop_weights(request.record)
    drawing = request.drawing()
    visible = _select_sentences(drawing, weights)
    num_hops = len(weights)
    column = min(MAX_COLUMN, 0.6 * drawing.width / num_hops)
    widest = max((text_width(sentences[index], SIZE) for index in visible), default=0.0)
    text_room = min(widest, drawing.width - column * num_hops - 18)
    left = 14 + text_room + 4
    for hop in range(num_hops):
        x = left + column * (hop + 0.5)
        drawing.text(x, 6.5, f"hop {hop + 1}", size=5.6, colour=drawing.theme.soft, anchor="middle")
    for line, index in enumerate(visible):
        y = 9 + ROW_HEIGHT * line
        sentence_number = "–" if sentences[index] == EMPTY_MEMORIES else str(index + 1)
        drawing.text(9, y + 7.3, sentence_number, size=5.2, colour=drawing.theme.soft, anchor="end")
        drawing.text(13, y + 7.4, sentences[index], room=text_room)
        for hop in range(num_hops):
            _draw_weight(drawing, left + column * hop, y, column, float(weights[hop, index]))
    bottom = 9 + ROW_HEIGHT * len(visible) + 5
    for text in _question_and_answer(request.record):
        bottom = draw_paragraph(drawing, bottom, text, left=13)
    draw_notes(drawing, draw_weight_scale(drawing, bottom + 5, "raw", _caption(weights)))
    return drawing


def _select_sentences(drawing: Drawing, weights: Weights) -> list[int]:
    """Indices of the sentences that fit, those of the largest weights in a long story."""
    num_sentences = weights.shape[1]
    max_rows = int(MAX_HEIGHT / ROW_HEIGHT)
    if num_sentences <= max_rows:
        return list(range(num_sentences))
    drawing.notes.append(f"{max_rows} of {num_sentences:,} sentences are shown, those of the largest weights")
    visible: list[int] = sorted(np.argsort(-weights.max(axis=0), kind="stable")[:max_rows].tolist())
    return visible


def _draw_weight(drawing: Drawing, x: float, y: float, column: float, weight: float) -> None:
    theme = drawing.theme
    shade = theme.shade(round(LEVELS * max(0.0, min(1.0, weight)) ** 0.5))
    drawing.box(x, y + 0.5, column - 1, ROW_HEIGHT - 1, shade, stroke=theme.line, line=0.3)
    if weight >= MIN_WEIGHT:
        middle = x + column * 0.5 - 0.5
        drawing.text(middle, y + 7.2, format_percent(weight), size=SMALL, colour=theme.ink_on(shade), anchor="middle")


def _caption(weights: Weights) -> str:
    empty = 1 - weights.sum(axis=1)
    if empty.max() <= MIN_WEIGHT:
        return "The weights of each hop sum to one."
    return f"Weight on empty memories: {', '.join(format_percent(max(0.0, float(weight))) for weight in empty)}."


def hop_weights(record: Record) -> tuple[list[str], Weights]:
    """The sentences of a story and the weights of each hop, [hops, sentences]."""
    for attention in record.attention:
        if attention.name in ("hop", "memory"):
            heads = [attention.matrix(layer, head) for layer in attention.layers for head in range(attention.num_heads)]
            return list(record.texts[attention.columns].tokens), np.concatenate(heads)
    raise UsageError("the record has no hops: only records of memory networks have them")


def _question_and_answer(record: Record) -> list[str]:
    texts = [record.texts.get("question"), record.texts.get("target")]
    return [text.text for text in texts if text is not None and text.text]
