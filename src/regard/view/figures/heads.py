"""Heads: a small picture of every head of an attention, layers below each other."""

from __future__ import annotations

import numpy as np

from regard.view.chosen import site_name
from regard.view.codes import Weights
from regard.view.drawing import Drawing
from regard.view.figures.asked import Asked
from regard.view.figures.panels import foot, weight_scale
from regard.view.palette import weight_levels
from regard.view.record import Attention, head_stats
from regard.view.record_stats import shrunk, spread_over

MOST = 25_000  # cells of all small pictures together
LARGEST = 64.0  # a small picture, in points


def heads(asked: Asked) -> Drawing:
    """Draw all heads."""
    chosen, drawing = asked.chosen, asked.drawing()
    seen, theme = chosen.seen, drawing.theme
    layers = [asked.layer] if asked.layer is not None else list(seen.layers)
    labels = head_stats(seen, asked.record.texts[seen.columns].special)["label"]
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
            best = asked.record.best == (seen.name, layer, head)
            stroke, thick = (theme.mark, 1.1) if best else (theme.line, 0.4)
            drawing.box(x - 0.2, y - 0.2, side + 0.4, tall + 0.4, stroke=stroke, line=thick)
            if named:
                label = labels[seen.layers.index(layer)][head]
                drawing.text(x + side / 2, y + tall + 5.6, label, size=4.8, colour=theme.soft, anchor="middle",
                             room=side + gap)  # fmt: skip
    if high > cells or broad > cells:
        fields = f"{small.shape[0]} × {small.shape[1]} fields, each shaded by its largest"
        drawing.notes.append(f"{high:,} × {broad:,} weights a head are drawn as {fields}")
    if asked.record.best and asked.record.best[0] == seen.name and asked.record.best[1] in layers:
        _, layer, head = asked.record.best
        drawing.notes.append(f"the frame marks {site_name(seen.name, layer)}:{head}, the best aligning head")
    bottom = top + line * len(layers) + 4
    whole = f"{seen.name}: rows look at columns, from the top left."
    bottom = weight_scale(drawing, bottom, "raw", whole)
    foot(drawing, bottom)
    return drawing


def _small(seen: Attention, layer: int, head: int, cells: int) -> Weights:
    rows = np.arange(seen.shape[2]) if seen.is_kept else spread_over(seen.shape[2], 4 * cells)
    return shrunk(seen.some_rows(layer, head, rows), cells)
