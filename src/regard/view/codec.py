"""How arrays stand in a record's JSON form: bytes, deflated (zlib), in base64.

`root8`   255·√w in one byte each; weights between 0 and 1.
`f16`     half precision, little-endian; anything signed.
`sparse`  the largest weights of each row until they hold nearly all of it: how many (uint16, one a row), their columns
          (uint16), their roots (uint8), the three end to end; rows of all heads follow each other.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError

Weights = NDArray[np.float32]
Floats = NDArray[np.floating[Any]]
HELD = 0.95  # share of a row that its sparse form holds
MOST = 24  # weights of a row that its sparse form has at most


def encode_root8(weights: Floats) -> str:
    """Return weights as `root8`: bytes of 255·√w, deflated, in base64.

    >>> decode_root8(encode_root8(np.array([[0.0, 0.25, 1.0]])), [1, 3]).round(2).tolist()
    [[0.0, 0.25, 1.0]]
    """
    return _text(to_root8(weights).tobytes())


def decode_root8(data: str, shape: Sequence[int]) -> Weights:
    """Return the weights that `pack` wrote."""
    return _squared(np.frombuffer(_bytes(data), dtype=np.uint8)).reshape(tuple(shape))


def to_root8(weights: Floats) -> NDArray[np.uint8]:
    """Return weights as bytes of 255·√w: what `root8` is before it is deflated.

    >>> to_root8(np.array([0.0, 0.25, 1.0])).tolist()
    [0, 128, 255]
    """
    wide = weights.astype(np.float32, copy=False)
    return np.asarray(np.rint(255 * np.sqrt(np.clip(wide, 0, 1))), dtype=np.uint8)


def encode_f16(values: Floats) -> str:
    """Return values as `f16`.

    >>> decode_f16(encode_f16(np.array([[-1.5, 2.0]])), [1, 2]).tolist()
    [[-1.5, 2.0]]
    """
    return _text(np.asarray(values).astype("<f2").tobytes())


def decode_f16(data: str, shape: Sequence[int]) -> Weights:
    """Return the values that `pack_half` wrote."""
    return np.frombuffer(_bytes(data), dtype="<f2").astype(np.float32).reshape(tuple(shape))


def encode_sparse(weights: Floats) -> str:
    """Return the largest weights of each row of [H, Q, K] as `sparse`.

    >>> decode_sparse(encode_sparse(np.array([[[0.01, 0.74, 0.25]]])), [1, 1, 3]).astype(float).round(2).tolist()
    [[[0.0, 0.74, 0.25]]]
    """
    rows = np.ascontiguousarray(weights, dtype=np.float32).reshape(-1, weights.shape[-1])
    most = min(MOST, rows.shape[-1])
    largest = np.argsort(-rows, axis=-1, kind="stable")[:, :most]
    values = np.take_along_axis(rows, largest, axis=-1)
    before = np.cumsum(values, axis=-1) - values  # what larger ones hold
    wanted = (before < HELD * rows.sum(axis=-1, keepdims=True)) & (values > 0)
    counts = wanted.sum(axis=-1).astype("<u2")
    return _text(counts.tobytes() + largest[wanted].astype("<u2").tobytes() + to_root8(values[wanted]).tobytes())


def decode_sparse(data: str, shape: Sequence[int]) -> Weights:
    """Return the weights that `pack_sparse` wrote; the others are zero."""
    heads, rows, columns = shape
    raw = _bytes(data)
    counts = np.frombuffer(raw, dtype="<u2", count=heads * rows)
    total = int(counts.sum())
    places = np.frombuffer(raw, dtype="<u2", count=total, offset=counts.nbytes)
    values = np.frombuffer(raw, dtype=np.uint8, count=total, offset=counts.nbytes + places.nbytes)
    made = np.zeros((heads * rows, columns), dtype=np.float32)
    made[np.repeat(np.arange(len(counts)), counts), places] = _squared(values)
    return made.reshape(heads, rows, columns)


_READERS = {"root8": decode_root8, "f16": decode_f16, "sparse": decode_sparse}


def array_to_json(values: Floats) -> dict[str, Any]:
    """Return an array with its shape, as `f16`."""
    return {"shape": list(np.shape(values)), "code": "f16", "data": encode_f16(values)}


def array_from_json(values: Mapping[str, Any]) -> Weights:
    """Return the array of a shape, a code and data."""
    code = values.get("code", "f16")
    if code not in _READERS:
        raise UsageError(f"a record's array has the code {code!r}: {', '.join(_READERS)} can be read")
    try:
        return _READERS[code](values["data"], values["shape"])
    except (ValueError, zlib.error, IndexError) as error:
        raise UsageError(f"a record's array of shape {values['shape']} is damaged: {error}") from error


def _squared(found: NDArray[np.uint8]) -> Weights:
    return np.asarray(np.square(found / 255), dtype=np.float32)


def _text(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def _bytes(data: str) -> bytes:
    return zlib.decompress(base64.b64decode(data))
