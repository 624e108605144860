"""Heads: a small picture of every head of an attention, layers below each other."""

from __future__ import annotations

import numpy as np

from regard.attention.sites import site_name
from regard.view.codec import Weights
from regard.view.drawing import Drawing
from regard.view.figures.panels import FigureRequest, draw_notes, draw_weight_scale
from regard.view.palette import weight_levels
from regard.view.record.attention import AttentionRecord
from regard.view.record.head_stats import evenly_spaced, head_stats, max_pool

MOST = 25_000  # cells of all small pictures together
LARGEST = 64.0  # a small picture, in points


def draw_heads(request: FigureRequest) -> Drawing:
    """Draw all heads."""
    chosen, drawing = request.chosen, request.drawing()
    seen, theme = chosen.attention, drawing.theme
    layers = [request.layer] if request.layer is not None else list(seen.layers)
    labels = head_stats(seen, request.record.texts[seen.columns].special)["label"]
    left, top, gap = 26.0, 10.0, 3.0
    side = min(LARGEST, (drawing.width - left) / seen.heads - gap)
    named = side >= 19  # there is room for words below a picture
    line = side + gap + (6.5 if named else 0.0)
    cells = max(4, min(32, int((MOST / (seen.heads * len(layers))) ** 0.5)))
    _, _, high, broad = seen.shape
    tall = side * min(1.0, max(0.35, high / max(1, broad))) if high < broad else side
    line -= side - tall
    for head in range(seen.heads):
        x = left + (side + gap) * head + side / 2
        drawing.text(x, top - 3, str(head), size=5.6, colour=theme.soft, anchor="middle")
    drawing.text(left - 6, top - 3, "head", size=5.6, colour=theme.soft, anchor="end")
    for number, layer in enumerate(layers):
        y = top + line * number
        drawing.text(left - 6, y + tall / 2 + 2, f"layer {layer}", size=5.6, colour=theme.soft, anchor="end")
        for head in range(seen.heads):
            x = left + (side + gap) * head
            small = _small(seen, layer, head, cells)
            drawing.grid(x, y, (side / small.shape[1], tall / small.shape[0]), weight_levels(small))
            best = request.record.best == (seen.name, layer, head)
            stroke, thick = (theme.mark, 1.1) if best else (theme.line, 0.4)
            drawing.box(x - 0.2, y - 0.2, side + 0.4, tall + 0.4, stroke=stroke, line=thick)
            if named:
                label = labels[seen.layers.index(layer)][head]
                drawing.text(x + side / 2, y + tall + 5.6, label, size=4.8, colour=theme.soft, anchor="middle",
                             room=side + gap)  # fmt: skip
    if high > cells or broad > cells:
        fields = f"{small.shape[0]} × {small.shape[1]} fields, each shaded by its largest"
        drawing.notes.append(f"{high:,} × {broad:,} weights a head are drawn as {fields}")
    if request.record.best and request.record.best[0] == seen.name and request.record.best[1] in layers:
        _, layer, head = request.record.best
        drawing.notes.append(f"the frame marks {site_name(seen.name, layer)}:{head}, the best aligning head")
    bottom = top + line * len(layers) + 4
    whole = f"{seen.name}: rows look at columns, from the top left."
    bottom = draw_weight_scale(drawing, bottom, "raw", whole)
    draw_notes(drawing, bottom)
    return drawing


def _small(seen: AttentionRecord, layer: int, head: int, cells: int) -> Weights:
    rows = np.arange(seen.shape[2]) if seen.has_weights else evenly_spaced(seen.shape[2], 4 * cells)
    return max_pool(seen.query_rows(layer, head, rows), cells)
