"""Heads (model view): a thumbnail of every head, one row per layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regard.attention.sites import site_name
from regard.view.codec import Weights
from regard.view.drawing import Drawing
from regard.view.figures.panels import FigureRequest, draw_notes, draw_weight_scale
from regard.view.palette import weight_levels
from regard.view.record.attention import AttentionRecord
from regard.view.record.head_stats import evenly_spaced, head_stats, max_pool

MAX_CELLS = 25_000  # of all thumbnails together
MAX_THUMBNAIL = 64.0  # points
MIN_LABELLED_THUMBNAIL = 19.0  # there is space for a label below it
LEFT = 26.0
TOP = 10.0
GAP = 3.0


@dataclass(frozen=True)
class _ThumbnailLayout:
    """Sizes of the thumbnails."""

    width: float
    height: float
    row_height: float
    max_cells: int  # rows and columns of one thumbnail

    def x(self, head: int) -> float:
        return LEFT + (self.width + GAP) * head

    @property
    def has_labels(self) -> bool:
        return self.width >= MIN_LABELLED_THUMBNAIL


def draw_heads(request: FigureRequest) -> Drawing:
    """Draw the thumbnails of all heads."""
    attention = request.selection.attention
    drawing = request.drawing()
    layers = [request.layer] if request.layer is not None else list(attention.layers)
    layout = _lay_out_thumbnails(attention, len(layers), drawing.width)
    _draw_header(drawing, attention.num_heads, layout)
    labels = head_stats(attention, request.record.texts[attention.columns].special)["label"]
    for index, layer in enumerate(layers):
        y = TOP + layout.row_height * index
        label_y = y + layout.height / 2 + 2
        drawing.text(LEFT - 6, label_y, f"layer {layer}", size=5.6, colour=drawing.theme.soft, anchor="end")
        layer_labels = labels[attention.layers.index(layer)]
        for head in range(attention.num_heads):
            _draw_thumbnail(drawing, request, layout, layer=layer, head=head, y=y, label=layer_labels[head])
    _note_pooling(drawing, attention, layout.max_cells)
    _note_best_head(drawing, request, layers)
    bottom = TOP + layout.row_height * len(layers) + 4
    caption = f"{attention.name}: queries in rows, keys in columns, from the top left."
    draw_notes(drawing, draw_weight_scale(drawing, bottom, "raw", caption))
    return drawing


def _lay_out_thumbnails(attention: AttentionRecord, num_layers: int, width: float) -> _ThumbnailLayout:
    _, num_heads, num_rows, num_columns = attention.shape
    side = min(MAX_THUMBNAIL, (width - LEFT) / num_heads - GAP)
    height = side
    if num_rows < num_columns:
        height = side * min(1.0, max(0.35, num_rows / max(1, num_columns)))
    label_height = 6.5 if side >= MIN_LABELLED_THUMBNAIL else 0.0
    return _ThumbnailLayout(
        side,
        height,
        row_height=height + GAP + label_height,
        max_cells=max(4, min(32, int((MAX_CELLS / (num_heads * num_layers)) ** 0.5))),
    )


def _draw_header(drawing: Drawing, num_heads: int, layout: _ThumbnailLayout) -> None:
    colour = drawing.theme.soft
    for head in range(num_heads):
        drawing.text(layout.x(head) + layout.width / 2, TOP - 3, str(head), size=5.6, colour=colour, anchor="middle")
    drawing.text(LEFT - 6, TOP - 3, "head", size=5.6, colour=colour, anchor="end")


def _draw_thumbnail(
    drawing: Drawing, request: FigureRequest, layout: _ThumbnailLayout, *, layer: int, head: int, y: float, label: str
) -> None:
    attention = request.selection.attention
    theme = drawing.theme
    x = layout.x(head)
    weights = _pool_weights(attention, layer, head, layout.max_cells)
    cell = (layout.width / weights.shape[1], layout.height / weights.shape[0])
    drawing.grid(x, y, cell, weight_levels(weights))
    is_best = request.record.best == (attention.name, layer, head)
    drawing.box(
        x - 0.2,
        y - 0.2,
        layout.width + 0.4,
        layout.height + 0.4,
        stroke=theme.mark if is_best else theme.line,
        line=1.1 if is_best else 0.4,
    )
    if layout.has_labels:
        drawing.text(
            x + layout.width / 2,
            y + layout.height + 5.6,
            label.removesuffix(" tokens").removesuffix(" token"),
            size=4.8,
            colour=theme.soft,
            anchor="middle",
            room=layout.width + GAP,
        )


def _pool_weights(attention: AttentionRecord, layer: int, head: int, max_cells: int) -> Weights:
    num_rows = attention.shape[2]
    rows = np.arange(num_rows) if attention.has_weights else evenly_spaced(num_rows, 4 * max_cells)
    return max_pool(attention.query_rows(layer, head, rows), max_cells)


def _note_pooling(drawing: Drawing, attention: AttentionRecord, max_cells: int) -> None:
    _, _, num_rows, num_columns = attention.shape
    if num_rows > max_cells or num_columns > max_cells:
        size = f"{min(num_rows, max_cells)} × {min(num_columns, max_cells)}"
        drawing.notes.append(f"{num_rows:,} × {num_columns:,} weights per head are max-pooled to {size}")


def _note_best_head(drawing: Drawing, request: FigureRequest, layers: list[int]) -> None:
    if request.record.best is None:
        return
    name, layer, head = request.record.best
    if name == request.selection.attention.name and layer in layers:
        drawing.notes.append(f"the frame marks {site_name(name, layer)}:{head}, the best alignment head")
