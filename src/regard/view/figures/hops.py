"""Hops: what each hop of a memory network looked at, a row for each sentence; the question and its answer below."""

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

LINE = 10.5
HOP = 27.0  # width of a hop's column
MIN_WEIGHT = 0.005  # smaller weights are not written


def draw_hops(request: FigureRequest) -> Drawing:
    """Draw sentences by hops."""
    sentences, shares = hop_weights(request.record)
    drawing, theme = request.drawing(), request.theme
    kept = list(range(len(sentences)))
    most = int(MAX_HEIGHT / LINE)
    if len(kept) > most:
        kept = sorted(np.argsort(-shares.max(axis=0), kind="stable")[:most].tolist())
        drawing.notes.append(f"{len(kept)} of {len(sentences):,} sentences are shown, those looked at most")
    column = min(HOP, 0.6 * drawing.width / len(shares))
    longest = max((text_width(sentences[place], SIZE) for place in kept), default=0.0)
    room = min(longest, drawing.width - column * len(shares) - 18)
    left = 14 + room + 4
    for hop in range(len(shares)):
        drawing.text(left + column * (hop + 0.5), 6.5, f"hop {hop + 1}", size=5.6, colour=theme.soft, anchor="middle")
    for line, place in enumerate(kept):
        y = 9 + LINE * line
        drawing.text(9, y + 7.3, str(place + 1), size=5.2, colour=theme.soft, anchor="end")
        drawing.text(13, y + 7.4, sentences[place], room=room)
        for hop in range(len(shares)):
            weight = float(shares[hop, place])
            level = round(LEVELS * max(0.0, min(1.0, weight)) ** 0.5)
            drawing.box(
                left + column * hop, y + 0.5, column - 1, LINE - 1, theme.shade(level), stroke=theme.line, line=0.3
            )
            if weight >= MIN_WEIGHT:
                ink = theme.ink_on(theme.shade(level))
                middle = left + column * (hop + 0.5) - 0.5
                drawing.text(middle, y + 7.2, format_percent(weight), size=SMALL, colour=ink, anchor="middle")
    bottom = 9 + LINE * len(kept) + 5
    for text in _asked_and_said(request.record):
        bottom = draw_paragraph(drawing, bottom, text, left=13)
    missing = 1 - shares.sum(axis=1)
    said = (
        f"Empty memories got {', '.join(format_percent(max(0.0, float(one))) for one in missing)}."
        if missing.max() > MIN_WEIGHT
        else ""
    )
    draw_notes(drawing, draw_weight_scale(drawing, bottom + 5, "raw", said or "Each hop’s weights add up to one."))
    return drawing


def hop_weights(record: Record) -> tuple[list[str], Weights]:
    """Return the sentences of a story and what each hop gave them, [hops, sentences]."""
    for seen in record.attention:
        if seen.name in ("hop", "memory"):
            several = [seen.matrix(layer, head) for layer in seen.layers for head in range(seen.heads)]
            return list(record.texts[seen.columns].tokens), np.concatenate(several)
    raise UsageError(
        "the record has no hops: records of memory networks, which answer questions about stories, have them"
    )


def _asked_and_said(record: Record) -> list[str]:
    question, target = record.texts.get("question"), record.texts.get("target")
    return [side.text for side in (question, target) if side is not None and side.text]
