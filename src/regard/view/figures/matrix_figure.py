"""Matrix (heat map): queries in rows, keys in columns, a dot on the largest weight of each row."""

from __future__ import annotations

import numpy as np

from regard.view.drawing import Drawing
from regard.view.figures.panels import (
    FigureRequest,
    draw_labelled_matrix,
    draw_notes,
    draw_weight_scale,
    format_percent,
    mark_row_maxima,
    selection_caption,
)
from regard.view.palette import weight_levels
from regard.view.selection import AttentionSelection


def draw_matrix(request: FigureRequest) -> Drawing:
    """Draw the attention matrix of a head."""
    selection = request.selection
    drawing = request.drawing()
    theme = drawing.theme
    is_self = selection.attention.is_self
    geometry = draw_labelled_matrix(
        drawing,
        1,
        weight_levels(selection.table),
        selection.rows,
        selection.columns,
        colours=(theme.text, theme.text) if is_self else (theme.target, theme.source),
    )
    has_dots = mark_row_maxima(drawing, geometry, selection.table)
    caption = selection_caption(selection, dots=has_dots)
    if not is_self and selection.norm == "raw" and len(selection.columns) > 1:
        caption += (
            f" Coverage {format_percent(coverage(selection))}, confidence {format_percent(confidence(selection))}."
        )
    draw_notes(drawing, draw_weight_scale(drawing, geometry.bottom + 8, selection.norm, caption))
    return drawing


def coverage(selection: AttentionSelection) -> float:
    """How evenly keys are attended to: 1 where each receives a total weight of 1; special tokens are left out.

    The penalty of a key is log(1 + (1 - its total weight)²), as in scores of alignments.
    """
    columns = [column for column, unit in enumerate(selection.columns) if not unit.special]
    if not columns:
        return 1.0
    totals = selection.table[:, columns].sum(axis=0)
    return float(np.exp(-np.log1p((1 - totals) ** 2).mean()))


def confidence(selection: AttentionSelection) -> float:
    """One minus the normalized entropy: 1 where each query attends to one key, 0 where attention is uniform."""
    weights = np.clip(selection.table, 1e-12, None)
    entropy = -(weights * np.log(weights)).sum(axis=1).mean()
    return float(max(0.0, 1 - entropy / np.log(weights.shape[1])))
