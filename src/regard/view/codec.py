"""Encodings of arrays in a record's JSON form: bytes, compressed by zlib, in base64.

`root8`   255·√w, one byte per weight between 0 and 1.
`f16`     half precision, little-endian, for signed values.
`sparse`  the largest weights of each row until they sum to nearly all of it: counts (uint16, one per row), columns
          (uint16) and roots (uint8), concatenated; the rows of all heads follow one another.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError
from regard.view.record.json_form import ArrayDict

Weights = NDArray[np.float32]
Floats = NDArray[np.floating[Any]]
SPARSE_FRACTION = 0.95  # of a row that its sparse form keeps
MAX_SPARSE_WEIGHTS = 24  # per row


def encode_root8(weights: Floats) -> str:
    """Encode weights as `root8`.

    >>> decode_root8(encode_root8(np.array([[0.0, 0.25, 1.0]])), [1, 3]).round(2).tolist()
    [[0.0, 0.25, 1.0]]
    """
    return _compress(to_root8(weights).tobytes())


def decode_root8(data: str, shape: Sequence[int]) -> Weights:
    """Decode `encode_root8`."""
    return _square(np.frombuffer(_decompress(data), dtype=np.uint8)).reshape(tuple(shape))


def to_root8(weights: Floats) -> NDArray[np.uint8]:
    """Bytes of 255·√w, before compression.

    >>> to_root8(np.array([0.0, 0.25, 1.0])).tolist()
    [0, 128, 255]
    """
    clipped = np.clip(weights.astype(np.float32, copy=False), 0, 1)
    return np.asarray(np.rint(255 * np.sqrt(clipped)), dtype=np.uint8)


def encode_f16(values: Floats) -> str:
    """Encode values as `f16`.

    >>> decode_f16(encode_f16(np.array([[-1.5, 2.0]])), [1, 2]).tolist()
    [[-1.5, 2.0]]
    """
    return _compress(np.asarray(values).astype("<f2").tobytes())


def decode_f16(data: str, shape: Sequence[int]) -> Weights:
    """Decode `encode_f16`."""
    return np.frombuffer(_decompress(data), dtype="<f2").astype(np.float32).reshape(tuple(shape))


def encode_sparse(weights: Floats) -> str:
    """Encode the largest weights of each row of [H, Q, K] as `sparse`.

    >>> decode_sparse(encode_sparse(np.array([[[0.01, 0.74, 0.25]]])), [1, 1, 3]).astype(float).round(2).tolist()
    [[[0.0, 0.74, 0.25]]]
    """
    rows = np.ascontiguousarray(weights, dtype=np.float32).reshape(-1, weights.shape[-1])
    max_weights = min(MAX_SPARSE_WEIGHTS, rows.shape[-1])
    columns = np.argsort(-rows, axis=-1, kind="stable")[:, :max_weights]
    values = np.take_along_axis(rows, columns, axis=-1)
    sum_of_larger = np.cumsum(values, axis=-1) - values
    is_stored = (sum_of_larger < SPARSE_FRACTION * rows.sum(axis=-1, keepdims=True)) & (values > 0)
    counts = is_stored.sum(axis=-1).astype("<u2")
    stored_columns = columns[is_stored].astype("<u2")
    roots = to_root8(values[is_stored])
    return _compress(counts.tobytes() + stored_columns.tobytes() + roots.tobytes())


def decode_sparse(data: str, shape: Sequence[int]) -> Weights:
    """Decode `encode_sparse`; weights that are not stored are zero."""
    heads, rows, columns = shape
    raw = _decompress(data)
    counts = np.frombuffer(raw, dtype="<u2", count=heads * rows)
    total = int(counts.sum())
    column_indices = np.frombuffer(raw, dtype="<u2", count=total, offset=counts.nbytes)
    roots = np.frombuffer(raw, dtype=np.uint8, count=total, offset=counts.nbytes + column_indices.nbytes)
    row_indices = np.repeat(np.arange(len(counts)), counts)
    weights = np.zeros((heads * rows, columns), dtype=np.float32)
    weights[row_indices, column_indices] = _square(roots)
    return weights.reshape(heads, rows, columns)


_DECODERS = {"root8": decode_root8, "f16": decode_f16, "sparse": decode_sparse}


def array_to_json(values: Floats) -> ArrayDict:
    """Encode an array as `f16`, with its shape."""
    return {"shape": list(np.shape(values)), "codec": "f16", "data": encode_f16(values)}


def array_from_json(values: Mapping[str, Any]) -> Weights:
    """Decode an array from its shape, encoding and data."""
    codec = values.get("codec", "f16")
    if codec not in _DECODERS:
        raise UsageError(f"unknown array encoding {codec!r} in a record: it must be one of {', '.join(_DECODERS)}")
    try:
        return _DECODERS[codec](values["data"], values["shape"])
    except (ValueError, zlib.error, IndexError) as error:
        raise UsageError(f"a record's array of shape {values['shape']} is damaged: {error}") from error


def _square(roots: NDArray[np.uint8]) -> Weights:
    return np.asarray(np.square(roots / 255), dtype=np.float32)


def _compress(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def _decompress(data: str) -> bytes:
    return zlib.decompress(base64.b64decode(data))
