"""Align: one matrix, what looked by what was looked at; a dot on each row's highest weight."""

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
    """Draw the matrix of a head."""
    chosen, drawing = request.chosen, request.drawing()
    theme = drawing.theme
    colours = (theme.text, theme.text) if chosen.attention.own else (theme.target, theme.source)
    at = draw_labelled_matrix(drawing, 1, weight_levels(chosen.table), chosen.rows, chosen.columns, colours=colours)
    mark_row_maxima(drawing, at, chosen.table)
    said = selection_caption(chosen, dots=at.cell >= 2.5)
    if not chosen.attention.own and chosen.norm == "raw" and len(chosen.columns) > 1:
        said += f" Coverage {format_percent(coverage(chosen))}, confidence {format_percent(confidence(chosen))}."
    bottom = draw_weight_scale(drawing, at.bottom + 8, chosen.norm, said)
    draw_notes(drawing, bottom)
    return drawing


def coverage(chosen: AttentionSelection) -> float:
    """Return how evenly the columns were looked at: 1 where each got as much as it has a share of, specials left out.

    Each column's penalty is log(1 + (1 - what it got)²), as alignments of translators are scored.
    """
    plain = [place for place, unit in enumerate(chosen.columns) if not unit.special]
    if not plain:
        return 1.0
    got = chosen.table[:, plain].sum(axis=0)
    return float(np.exp(-np.log1p((1 - got) ** 2).mean()))


def confidence(chosen: AttentionSelection) -> float:
    """Return how sharply rows looked: 1 where each saw a single column, 0 where all saw all alike."""
    weights = np.clip(chosen.table, 1e-12, None)
    entropy = -(weights * np.log(weights)).sum(axis=1).mean()
    return float(max(0.0, 1 - entropy / np.log(weights.shape[1])))
