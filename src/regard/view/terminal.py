"""A record in the terminal: shaded blocks, one row for each produced word, columns named by leader lines.

Where each hop of a memory network looked, in the terminal: a row for each sentence, a bar for each hop.
"""

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
LABEL = 22  # longest row label, in terminal columns
_LEFT_TO_RIGHT = "\u200e"


def shade(weight: float, blocks: str = BLOCKS) -> str:
    """Return the block for a weight; shaded by its root, so that small weights show and zero is blank.

    >>> [shade(weight) for weight in (0.0, 0.05, 0.2, 0.5, 1.0)]
    [' ', '░', '▒', '▓', '█']
    """
    return blocks[min(len(blocks) - 1, int(np.sqrt(max(weight, 0.0)) * (len(blocks) - 1) + 0.5))]


def render_record(
    record: Record, *, width: int = 80, words: bool = True, colour: bool = False, ascii_only: bool = False
) -> str:
    """Return the record's best head as text: rows are what was produced, columns what was looked at.

    >>> from regard.view.record.attention import AttentionRecord

    >>> from regard.view.record.texts import RecordText
    >>> sides = {"source": RecordText("a b", ("a", "b"), (0, 1)), "target": RecordText("b a", ("b", "a"), (0, 1))}
    >>> seen = AttentionRecord("decoder.cross", "target", "source", np.array([[[[0.0, 1.0], [1.0, 0.0]]]]), (0,))
    >>> print(render_record(Record("", sides, (seen,))))
      ┌─a
      │ ┌─b
    b   █
    a █
    """
    chosen = select_attention(record, words=words)
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
    margin = min(LABEL, max((cell_len(escape_invisible(label)) for label in rows), default=0))
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
    label = escape_invisible(label)
    return label if cell_len(label) <= LABEL else set_cell_size(label, LABEL - 1).rstrip() + "…"


def _padded(label: str, width: int) -> str:
    return label + " " * (width - cell_len(label))


def _directed(before: str, label: str) -> str:
    """Return the line's start; a mark keeps terminals that reorder right-to-left text from turning the line around."""
    turned = any("\u0590" <= sign <= "\u08ff" or "\ufb1d" <= sign <= "\ufefc" for sign in label)
    return f"{_LEFT_TO_RIGHT}{before}{label}{_LEFT_TO_RIGHT}" if turned else before + label


EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR = 8  # terminal columns of a full bar
HOP_COLUMNS = BAR + 8  # a bar, its number and the gap after it
LEAST = 0.005  # a sentence that no hop looked at more is only counted
NOTHING = "nothing (empty memories)"


def bar(fraction: float) -> str:
    """Return a bar for a share of one.

    >>> [bar(share) for share in (1.0, 0.5, 0.0625, 0.0)]
    ['████████', '████    ', '▌       ', '        ']
    """
    eighths = min(8 * BAR, max(0, round(fraction * 8 * BAR)))
    whole, rest = divmod(eighths, 8)
    return (EIGHTHS[8] * whole + (EIGHTHS[rest] if rest else "")).ljust(BAR)


def hop_table(sentences: Sequence[str], hops: Weights, *, width: int = 100, forgotten: int = 0) -> list[str]:
    """Return the sentences that were looked at, in the order told, with the share that each hop gave them.

    `hops` is [hops, sentences]; what is missing to one went to empty memories. The first `forgotten` sentences are
    beyond the model's memory.

    >>> import numpy as np
    >>> for line in hop_table(["Mary went home.", "John slept."], np.array([[0.75, 0.0], [0.25, 0.75]])):
    ...     print(line)
                              hop 1           hop 2
    1 Mary went home.           ██████    75 %  ██        25 %
    2 John slept.                               ██████    75 %
    - nothing (empty memories)  ██        25 %
    """
    shares = [*hops.T.tolist(), [max(0.0, 1 - float(row.sum())) for row in hops]]
    names = [escape_invisible(sentence) for sentence in sentences]
    rows = [(str(number + 1), names[number], shares[number]) for number in range(len(names))]
    shown = [row for row in rows if max(row[2]) >= LEAST]
    if max(shares[-1]) >= LEAST:
        shown.append(("-", NOTHING, shares[-1]))
    wide_number = max((len(number) for number, _, _ in shown), default=1)
    room = max(20, width - wide_number - 3 - HOP_COLUMNS * len(hops))
    wide = min(room, max((cell_len(text) for _, text, _ in shown), default=0))
    lines = [" " * (wide_number + wide + 3) + "".join(f"hop {hop + 1}".ljust(HOP_COLUMNS) for hop in range(len(hops)))]
    for number, text, given in shown:
        cells = "".join(
            f"{bar(share)} {100 * share:3.0f} %  " if share >= LEAST else " " * HOP_COLUMNS for share in given
        )
        lines.append(f"{number:>{wide_number}} {_fitted(text, wide)}  {cells}")
    rest = len(rows) - sum(number != "-" for number, _, _ in shown)
    if rest:
        lines.append(f"{rest} other sentence{'s were' if rest > 1 else ' was'} hardly looked at")
    if forgotten:
        lines.append(f"sentences beyond the model's memory: the first {forgotten} of {len(names)}")
    return [line.rstrip() for line in lines]


def _fitted(text: str, wide: int) -> str:
    return set_cell_size(text, wide) if cell_len(text) <= wide else set_cell_size(text, wide - 1) + "…"
