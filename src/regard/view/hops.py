"""Where each hop of a memory network looked, in the terminal: a row for each sentence, a bar for each hop."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from regard.view.record import Weights, visible

EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR = 8  # terminal columns of a full bar
CELL = BAR + 8  # a bar, its number and the gap after it
LEAST = 0.005  # a sentence that no hop looked at more is only counted
NOTHING = "nothing (empty memories)"


def bar(share: float) -> str:
    """Return a bar for a share of one.

    >>> [bar(share) for share in (1.0, 0.5, 0.0625, 0.0)]
    ['████████', '████    ', '▌       ', '        ']
    """
    eighths = min(8 * BAR, max(0, round(share * 8 * BAR)))
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
    names = [visible(sentence) for sentence in sentences]
    rows = [(str(number + 1), names[number], shares[number]) for number in range(len(names))]
    shown = [row for row in rows if max(row[2]) >= LEAST]
    if max(shares[-1]) >= LEAST:
        shown.append(("-", NOTHING, shares[-1]))
    wide_number = max((len(number) for number, _, _ in shown), default=1)
    room = max(20, width - wide_number - 3 - CELL * len(hops))
    wide = min(room, max((cell_len(text) for _, text, _ in shown), default=0))
    lines = [" " * (wide_number + wide + 3) + "".join(f"hop {hop + 1}".ljust(CELL) for hop in range(len(hops)))]
    for number, text, given in shown:
        cells = "".join(f"{bar(share)} {100 * share:3.0f} %  " if share >= LEAST else " " * CELL for share in given)
        lines.append(f"{number:>{wide_number}} {_fitted(text, wide)}  {cells}")
    rest = len(rows) - sum(number != "-" for number, _, _ in shown)
    if rest:
        lines.append(f"{rest} other sentence{'s were' if rest > 1 else ' was'} hardly looked at")
    if forgotten:
        lines.append(f"sentences beyond the model's memory: the first {forgotten} of {len(names)}")
    return [line.rstrip() for line in lines]


def _fitted(text: str, wide: int) -> str:
    return set_cell_size(text, wide) if cell_len(text) <= wide else set_cell_size(text, wide - 1) + "…"
