"""Align: one matrix, what looked by what was looked at; a dot on each row's highest weight."""

from __future__ import annotations

import numpy as np

from regard.view.chosen import Chosen
from regard.view.drawing import Drawing
from regard.view.figures.asked import Asked
from regard.view.figures.panels import foot, marks, matrix, named, share, weight_scale
from regard.view.palette import weight_levels


def align(asked: Asked) -> Drawing:
    """Draw the matrix of a head."""
    chosen, drawing = asked.chosen, asked.drawing()
    theme = drawing.theme
    colours = (theme.text, theme.text) if chosen.seen.own else (theme.target, theme.source)
    at = matrix(drawing, 1, weight_levels(chosen.table), chosen.rows, chosen.columns, colours=colours)
    marks(drawing, at, chosen.table)
    said = named(chosen, dots=at.cell >= 2.5)
    if not chosen.seen.own and chosen.norm == "raw" and len(chosen.columns) > 1:
        said += f" Coverage {share(coverage(chosen))}, confidence {share(confidence(chosen))}."
    bottom = weight_scale(drawing, at.bottom + 8, chosen.norm, said)
    foot(drawing, bottom)
    return drawing


def coverage(chosen: Chosen) -> float:
    """Return how evenly the columns were looked at: 1 where each got as much as it has a share of, specials left out.

    Each column's penalty is log(1 + (1 - what it got)²), as alignments of translators are scored.
    """
    plain = [place for place, unit in enumerate(chosen.columns) if not unit.special]
    if not plain:
        return 1.0
    got = chosen.table[:, plain].sum(axis=0)
    return float(np.exp(-np.log1p((1 - got) ** 2).mean()))


def confidence(chosen: Chosen) -> float:
    """Return how sharply rows looked: 1 where each saw a single column, 0 where all saw all alike."""
    weights = np.clip(chosen.table, 1e-12, None)
    entropy = -(weights * np.log(weights)).sum(axis=1).mean()
    return float(max(0.0, 1 - entropy / np.log(weights.shape[1])))
