"""Math: the six steps from a query to the output of one head, with their values."""

from __future__ import annotations

import math

import numpy as np

from regard.errors import UsageError
from regard.view.codec import Weights
from regard.view.drawing import SIZE, SMALL, Drawing
from regard.view.figures.panels import FigureRequest, draw_notes, draw_signed_scale, format_percent
from regard.view.palette import LEVELS, signed_levels
from regard.view.record.parts import HeadQKV
from regard.view.record.record import Record
from regard.view.selection import AttentionSelection, parse_site, select_attention

VALUES_PER_LINE = 16  # of a vector
LABEL_WIDTH = 64.0  # of the names of the steps
MIN_COLUMN = 36.0  # of a key
MAX_COLUMN = 60.0


HOP_ATTENTION = "hop"  # attention of memory networks


def draw_math(request: FigureRequest) -> Drawing:
    """Draw the six steps for one query of one head, with the keys of the largest weights in their order."""
    qkv = find_head_qkv(request.record, request.attention, request.layer, request.head)
    selection = select_attention(request.record, qkv.attention, qkv.layer, qkv.head)
    row = selection.find_row(request.token)
    figure = _MathFigure(request.drawing(), qkv, selection, first_word_row(selection) if row is None else row)
    figure.draw_labels()
    figure.draw_queries_and_keys()
    figure.draw_scores()
    figure.draw_weights()
    figure.draw_weighted_values()
    figure.draw_sum()
    figure.draw_caption()
    return figure.drawing


class _MathFigure:
    """Draws the steps from top to bottom; `y` is where the next one begins."""

    def __init__(self, drawing: Drawing, qkv: HeadQKV, selection: AttentionSelection, row: int) -> None:
        self.drawing = drawing
        self.qkv = qkv
        self.selection = selection
        self.row = row
        self.y = 15.0
        self.weights = qkv.weights[row]
        max_keys = max(2, int((drawing.width - LABEL_WIDTH) / MIN_COLUMN))
        self.keys = sorted(largest_keys(qkv, row, max_keys))
        self.column = min(MAX_COLUMN, (drawing.width - LABEL_WIDTH) / len(self.keys))
        self.centres = [LABEL_WIDTH + self.column * (index + 0.5) for index in range(len(self.keys))]
        vector_size = max(qkv.query.shape[1], qkv.value.shape[1])
        self.strip = _VectorStrip(drawing, min(self.column - 4, 40.0), vector_size)
        self.max_query_key = max(float(np.abs(qkv.query[row]).max()), float(np.abs(qkv.key[self.keys]).max())) or 1.0
        self.max_value = float(np.abs(qkv.value[self.keys]).max()) or 1.0

    def draw_labels(self) -> None:
        """Label the query and the keys."""
        drawing = self.drawing
        theme = drawing.theme
        header = f"{len(self.keys)} keys, and their values"
        drawing.text(drawing.width, 5, header, size=5.6, colour=theme.soft, anchor="end")
        drawing.text(7, 5, "query", size=5.6, colour=theme.soft)
        for x, key in zip(self.centres, self.keys, strict=True):
            unit = self.selection.columns[key]
            colour = theme.soft if unit.special else theme.source
            drawing.text(x, self.y, unit.label, colour=colour, anchor="middle", room=self.column - 2)
        query = self.selection.rows[self.row].label
        drawing.text(7, self.y, query, colour=theme.target, bold=True, room=LABEL_WIDTH - 9)
        self.y += 5

    def draw_queries_and_keys(self) -> None:
        """Step 1: the vectors of the query and the keys."""
        self._name_step(self.y + self.strip.height / 2 + 2, 1, "q, k")
        self.strip.draw(LABEL_WIDTH - self.strip.width - 1, self.y, self.qkv.query[self.row], self.max_query_key)
        for x, key in zip(self.centres, self.keys, strict=True):
            self.strip.draw(x - self.strip.width / 2, self.y, self.qkv.key[key], self.max_query_key)
        self.y += self.strip.height + 12

    def draw_scores(self) -> None:
        """Steps 2 and 3: dot products, or other scores, and their scaling."""
        qkv = self.qkv
        self._name_step(self.y, 2, "query · key" if qkv.is_dot_product else "score")
        self._draw_values([f"{value:.1f}" for value in qkv.unscaled_scores(self.row)[self.keys]])
        self._name_step(self.y, 3, qkv.scaling)
        self._draw_values([f"{value:.2f}" for value in qkv.scores[self.row, self.keys]])

    def draw_weights(self) -> None:
        """Step 4: weights from the scores, by softmax or another normalisation."""
        theme = self.drawing.theme
        self._name_step(self.y, 4, self.qkv.normalization)
        for x, key in zip(self.centres, self.keys, strict=True):
            weight = float(self.weights[key])
            shade = theme.shade(round(LEVELS * weight**0.5))
            self.drawing.box(x - 11, self.y - 7, 22, 9.4, shade, stroke=theme.line, line=0.3)
            self.drawing.text(x, self.y, format_percent(weight), colour=theme.ink_on(shade), anchor="middle")
        self.y += 9

    def draw_weighted_values(self) -> None:
        """Step 5: each value times its weight."""
        theme = self.drawing.theme
        strip = self.strip
        self._name_step(self.y + strip.height / 2 + 2, 5, "× value")
        for x, key in zip(self.centres, self.keys, strict=True):
            left = x - strip.width / 2
            value = self.qkv.value[key]
            strip.draw(left, self.y, value, self.max_value)
            strip.draw(left, self.y + strip.height + 5, self.weights[key] * value, self.max_value)
            line = [(x, self.y + strip.height + 0.8), (x, self.y + strip.height + 4.2)]
            self.drawing.stroke(line, theme.soft, width=0.5)
        self.y += 2 * strip.height + 9

    def draw_sum(self) -> None:
        """Step 6: the sum over all keys, also those that are not shown."""
        theme = self.drawing.theme
        output = self.weights @ self.qkv.value.astype(np.float64)
        middle = LABEL_WIDTH + self.strip.width / 2
        for x in self.centres:
            line = [(x, self.y - 3), (x, self.y + 1), (middle, self.y + 2), (middle, self.y + 6)]
            self.drawing.stroke(line, theme.line, width=0.5, bent=True)
        self.y += 7
        self._name_step(self.y + self.strip.height / 2 + 2, 6, "sum")
        self.strip.draw(LABEL_WIDTH, self.y, output, self.max_value)

    def draw_caption(self) -> None:
        """Draw the scale, and note the keys that are not shown."""
        num_others = int(np.isfinite(self.qkv.scores[self.row]).sum()) - len(self.keys)
        if num_others > 0:
            other_weight = 1 - float(self.weights[self.keys].sum())
            self.drawing.notes.append(
                f"the {len(self.keys)} keys of the largest weights are shown; the sum is over all, "
                f"{num_others} others hold {other_weight:.0%}"
            )
        caption = (
            f"Each square is one component of a vector: of queries and keys relative to {self.max_query_key:.2g}, of "
            f"values to {self.max_value:.2g}. {self.selection.site}."
        )
        bottom = self.y + self.strip.height + 8
        draw_notes(self.drawing, draw_signed_scale(self.drawing, bottom, 1.0, caption))

    def _name_step(self, y: float, step: int, name: str) -> None:
        self.drawing.text(0, y, f"{step}", size=SMALL, colour=self.drawing.theme.mark, bold=True)
        self.drawing.text(7, y, name, size=SMALL, room=LABEL_WIDTH - 9)

    def _draw_values(self, labels: list[str]) -> None:
        for x, label in zip(self.centres, labels, strict=True):
            self.drawing.text(x, self.y, label.replace("-", "−"), size=SIZE, anchor="middle")
        self.y += 11


