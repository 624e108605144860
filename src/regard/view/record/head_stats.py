"""What each head of an attention does, in numbers, in two words and as a small picture; of long texts by some rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.view.codec import Weights, encode_root8
from regard.view.record.attention import AttentionRecord

THUMB = 32  # rows and columns of a small picture, at most
SAMPLE = 128  # rows that pictures and numbers of a long text are made of


def summarize_heads(attention: AttentionRecord, special: Sequence[bool]) -> dict[str, Any]:
    """Return every head's small picture and its numbers; each matrix is computed once, of a long text some rows."""
    rows = np.arange(attention.shape[2]) if attention.has_weights else evenly_spaced(attention.shape[2], SAMPLE)
    columns = np.asarray(special, dtype=bool)
    stats: dict[str, list[list[Any]]] = {"entropy": [], "distance": [], "special": [], "label": []}
    small = []
    for layer in attention.layers:
        every = [attention.query_rows(layer, head, rows) for head in range(attention.heads)]
        small.append([max_pool(weights) for weights in every])
        told = [_numbers(attention, weights, rows, columns) for weights in every]
        for name, values in stats.items():
            values.append([one[name] for one in told])
    pictures = np.asarray(small, dtype=np.float32)
    return {"thumbs": {"size": list(pictures.shape[2:]), "data": encode_root8(pictures)}, "stats": stats}


def head_stats(seen: AttentionRecord, special: Sequence[bool]) -> dict[str, list[list[Any]]]:
    """Return of each layer and head: entropy (bits), distance from the diagonal, mass on specials, a plain label."""
    made: dict[str, list[list[Any]]] = summarize_heads(seen, special)["stats"]
    return made


def _numbers(
    seen: AttentionRecord, weights: Weights, rows: NDArray[np.int64], columns: NDArray[np.bool_]
) -> dict[str, float | str]:
    on_special = float(weights[:, columns].sum(axis=-1).mean()) if len(rows) else 0.0
    return {
        "entropy": round(_entropy(weights), 3),
        "distance": round(_distance(weights, rows, seen.shape[2]), 2),
        "special": round(on_special, 3),
        "label": _label(seen.own or seen.causal, weights, rows, on_special),
    }


def evenly_spaced(count: int, max_count: int) -> NDArray[np.int64]:
    """Return at most `most` numbers, evenly over a range.

    >>> evenly_spaced(3, 8).tolist(), evenly_spaced(9, 3).tolist()
    ([0, 1, 2], [0, 4, 8])
    """
    return np.arange(count) if count <= max_count else np.linspace(0, count - 1, max_count).round().astype(np.int64)


def max_pool(weights: Weights, max_size: int = THUMB) -> Weights:
    """Return a matrix of at most `most` rows and columns: the largest weight of each field.

    >>> max_pool(np.eye(4, dtype=np.float32), 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    for axis in (0, 1):
        count = weights.shape[axis]
        if count > max_size:
            weights = np.maximum.reduceat(weights, np.arange(max_size) * count // max_size, axis=axis)
    return weights


def _entropy(weights: Weights) -> float:
    return float(-(weights * np.log2(np.maximum(weights, 1e-12))).sum(axis=-1).mean()) if len(weights) else 0.0


def _distance(weights: Weights, rows: NDArray[np.int64], height: int) -> float:
    """Return how far from the diagonal a head looks on average, in columns."""
    if not len(rows):
        return 0.0
    columns = weights.shape[1]
    middle = rows * ((columns - 1) / (height - 1) if height > 1 else 0.0)
    away = np.abs(np.arange(columns)[None] - middle[:, None])
    return float((weights * away).sum(axis=-1).mean())


def _label(own: bool, weights: Weights, rows: NDArray[np.int64], on_special: float) -> str:
    """Return what a head mostly does, in two words; more than half of its attention must agree."""
    columns = weights.shape[1]
    if not len(rows):
        return "mixed"
    if on_special > 0.5:
        return "special marks"
    if own:
        for offset, label in ((-1, "previous"), (0, "itself"), (1, "next")):
            looking = (rows + offset >= 0) & (rows + offset < columns)  # the first or the last has no such neighbour
            if looking.any() and weights[looking, rows[looking] + offset].mean() > 0.5:
                return label
    if weights.max(axis=-1).mean() > 0.5:
        return "sharp"
    spread = _entropy(weights) * np.log(2)
    return "broad" if columns > 2 and spread > 0.75 * np.log(columns) else "mixed"
