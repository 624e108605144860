"""A record in the terminal: shaded blocks, one row for each produced word, columns named by leader lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size

from regard.view.chosen import choose
from regard.view.record import Record, Weights, visible

BLOCKS = " ░▒▓█"
ASCII_BLOCKS = " .:*#"
CELL = 2  # terminal columns of one weight
LABEL = 22  # longest row label, in terminal columns
_LEFT_TO_RIGHT = "\u200e"


def shade(weight: float, blocks: str = BLOCKS) -> str:
    """Return the block for a weight; shaded by its root, so that small weights show and zero is blank.

    >>> [shade(weight) for weight in (0.0, 0.05, 0.2, 0.5, 1.0)]
    [' ', '░', '▒', '▓', '█']
    """
    return blocks[min(len(blocks) - 1, int(np.sqrt(max(weight, 0.0)) * (len(blocks) - 1) + 0.5))]


def draw(record: Record, *, width: int = 80, words: bool = True, colour: bool = False, ascii_only: bool = False) -> str:
    """Return the record's best head as text: rows are what was produced, columns what was looked at.

    >>> from regard.view.record import Attention, Side
    >>> sides = {"source": Side("a b", ("a", "b"), (0, 1)), "target": Side("b a", ("b", "a"), (0, 1))}
    >>> seen = Attention("decoder.cross", "target", "source", np.array([[[[0.0, 1.0], [1.0, 0.0]]]]), (0,))
    >>> print(draw(Record("", sides, (seen,))))
      ┌─a
      │ ┌─b
    b   █
    a █
    """
    chosen = choose(record, words=words)
    names = [unit.label for unit in chosen.rows], [unit.label for unit in chosen.columns]
    return "\n".join(table_lines(*names, chosen.table, width=width, colour=colour, ascii_only=ascii_only))


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
    """Return a table of weights as lines; columns that do not fit beside each other follow below.

    `names=False` leaves out the names of the columns, where these are as the rows'.
    """
    margin = min(LABEL, max((cell_len(visible(label)) for label in rows), default=0))
    beyond = LABEL if names else 0  # the last column's label needs its place as well
    room = max(4, (width - margin - 1 - beyond) // CELL)
    bands: list[str] = []
    for first in range(0, len(columns), room):
        part = slice(first, first + room)
        shown = columns[part] if names else []
        bands += ["", *_band(rows, shown, table[:, part], margin, colour, ascii_only)]
    return bands[1:]


def _band(
    rows: Sequence[str], columns: Sequence[str], weights: Weights, margin: int, colour: bool, ascii_only: bool
) -> list[str]:
    """Return one block of columns: a staircase of labels, then the shaded rows."""
    line, corner = ("| ", "+-") if ascii_only else ("│ ", "┌─")
    lines = [
        _directed(" " * (margin + 1) + line * number + corner, _shortened(label))
        for number, label in enumerate(columns)
    ]
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    for label, row in zip(rows, weights, strict=True):
        cells = "".join(shade(weight, blocks).ljust(CELL) for weight in row).rstrip()
        if colour:
            cells = f"\x1b[36m{cells}\x1b[0m"
        lines.append(_directed("", _padded(_shortened(label), margin)) + (" " + cells if cells else ""))
    return [text.rstrip() for text in lines]


def _shortened(label: str) -> str:
    label = visible(label)
    return label if cell_len(label) <= LABEL else set_cell_size(label, LABEL - 1).rstrip() + "…"


def _padded(label: str, width: int) -> str:
    return label + " " * (width - cell_len(label))


def _directed(before: str, label: str) -> str:
    """Return the line's start; a mark keeps terminals that reorder right-to-left text from turning the line around."""
    turned = any("\u0590" <= sign <= "\u08ff" or "\ufb1d" <= sign <= "\ufefc" for sign in label)
    return f"{_LEFT_TO_RIGHT}{before}{label}{_LEFT_TO_RIGHT}" if turned else before + label
