"""Which continuations a step keeps: the best of each lane, or the best of each bank in turn.

The tree of a beam search: which hypotheses were kept at each step, and what each of them continues.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.decoding.generator import Rows
from regard.tokens import Ids

Values = NDArray[np.floating]
Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True)
class Continuations:
    """The continuations that are kept, lane by lane, best first."""

    rows: Rows  # which row is continued
    column: Rows  # with which of its candidates
    ends: NDArray[np.bool_]  # whether that is the end


def select_continuations(
    lane: Rows,  # [R], ascending
    ids: Ids,  # [R, k]
    scores: Values,  # [R, k], −∞: not allowed
    width: Rows,  # [R], W of each row's lane
    eos_id: int,
    banks: NDArray[np.int64] | None = None,  # [R, k]
) -> Continuations:
    """Return each lane's continuations: the ends among its W best, and the W best that go on.

    >>> ids = np.array([[1, 5], [6, 7]])
    >>> values = np.array([[-1.0, -3.0], [-2.0, -9.0]])
    >>> made = select_continuations(np.array([0, 0]), ids, values, np.array([2, 2]), eos_id=1)
    >>> list(zip(made.rows.tolist(), made.column.tolist(), made.ends.tolist()))
    [(0, 0, True), (1, 0, False), (0, 1, False)]
    """
    _, first, sizes = np.unique(lane, return_index=True, return_counts=True)
    columns = scores.shape[1]
    at = np.repeat(np.arange(len(first)), sizes)
    slot = np.arange(len(lane)) - first[at]
    flat = _spread(scores, at, slot, -np.inf)
    widths = width[first][:, None]
    in_turn = _in_turn(flat, _spread(banks, at, slot, 0)) if banks is not None else None
    order = top_k_columns(flat, 2 * int(widths.max())) if in_turn is None else in_turn
    real = np.take_along_axis(flat, order, axis=1) > -np.inf
    row, column = np.minimum(first[:, None] + order // columns, len(lane) - 1), order % columns
    ends = real & (ids[row, column] == eos_id)
    on = real & ~ends
    kept = (ends & (np.arange(order.shape[1]) < widths)) | (on & (np.cumsum(on, axis=1) <= widths))
    return Continuations(row[kept], column[kept], ends[kept])


def top_k_columns(values: Values, k: int) -> NDArray[np.int64]:
    """Return the columns of the `count` largest values of each row, largest first, the left one first where equal.

    >>> top_k_columns(np.array([[1.0, 3.0, 2.0, 3.0]]), 3).tolist()
    [[1, 3, 2]]
    """
    if values.shape[1] > 4 * k + 64:  # sort the few best only
        found = np.sort(np.argpartition(-values, k - 1, axis=1)[:, :k], axis=1)
        ranked = np.argsort(-np.take_along_axis(values, found, axis=1), axis=1, kind="stable")
        return np.take_along_axis(found, ranked, axis=1)
    return np.argsort(-values, axis=1, kind="stable")[:, :k]


def _spread(rows: NDArray[Kind], at: Rows, slot: Rows, fill: float) -> NDArray[Kind]:
    """Return the rows [R, k] side by side by lane, [lanes, slots · k]."""
    lanes, slots = int(at[-1]) + 1, int(slot.max()) + 1
    made = np.full((lanes, slots, rows.shape[1]), fill, dtype=rows.dtype)
    made[at, slot] = rows
    return made.reshape(lanes, -1)


def _in_turn(values: Values, banks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the columns of each row in the order of choice: the best of each bank, then the second best of each, …

    The fullest bank comes first. Places that a bank cannot fill go to the others (Post and Vilar 2018, section 3.2).
    """
    made = np.empty(values.shape, np.int64)
    for row, (value, bank) in enumerate(zip(values, banks, strict=True)):
        best_first = np.lexsort((-value, bank))
        value, bank = value[best_first], bank[best_first]
        starts = np.flatnonzero(np.diff(bank, prepend=-1))
        rank = np.arange(len(bank)) - np.repeat(starts, np.diff(np.append(starts, len(bank))))
        made[row] = best_first[np.lexsort((-bank, np.where(value > -np.inf, rank, len(bank))))]
    return made


@dataclass
class BeamTree:
    """What a search over one text kept, step by step; what ended or was given up has no successor.

    >>> tree = BeamTree()
    >>> tree.add_step(np.array([0, 0]), np.array([7, 1]), np.array([-0.1, -2.0]), np.array([True, False]))
    >>> tree.add_step(np.array([0]), np.array([8]), np.array([-0.3]), np.array([True]))
    >>> tree.steps
    [[(-1, 7, -0.1), (-1, 1, -2.0)], [(0, 8, -0.3)]]
    """

    steps: list[list[tuple[int, int, float]]] = field(default_factory=list)  # (place in the step before, token, total)
    _places: list[int] = field(default_factory=list)  # of the hypotheses alive, in the last step

    def add_step(
        self,
        parents: NDArray[np.int64],  # which of the hypotheses alive each continues
        tokens: NDArray[np.integer],
        logprobs: NDArray[np.float64],
        is_alive: NDArray[np.bool_],  # which of them stay alive, in their order
    ) -> None:
        """Add a step."""
        before = [self._places[row] if self.steps else -1 for row in parents.tolist()]
        self.steps.append(list(zip(before, tokens.tolist(), logprobs.tolist(), strict=True)))
        self._places = np.flatnonzero(is_alive).tolist()

    def contains(self, ids: list[int]) -> bool:
        """Whether a text is a path of this tree.

        >>> tree = BeamTree([[(-1, 7, -0.1)], [(0, 8, -0.3)]])
        >>> tree.contains([7, 8]), tree.contains([8])
        (True, False)
        """
        places = {-1}
        for token, step in zip(ids, self.steps, strict=False):
            places = {at for at, (parent, found, _) in enumerate(step) if parent in places and found == token}
        return bool(places) and len(ids) <= len(self.steps)
