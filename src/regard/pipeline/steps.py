"""The steps of a text that was produced: how likely each token was, and what else was thought of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from regard.decoding.choice import best_columns
from regard.decoding.tree import BeamTree
from regard.view.record import Ranking, Step

Pieces = Callable[[Sequence[int]], list[str]]


def steps_of(
    logp: NDArray[np.floating],  # [T, V], the logarithms of all probabilities
    ids: Sequence[int],
    pieces: Pieces,
    top: int,
    tree: BeamTree | None = None,
) -> tuple[Step, ...]:
    """Return a step for each token; probabilities are the model's own, before rules, temperature and luck.

    >>> made = steps_of(np.log(np.array([[0.25, 0.75]])), [1], lambda ids: [f"t{number}" for number in ids], top=1)
    >>> made[0].token, round(made[0].probability, 2), round(made[0].entropy, 3), made[0].top
    ('t1', 0.75, 0.811, (('t1', 0.75),))
    """
    chances = np.exp(logp)
    entropy = -(chances * np.where(chances > 0, logp, 0.0)).sum(axis=1) / np.log(2)
    best = best_columns(logp, min(top, logp.shape[1])) if top else np.zeros((len(ids), 0), np.int64)
    made = []
    for number, (token, name) in enumerate(zip(ids, pieces(ids), strict=True)):
        names = pieces(best[number].tolist())
        ranking = Ranking(zip(names, chances[number, best[number]].tolist(), strict=True))
        beams = tuple(_named(tree, number, pieces)) if tree is not None else ()
        made.append(Step(name, float(chances[number, token]), float(entropy[number]), ranking, beams))
    return tuple(made)


def _named(tree: BeamTree, number: int, pieces: Pieces) -> list[tuple[int, str, float]]:
    if number >= len(tree.steps):
        return []
    found = tree.steps[number]
    names = pieces([token for _, token, _ in found])
    return [(parent, name, score) for (parent, _, score), name in zip(found, names, strict=True)]
