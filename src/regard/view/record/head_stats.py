"""Statistics, a label and a thumbnail of every head; long texts are summarized by a sample of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.view.codec import Floats, Weights, encode_root8
from regard.view.record.attention import AttentionRecord

THUMBNAIL_SIZE = 32  # rows and columns, at most
SAMPLED_ROWS = 128  # of a long text
MIN_WEIGHT = 1e-12  # before the logarithm
BROAD_ENTROPY = 0.75  # of the entropy of uniform weights, above which a head is broad


def summarize_heads(attention: AttentionRecord, special: Sequence[bool]) -> dict[str, Any]:
    """Thumbnails and statistics of every head; each matrix is computed once."""
    rows = np.arange(attention.shape[2]) if attention.has_weights else evenly_spaced(attention.shape[2], SAMPLED_ROWS)
    is_special = np.asarray(special, dtype=bool)
    stats: dict[str, list[list[Any]]] = {"entropy": [], "distance": [], "special": [], "label": []}
    pooled_layers = []
    for layer in attention.layers:
        heads = [attention.query_rows(layer, head, rows) for head in range(attention.num_heads)]
        pooled_layers.append([max_pool(weights) for weights in heads])
        num_visible = attention.visible_keys(layer)[rows]
        head_statistics = [_describe_head(attention, weights, rows, num_visible, is_special) for weights in heads]
        for name, values in stats.items():
            values.append([statistics[name] for statistics in head_statistics])
    thumbnails = np.asarray(pooled_layers, dtype=np.float32)
    return {"thumbs": {"size": list(thumbnails.shape[2:]), "data": encode_root8(thumbnails)}, "stats": stats}


def head_stats(attention: AttentionRecord, special: Sequence[bool]) -> dict[str, list[list[Any]]]:
    """Entropy (bits), distance from the diagonal, weight on special tokens and a label, by layer and head."""
    stats: dict[str, list[list[Any]]] = summarize_heads(attention, special)["stats"]
    return stats


def _describe_head(
    attention: AttentionRecord,
    weights: Weights,
    rows: NDArray[np.int64],
    num_visible: NDArray[np.int64],
    is_special: NDArray[np.bool_],
) -> dict[str, float | str]:
    special_weight = float(weights[:, is_special].sum(axis=-1).mean()) if len(rows) else 0.0
    entropy = entropy_bits(weights)
    is_broad = bool(len(rows)) and float(relative_entropy(entropy, num_visible).mean()) > BROAD_ENTROPY
    label = _label(attention.is_self or attention.is_causal, weights, rows, special_weight)
    return {
        "entropy": round(float(entropy.mean()) if len(rows) else 0.0, 3),
        "distance": round(_distance(weights, rows, attention.shape[2]), 2),
        "special": round(special_weight, 3),
        "label": label or ("broad" if is_broad else "mixed"),
    }


def entropy_bits(weights: Weights) -> Floats:
    """Entropy of each row of weights [..., Q, K] in bits, [..., Q].

    >>> entropy_bits(np.array([[0.5, 0.5, 0.0]], np.float32)).tolist()
    [1.0]
    """
    return np.asarray(-(weights * np.log2(np.maximum(weights, MIN_WEIGHT))).sum(axis=-1))


def relative_entropy(entropy: Floats, num_visible: NDArray[np.int64]) -> Floats:
    """Entropy in bits as a fraction of that of uniform weights over the visible keys.

    >>> relative_entropy(np.array([1.0]), np.array([4])).tolist()
    [0.5]
    """
    return np.asarray(entropy / np.log2(np.maximum(num_visible, 2)))


def evenly_spaced(count: int, max_count: int) -> NDArray[np.int64]:
    """At most `max_count` indices, evenly spaced over a range.

    >>> evenly_spaced(3, 8).tolist(), evenly_spaced(9, 3).tolist()
    ([0, 1, 2], [0, 4, 8])
    """
    return np.arange(count) if count <= max_count else np.linspace(0, count - 1, max_count).round().astype(np.int64)


def max_pool(weights: Weights, max_size: int = THUMBNAIL_SIZE) -> Weights:
    """Max-pool a matrix to at most `max_size` rows and columns.

    >>> max_pool(np.eye(4, dtype=np.float32), 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    for axis in (0, 1):
        count = weights.shape[axis]
        if count > max_size:
            weights = np.maximum.reduceat(weights, np.arange(max_size) * count // max_size, axis=axis)
    return weights


def _distance(weights: Weights, rows: NDArray[np.int64], height: int) -> float:
    """Mean distance of attention from the diagonal, in columns."""
    if not len(rows):
        return 0.0
    columns = weights.shape[1]
    slope = (columns - 1) / (height - 1) if height > 1 else 0.0
    diagonal = rows * slope
    distances = np.abs(np.arange(columns)[None] - diagonal[:, None])
    return float((weights * distances).sum(axis=-1).mean())


def _label(is_self: bool, weights: Weights, rows: NDArray[np.int64], special_weight: float) -> str:
    """Name the pattern that holds more than half of a head's attention; empty where there is none."""
    columns = weights.shape[1]
    if not len(rows):
        return ""
    if special_weight > 0.5:
        return "special tokens"
    if is_self:
        for offset, label in ((-1, "previous token"), (0, "same token"), (1, "next token")):
            has_neighbour = (rows + offset >= 0) & (rows + offset < columns)
            queries = rows[has_neighbour]
            if len(queries) and weights[has_neighbour, queries + offset].mean() > 0.5:
                return label
    return "peaked" if weights.max(axis=-1).mean() > 0.5 else ""
