"""The tree of a beam search: which hypotheses were kept at each step, and what each of them continues."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass
class BeamTree:
    """What a search over one text kept, step by step; what ended or was given up has no successor.

    >>> tree = BeamTree()
    >>> tree.grow(np.array([0, 0]), np.array([7, 1]), np.array([-0.1, -2.0]), np.array([True, False]))
    >>> tree.grow(np.array([0]), np.array([8]), np.array([-0.3]), np.array([True]))
    >>> tree.steps
    [[(-1, 7, -0.1), (-1, 1, -2.0)], [(0, 8, -0.3)]]
    """

    steps: list[list[tuple[int, int, float]]] = field(default_factory=list)  # (place in the step before, token, total)
    _places: list[int] = field(default_factory=list)  # of the hypotheses alive, in the last step

    def grow(
        self,
        parents: NDArray[np.int64],  # which of the hypotheses alive each continues
        tokens: NDArray[np.integer],
        totals: NDArray[np.float64],
        on: NDArray[np.bool_],  # which of them stay alive, in their order
    ) -> None:
        """Add a step."""
        before = [self._places[row] if self.steps else -1 for row in parents.tolist()]
        self.steps.append(list(zip(before, tokens.tolist(), totals.tolist(), strict=True)))
        self._places = np.flatnonzero(on).tolist()

    def has(self, ids: list[int]) -> bool:
        """Whether a text is a path of this tree.

        >>> tree = BeamTree([[(-1, 7, -0.1)], [(0, 8, -0.3)]])
        >>> tree.has([7, 8]), tree.has([8])
        (True, False)
        """
        places = {-1}
        for token, step in zip(ids, self.steps, strict=False):
            places = {at for at, (parent, found, _) in enumerate(step) if parent in places and found == token}
        return bool(places) and len(ids) <= len(self.steps)
