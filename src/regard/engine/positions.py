"""Positional encodings of a model in the engine, for display: embeddings, or the rotation of a head."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from regard.backends import Floats, PositionCodes
from regard.config.description import LayerDescription, StackDescription


def position_codes(kind: str, table: Floats, positions: range) -> PositionCodes | None:
    """Codes that are added to the embeddings, [positions, width]: learned ones of a table, or sinusoidal ones.

    >>> position_codes("sinusoidal", np.zeros((0, 4), np.float32), range(1))
    ('sinusoidal', array([[0., 0., 1., 1.]], dtype=float32))
    """
    if kind == "learned":
        return kind, table[positions.start : positions.stop].copy()
    return (kind, sinusoids(positions, table.shape[1])) if kind == "sinusoidal" else None


def sinusoids(positions: range, width: int) -> Floats:
    """Sines, then cosines of positions at geometric wavelengths; an odd width has one more sine."""
    num_sines = (width + 1) // 2
    frequencies = np.exp(np.arange(num_sines) * (-2 * math.log(10_000.0) / width))
    angles = np.array(positions)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)[:, : width // 2]], axis=1).astype(np.float32)


def rotary_codes(stack: StackDescription, positions: range) -> PositionCodes | None:
    """Cosines and sines that rotate a head in the layers without a window; None without rotary positions."""
    rotary = [layer for layer in stack.layers if layer.positions == "rotary"]
    if not rotary:
        return None
    layer = min(rotary, key=lambda layer: layer.window > 0)
    head_size = stack.block.key_dim
    angles = _rotary_angles(layer, head_size, positions)
    codes = np.zeros((len(positions), head_size), np.float32)
    # rotating (1, 0) in each plane gives (cos, sin)
    half = angles.shape[1]
    num_ones = head_size // 2
    codes[:, :num_ones] = 1
    rotary_dim = 2 * half
    first = slice(0, rotary_dim, 2) if layer.interleaved else slice(0, half)
    second = slice(1, rotary_dim, 2) if layer.interleaved else slice(half, rotary_dim)
    first_values = codes[:, first].copy()
    second_values = codes[:, second].copy()
    codes[:, first] = first_values * np.cos(angles) - second_values * np.sin(angles)
    codes[:, second] = second_values * np.cos(angles) + first_values * np.sin(angles)
    return "rotary", codes


def _rotary_angles(layer: LayerDescription, head_size: int, positions: range) -> NDArray[np.float64]:
    """Angle of each pair at each position, [positions, rotary_dim / 2]."""
    half = (layer.rotary_dim or head_size) // 2
    theta = layer.theta
    factor = layer.factor
    if layer.scaling == "ntk":
        theta *= factor ** (half / (half - 1)) if half > 1 else 1.0
        factor = 1.0
    frequencies = theta ** (-np.arange(half) / half) / factor
    return np.array(positions)[:, None] * frequencies
