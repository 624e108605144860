"""Lines (head view): query tokens on the left, key tokens on the right, lines for the weights between them."""

from __future__ import annotations

from dataclasses import dataclass

from regard.view.drawing import SIZE, Drawing, text_width
from regard.view.figures.panels import (
    MAX_HEIGHT,
    MIN_FONT_SIZE,
    FigureRequest,
    draw_notes,
    draw_weight_scale,
    format_percent,
    note_hidden_units,
    selection_caption,
    smallest_set,
)
from regard.view.palette import HEAD_COLOURS, LEVELS, blend
from regard.view.selection import AttentionSelection, AxisUnit, select_attention

LINE_MASS = 0.9  # fraction of a row's weight that its lines show
ROW_HEIGHT = 9.4
MIN_ROW_HEIGHT = MIN_FONT_SIZE * 1.15
SQUARE = 4.6  # of one head beside a token
MIN_LINE_WEIGHT = 0.04  # where all rows are shown


@dataclass(frozen=True)
class _TokenColumns:
    """Geometry of the two columns of tokens."""

    left: float  # where lines start
    right: float  # and end
    top: float
    row_height: float
    font_size: float
    visible: tuple[int, int]  # tokens of each column
    margins: tuple[float, float]  # widths of their labels

    def y(self, column: int, index: int) -> float:
        """Vertical centre of a token; both columns are centred on the same line."""
        offset = (max(self.visible) - self.visible[column]) / 2
        return self.top + self.row_height * (offset + index + 0.5)


def draw_lines(request: FigureRequest) -> Drawing:
    """Draw two columns of tokens and the attention of one query, or of all."""
    selection = request.selection
    drawing = request.drawing()
    row = selection.find_row(request.token)
    heads = _select_heads(request, row)
    columns = _lay_out_columns(selection, drawing.width, len(heads))
    _draw_weights(drawing, selection, row, columns)
    _draw_queries(drawing, selection, row, columns)
    _draw_keys(drawing, selection, row, columns)
    if heads and row is not None:
        _draw_head_squares(drawing, heads, row, columns)
    note_hidden_units(drawing, "rows", columns.visible[0], len(selection.rows))
    note_hidden_units(drawing, "columns", columns.visible[1], len(selection.columns))
    caption = selection_caption(selection)
    if row is None:
        caption += f" Lines show {LINE_MASS:.0%} of each row."
    bottom = columns.top + columns.row_height * max(columns.visible)
    draw_notes(drawing, draw_weight_scale(drawing, bottom + 6, selection.norm, caption))
    return drawing


def _lay_out_columns(selection: AttentionSelection, width: float, num_heads: int) -> _TokenColumns:
    max_tokens = int(MAX_HEIGHT / MIN_ROW_HEIGHT)
    visible = (min(len(selection.rows), max_tokens), min(len(selection.columns), max_tokens))
    row_height = max(MIN_ROW_HEIGHT, min(ROW_HEIGHT, MAX_HEIGHT / max(1, *visible)))
    font_size = min(SIZE, row_height * 0.8)
    margins = (_label_width(selection.rows, font_size, width), _label_width(selection.columns, font_size, width))
    squares_width = 16.0 + (SQUARE * num_heads + 4 if num_heads else 0.0)
    spare = max(0.0, width - sum(margins) - squares_width - 120) / 2
    return _TokenColumns(
        left=margins[0] + spare,
        right=width - margins[1] - squares_width - spare,
        top=8.0 if num_heads else 2.0,
        row_height=row_height,
        font_size=font_size,
        visible=visible,
        margins=margins,
    )


def _label_width(units: list[AxisUnit], font_size: float, width: float) -> float:
    return min(0.32 * width, max((text_width(unit.label, font_size) for unit in units), default=0.0)) + 4


def _select_heads(request: FigureRequest, row: int | None) -> list[AttentionSelection]:
    """Every head of the layer, eight at most, where one query is shown and no head was requested."""
    selection = request.selection
    is_single_head = request.head is not None or ":" in request.attention or selection.attention.num_heads == 1
    if row is None or is_single_head:
        return []
    return [
        select_attention(
            request.record,
            selection.attention.name,
            selection.layer,
            head,
            words=request.words,
            norm=request.norm,
        )
        for head in range(min(len(HEAD_COLOURS), selection.attention.num_heads))
    ]


