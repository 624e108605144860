"""Tables for terminals: weights as shaded blocks with labelled columns, and bars for the hops of a memory network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size

from regard.view.codec import Weights
from regard.view.record.record import Record
from regard.view.record.texts import escape_invisible
from regard.view.selection import select_attention

BLOCKS = " ░▒▓█"
ASCII_BLOCKS = " .:*#"
CELL = 2  # terminal columns of one weight
MAX_LABEL_WIDTH = 22  # terminal columns
_LEFT_TO_RIGHT = "\u200e"


def shade(weight: float, blocks: str = BLOCKS) -> str:
    """Block for a weight, by its root: small weights stay visible, zero is blank.

    >>> [shade(weight) for weight in (0.0, 0.05, 0.2, 0.5, 1.0)]
    [' ', '░', '▒', '▓', '█']
    """
    num_levels = len(blocks) - 1
    level = int(np.sqrt(max(weight, 0.0)) * num_levels + 0.5)
    return blocks[min(num_levels, level)]


def render_record(
    record: Record, *, width: int = 80, words: bool = True, colour: bool = False, ascii_only: bool = False
) -> str:
    """Render the best head of a record: queries in rows, keys in columns.

    >>> from regard.view.record.attention import AttentionRecord
    >>> from regard.view.record.texts import RecordText
    >>> texts = {"source": RecordText("a b", ("a", "b"), (0, 1)), "target": RecordText("b a", ("b", "a"), (0, 1))}
    >>> weights = np.array([[[[0.0, 1.0], [1.0, 0.0]]]])
    >>> attention = AttentionRecord("decoder.cross", "target", "source", weights, (0,))
    >>> print(render_record(Record("", texts, (attention,))))
      ┌─a
      │ ┌─b
    b   █
    a █
    """
    selection = select_attention(record, words=words)
    rows = [unit.label for unit in selection.rows]
    columns = [unit.label for unit in selection.columns]
    return "\n".join(table_lines(rows, columns, selection.table, width=width, colour=colour, ascii_only=ascii_only))


def table_lines(
    rows: Sequence[str],
    columns: Sequence[str],
    table: Weights,
    *,
    width: int,
    colour: bool = False,
    ascii_only: bool = False,
    names: bool = True,
) -> list[str]:
    """Render a table of weights; columns that do not fit follow below. `names=False` leaves out the column labels."""
    margin = min(MAX_LABEL_WIDTH, max((cell_len(escape_invisible(label)) for label in rows), default=0))
    label_overhang = MAX_LABEL_WIDTH if names else 0  # of the last column
    columns_per_band = max(4, (width - margin - 1 - label_overhang) // CELL)
    lines: list[str] = []
    for start in range(0, len(columns), columns_per_band):
        band = slice(start, start + columns_per_band)
        labels = columns[band] if names else []
        lines += ["", *_render_band(rows, labels, table[:, band], margin, colour, ascii_only)]
    return lines[1:]


def _render_band(
    rows: Sequence[str], columns: Sequence[str], weights: Weights, margin: int, colour: bool, ascii_only: bool
) -> list[str]:
    """Render one band of columns: a staircase of labels, then the shaded rows."""
    leader, corner = ("| ", "+-") if ascii_only else ("│ ", "┌─")
    lines = [
        _isolate_direction(" " * (margin + 1) + leader * index + corner, _truncate_label(label))
        for index, label in enumerate(columns)
    ]
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    for label, row in zip(rows, weights, strict=True):
        cells = "".join(shade(weight, blocks).ljust(CELL) for weight in row).rstrip()
        if colour:
            cells = f"\x1b[36m{cells}\x1b[0m"
        padded = _pad(_truncate_label(label), margin)
        lines.append(_isolate_direction("", padded) + (" " + cells if cells else ""))
    return [line.rstrip() for line in lines]


def _truncate_label(label: str) -> str:
    label = escape_invisible(label)
    return label if cell_len(label) <= MAX_LABEL_WIDTH else set_cell_size(label, MAX_LABEL_WIDTH - 1).rstrip() + "…"


def _pad(label: str, width: int) -> str:
    return label + " " * (width - cell_len(label))


def _isolate_direction(before: str, label: str) -> str:
    """Join both; direction marks keep terminals that reorder right-to-left text from reordering the whole line."""
    is_rtl = any("\u0590" <= letter <= "\u08ff" or "\ufb1d" <= letter <= "\ufefc" for letter in label)
    return f"{_LEFT_TO_RIGHT}{before}{label}{_LEFT_TO_RIGHT}" if is_rtl else before + label


EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 8  # terminal columns of a full bar
HOP_COLUMNS = BAR_WIDTH + 8  # a bar, its percentage and a gap
MIN_WEIGHT = 0.005  # sentences below it in every hop are only counted
EMPTY_MEMORIES = "nothing (empty memories)"
OTHER_TOKENS = "question and special tokens"
HOP = "hop"  # of a memory network; other models have rows of layers, or of their pooling


def bar(fraction: float) -> str:
    """Bar for a fraction of one.

    >>> [bar(fraction) for fraction in (1.0, 0.5, 0.0625, 0.0)]
    ['████████', '████    ', '▌       ', '        ']
    """
    eighths = min(8 * BAR_WIDTH, max(0, round(fraction * 8 * BAR_WIDTH)))
    whole, remainder = divmod(eighths, 8)
    return (EIGHTHS[8] * whole + (EIGHTHS[remainder] if remainder else "")).ljust(BAR_WIDTH)


def hop_table(
    sentences: Sequence[str], hops: Weights, *, width: int = 100, num_truncated: int = 0, unit: str = HOP
) -> list[str]:
    """Sentences that any hop attends to, in the order of the story, with the weight of each hop.

    `hops` is [hops, sentences], or by another `unit`, such as layer; what is missing to one went to empty memories, or
    to tokens outside the sentences. The first `num_truncated` sentences are beyond the model's memory.

    >>> import numpy as np
    >>> for line in hop_table(["Mary went home.", "John slept."], np.array([[0.75, 0.0], [0.25, 0.75]])):
    ...     print(line)
                              hop 1           hop 2
    1 Mary went home.           ██████    75 %  ██        25 %
    2 John slept.                               ██████    75 %
    - nothing (empty memories)  ██        25 %
    """
    rows = [
        (str(index + 1), escape_invisible(sentence), weights)
        for index, (sentence, weights) in enumerate(zip(sentences, hops.T.tolist(), strict=True))
    ]
    visible = [row for row in rows if max(row[2]) >= MIN_WEIGHT]
    num_hidden = len(rows) - len(visible)
    empty = [max(0.0, 1 - float(weights.sum())) for weights in hops]
    if max(empty) >= MIN_WEIGHT:
        visible.append(("-", EMPTY_MEMORIES if unit == HOP else OTHER_TOKENS, empty))
    index_width = max((len(index) for index, _, _ in visible), default=1)
    max_text_width = max(20, width - index_width - 3 - HOP_COLUMNS * len(hops))
    text_width = min(max_text_width, max((cell_len(text) for _, text, _ in visible), default=0))
    header = "".join(f"{unit} {hop + 1}".ljust(HOP_COLUMNS) for hop in range(len(hops)))
    lines = [" " * (index_width + text_width + 3) + header]
    for index, text, weights in visible:
        cells = "".join(map(_render_hop, weights))
        lines.append(f"{index:>{index_width}} {_fit_text(text, text_width)}  {cells}")
    if num_hidden:
        verb = "sentences have" if num_hidden > 1 else "sentence has"
        lines.append(f"{num_hidden} other {verb} a weight below {100 * MIN_WEIGHT:g} %")
    if num_truncated:
        lines.append(f"sentences beyond the model's memory: the first {num_truncated} of {len(rows)}")
    return [line.rstrip() for line in lines]


def _render_hop(weight: float) -> str:
    return f"{bar(weight)} {100 * weight:3.0f} %  " if weight >= MIN_WEIGHT else " " * HOP_COLUMNS


def _fit_text(text: str, width: int) -> str:
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
