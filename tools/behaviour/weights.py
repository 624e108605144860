"""Weights of models that only this project has: drawn by index and shape, never by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Parameter(NamedTuple):
    """What is known of a parameter besides its index: its shape, and whether it is a scale (ones at first)."""

    shape: tuple[int, ...]
    is_scale: bool = False


class EmphasizedRow(NamedTuple):
    """A row of tables with so many rows that is drawn larger: the token that ends a text becomes likely."""

    rows: int
    row: int
    factor: float


def draw_weights(
    parameters: Sequence[Parameter], seed: int, emphasized: EmphasizedRow | None = None, spread: float = 1.6
) -> list[NDArray[np.float32]]:
    """One array for each parameter, in definition order.

    >>> [array.shape for array in draw_weights([Parameter((2, 3)), Parameter((3,))], seed=1)]
    [(2, 3), (3,)]
    """
    arrays = []
    for index, (shape, is_scale) in enumerate(parameters):
        noise = np.random.default_rng([seed, index]).standard_normal(shape, dtype=np.float32)
        if is_scale:
            array = 1 + np.float32(0.3) * noise
        elif len(shape) < 2:
            array = np.float32(0.3) * noise
        else:
            array = noise * np.float32(spread / np.sqrt(shape[-1]))
            if emphasized is not None and shape[0] == emphasized.rows:
                array[emphasized.row] *= np.float32(emphasized.factor)
        arrays.append(array)
    return arrays