def _draw_weights(drawing: Drawing, selection: AttentionSelection, row: int | None, columns: _TokenColumns) -> None:
    bend = (columns.right - columns.left) / 2.4
    for weight, query, key in sorted(_collect_lines(drawing, selection, row, columns)):
        start = columns.y(0, query)
        end = columns.y(1, key)
        points = (
            (columns.left, start),
            (columns.left + bend, start),
            (columns.right - bend, end),
            (columns.right, end),
        )
        colour = drawing.theme.shade(max(3, round(LEVELS * min(1.0, weight) ** 0.5)))
        drawing.stroke(points, colour, width=0.35 + 2.0 * weight, bent=True)


def _collect_lines(
    drawing: Drawing, selection: AttentionSelection, row: int | None, columns: _TokenColumns
) -> list[tuple[float, int, int]]:
    """Weight, query and key of each line; what the lines of a single query leave out is noted."""
    lines = []
    for query in range(columns.visible[0]) if row is None else [row]:
        weights = selection.table[query]
        keys = smallest_set(weights, LINE_MASS)
        for key in keys:
            if key < columns.visible[1] and (row is not None or weights[key] >= MIN_LINE_WEIGHT):
                lines.append((float(weights[key]), query, key))
        num_others = len(weights) - len(keys)
        if row is not None and num_others:
            other_weight = float(weights.sum() - weights[keys].sum())
            drawing.notes.append(f"{num_others} other key{'s hold' if num_others > 1 else ' holds'} {other_weight:.0%}")
    return lines


def _draw_queries(drawing: Drawing, selection: AttentionSelection, row: int | None, columns: _TokenColumns) -> None:
    theme = drawing.theme
    for index, unit in enumerate(selection.rows[: columns.visible[0]]):
        colour = theme.text if selection.attention.is_self else theme.target
        if unit.special or (row is not None and index != row):
            colour = theme.soft
        drawing.text(
            columns.left - 3,
            columns.y(0, index) + 0.35 * columns.font_size,
            unit.label,
            size=columns.font_size,
            colour=colour,
            anchor="end",
            bold=index == row,
            room=columns.margins[0],
        )


def _draw_keys(drawing: Drawing, selection: AttentionSelection, row: int | None, columns: _TokenColumns) -> None:
    theme = drawing.theme
    attended = smallest_set(selection.table[row], LINE_MASS) if row is not None else []
    for index, unit in enumerate(selection.columns[: columns.visible[1]]):
        colour = theme.text if selection.attention.is_self else theme.source
        if unit.special or (row is not None and index not in attended):
            colour = theme.soft
        y = columns.y(1, index) + 0.35 * columns.font_size
        drawing.text(
            columns.right + 3,
            y,
            unit.label,
            size=columns.font_size,
            colour=colour,
            room=columns.margins[1],
            bold=attended[:1] == [index],
        )
        if row is not None and index in attended:
            weight = format_percent(float(selection.table[row, index]))
            x = columns.right + columns.margins[1] + 13
            drawing.text(x, y, weight, size=5.2, colour=theme.soft, anchor="end")


def _draw_head_squares(drawing: Drawing, heads: list[AttentionSelection], row: int, columns: _TokenColumns) -> None:
    """Draw each head's weight on each key, in the head's colour, below the index of the head."""
    for head, selection in enumerate(heads):
        x = columns.right + columns.margins[1] + 15 + SQUARE * head
        label_y = columns.y(1, 0) - 6
        drawing.text(x + SQUARE / 2, label_y, str(head), size=4.8, colour=drawing.theme.soft, anchor="middle")
        for key in range(columns.visible[1]):
            weight = float(selection.table[row, key])
            if weight >= 0.005:
                colour = blend(drawing.theme.ground, HEAD_COLOURS[head], min(1.0, weight**0.5))
                drawing.box(x, columns.y(1, key) - SQUARE / 2, SQUARE - 0.6, SQUARE - 0.3, colour)
    total = heads[0].attention.num_heads
    head_range = f"the first {len(heads)} of {total} heads" if len(heads) < total else f"the {total} heads"
    drawing.notes.append(f"squares: weights of {head_range} of this layer")