class _VectorStrip:
    """Draws vectors as lines of signed squares."""

    def __init__(self, drawing: Drawing, width: float, max_values: int) -> None:
        self.drawing = drawing
        self.width = width
        self.cell = width / min(VALUES_PER_LINE, max_values)
        self.height = self.cell * math.ceil(max_values / VALUES_PER_LINE)

    def draw(self, x: float, y: float, values: Weights, max_value: float) -> None:
        """Draw one vector."""
        values_per_line = min(VALUES_PER_LINE, len(values))
        padded = np.zeros(math.ceil(len(values) / values_per_line) * values_per_line)
        padded[: len(values)] = values
        levels = signed_levels(padded.reshape(-1, values_per_line), max_value)
        self.drawing.grid(x, y, (self.cell, self.cell), levels, signed=True)
        height = self.cell * len(levels)
        self.drawing.box(x, y, self.cell * values_per_line, height, stroke=self.drawing.theme.line, line=0.4)


def first_word_row(selection: AttentionSelection) -> int:
    """Index of the first row that is not a special token."""
    return next((row for row, unit in enumerate(selection.rows) if not unit.special), 0)


def largest_keys(qkv: HeadQKV, row: int, count: int) -> list[int]:
    """Up to `count` visible keys of a query, those with the largest weights and then scores first."""
    is_visible = np.isfinite(qkv.scores[row])
    if not is_visible.any():
        raise UsageError(f"the mask hides all keys of query {row}: choose another token")
    order = np.lexsort((-qkv.scores[row], -qkv.weights[row], ~is_visible))
    keys: list[int] = order[: min(count, int(is_visible.sum()))].tolist()
    return keys


def find_head_qkv(record: Record, attention: str = "", layer: int | None = None, head: int | None = None) -> HeadQKV:
    """Find the stored queries, keys and values of the requested head, or of the first one."""
    name, layer, head = parse_site(attention, layer, head)
    stored = record.qkv
    if not stored and record.attention and all(part.name == HOP_ATTENTION for part in record.attention):
        raise UsageError("the hops of a memory network have no queries, keys and values: choose another view, as hops")
    if not stored:
        raise UsageError(
            "the record has no queries, keys and values of a head: record a model that has some, with "
            "`regard see MODEL TEXT --store-qkv HEAD --out record.json`"
        )
    for qkv in stored:
        is_attention = not name or record[name].name == qkv.attention
        if is_attention and layer in (None, qkv.layer) and head in (None, qkv.head):
            return qkv
    available = ", ".join(f"{qkv.attention} layer {qkv.layer} head {qkv.head}" for qkv in stored)
    raise UsageError(f"the record has no queries, keys and values of that head: it has {available}")
