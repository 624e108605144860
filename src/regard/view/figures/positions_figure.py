"""Positions: the positional encodings of a model, and the cosine similarity of any two positions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError
from regard.view.codec import Weights
from regard.view.drawing import Drawing
from regard.view.figures.panels import FigureRequest, draw_notes, draw_signed_scale
from regard.view.palette import signed_levels
from regard.view.record.head_stats import evenly_spaced
from regard.view.record.parts import PositionEncodings
from regard.view.record.record import Record

MAX_POSITIONS = 96
MAX_DIMENSIONS = 160
LEFT = 16.0
TOP = 9.0
GAP = 22.0


def draw_positions(request: FigureRequest) -> Drawing:
    """Draw encodings by position on the left, the similarity of positions on the right."""
    positions = find_positions(request.record)
    drawing = request.drawing()
    theme = drawing.theme
    num_positions, num_dimensions = positions.encodings.shape
    num_rows = min(num_positions, MAX_POSITIONS)
    encodings = positions.encodings[:num_rows]
    dimensions = evenly_spaced(num_dimensions, MAX_DIMENSIONS)
    max_value = float(np.quantile(np.abs(encodings), 0.995)) or 1.0
    side = (drawing.width - LEFT - GAP - 1) / 2
    right_panel = LEFT + side + GAP
    drawing.text(LEFT, TOP - 3, f"{num_dimensions} dimensions →", size=5.6, colour=theme.soft)
    drawing.text(right_panel, TOP - 3, "similarity of positions", size=5.6, colour=theme.soft)
    _draw_panel(drawing, LEFT, side, signed_levels(encodings[:, dimensions], max_value))
    _draw_panel(drawing, right_panel, side, signed_levels(cosine_similarity(encodings), 1.0))
    for position in _ticks(num_rows):
        x = right_panel + side * (position + 0.5) / num_rows
        drawing.text(x, TOP + side + 6.5, str(position), size=5.2, colour=theme.soft, anchor="middle")
    if num_rows < num_positions:
        drawing.notes.append(f"positions 0 to {num_rows - 1} of {num_positions:,} are shown")
    if len(dimensions) < num_dimensions:
        drawing.notes.append(f"{len(dimensions)} of {num_dimensions} dimensions are shown, evenly spaced")
    caption = (
        f"Left: {positions.kind} encodings, full colour at ±{max_value:.2g}. "
        "Right: cosine similarity of the encodings of two positions, full colour at ±1."
    )
    draw_notes(drawing, draw_signed_scale(drawing, TOP + side + 12, 1.0, caption))
    return drawing


def find_positions(record: Record) -> PositionEncodings:
    """The positional encodings of a record."""
    if record.positions is None or not record.positions.encodings.size:
        raise UsageError(
            "the record has no positional encodings: only models that add them to embeddings, or rotate queries and "
            "keys, have some; ALiBi and relative positions change the scores instead"
        )
    return record.positions


def _draw_panel(drawing: Drawing, x: float, side: float, levels: NDArray[np.int64]) -> None:
    num_rows, num_columns = levels.shape
    drawing.grid(x, TOP, (side / num_columns, side / num_rows), levels, signed=True)
    drawing.box(x, TOP, side, side, stroke=drawing.theme.line, line=0.5)
    for position in _ticks(num_rows):
        y = TOP + side * (position + 0.5) / num_rows
        drawing.text(x - 3, y + 2, str(position), size=5.2, colour=drawing.theme.soft, anchor="end")


def cosine_similarity(codes: Weights) -> Weights:
    """Cosine similarity between the encodings of any two positions.

    >>> cosine_similarity(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])).tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """
    norms = np.linalg.norm(codes, axis=1, keepdims=True)
    normalized = codes / np.where(norms > 0, norms, 1.0)
    return np.asarray(normalized @ normalized.T)


def _ticks(num_positions: int) -> list[int]:
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100) if num_positions / size <= 7)
    return list(range(0, num_positions, step))
