"""Place: the position codes of a model, and how alike any two positions are."""

from __future__ import annotations

import numpy as np

from regard.errors import UsageError
from regard.view.codec import Weights
from regard.view.drawing import Drawing
from regard.view.figures.panels import FigureRequest, draw_notes, draw_signed_scale
from regard.view.palette import signed_levels
from regard.view.record.head_stats import evenly_spaced

POSITIONS, FIELDS = 96, 160  # that are drawn at most


def draw_positions(request: FigureRequest) -> Drawing:
    """Draw codes by position on the left, likeness of positions on the right."""
    places = request.record.places
    if places is None or not places.codes.size:
        raise UsageError(
            "the record has no position codes: models that read words in no order, or one by one, have none"
        )
    drawing, theme = request.drawing(), request.theme
    positions, numbers = places.codes.shape
    rows = min(positions, POSITIONS)
    columns = evenly_spaced(numbers, FIELDS)
    codes = places.codes[:rows]
    most = float(np.quantile(np.abs(codes), 0.995)) or 1.0
    left, top, gap = 16.0, 9.0, 22.0
    side = (drawing.width - left - gap - 1) / 2
    drawing.text(left, top - 3, f"{numbers} dimensions →", size=5.6, colour=theme.soft)
    drawing.text(left + side + gap, top - 3, "likeness of positions", size=5.6, colour=theme.soft)
    for x, levels in (
        (left, signed_levels(codes[:, columns], most)),
        (left + side + gap, signed_levels(cosine_similarity(codes), 1.0)),
    ):
        high = side
        drawing.grid(x, top, (side / levels.shape[1], high / levels.shape[0]), levels, signed=True)
        drawing.box(x, top, side, high, stroke=theme.line, line=0.5)
        for position in _ticks(rows):
            y = top + high * (position + 0.5) / rows
            drawing.text(x - 3, y + 2, str(position), size=5.2, colour=theme.soft, anchor="end")
    for position in _ticks(rows):
        x = left + side + gap + side * (position + 0.5) / rows
        drawing.text(x, top + side + 6.5, str(position), size=5.2, colour=theme.soft, anchor="middle")
    if rows < positions:
        drawing.notes.append(f"positions 0 to {rows - 1} of {positions:,} are shown")
    if len(columns) < numbers:
        drawing.notes.append(f"{len(columns)} of {numbers} dimensions are shown, evenly chosen")
    said = (
        f"Left: {places.kind} codes, raw, full at ±{most:.2g}. Right: cosine of the codes of two positions, full at ±1."
    )
    draw_notes(drawing, draw_signed_scale(drawing, top + side + 12, 1.0, said))
    return drawing


def cosine_similarity(codes: Weights) -> Weights:
    """Return the cosine between the codes of any two positions.

    >>> cosine_similarity(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])).tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """
    norms = np.linalg.norm(codes, axis=1, keepdims=True)
    plain = codes / np.where(norms > 0, norms, 1.0)
    return np.asarray(plain @ plain.T)


def _ticks(rows: int) -> list[int]:
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100) if rows / size <= 7)
    return list(range(0, rows, step))
