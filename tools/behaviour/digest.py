"""SHA-256 digests of plain values: strings, numbers, arrays and nestings of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

DIGEST_CHARACTERS = 32  # 128 bits


@dataclass(frozen=True)
class Multiset:
    """Values whose order does not count, such as the weights of a model whose names may change."""

    values: tuple[Any, ...]


def digest(value: Any) -> str:
    """Digest a value bit by bit; floats count with all their bits, arrays with their shape and type.

    >>> digest([0.1, "a"]) == digest([0.1, "a"]), digest([0.1]) == digest([0.1 + 1e-17]), digest(1) == digest(1.0)
    (True, False, False)
    >>> digest(Multiset((1, 2))) == digest(Multiset((2, 1))), digest([1, 2]) == digest([2, 1])
    (True, False)
    """
    sha = hashlib.sha256()
    for chunk in _encode(value):
        sha.update(len(chunk).to_bytes(8, "little"))
        sha.update(chunk)
    return sha.hexdigest()[:DIGEST_CHARACTERS]


def _encode(value: Any) -> Iterator[bytes]:
    """Encode a value so that different values have different encodings."""
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        yield f"array {array.dtype.str} {array.shape}".encode()
        yield array.tobytes()
    elif value is None or isinstance(value, bool | np.bool_):
        yield f"constant {value}".encode()
    elif isinstance(value, str):
        yield b"text"
        yield str.encode(value, errors="surrogatepass")
    elif isinstance(value, int | np.integer):
        yield f"integer {int(value)}".encode()
    elif isinstance(value, float | np.floating):
        yield f"float {float(value).hex()}".encode()
    elif isinstance(value, Multiset):
        yield f"multiset {len(value.values)}".encode()
        yield from (element.encode() for element in sorted(map(digest, value.values)))
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        yield from _encode_all(part for key in sorted(value) for part in (key, value[key]))
    elif isinstance(value, Iterable):
        elements = list(value)
        yield f"sequence {len(elements)}".encode()
        yield from _encode_all(elements)
    else:
        raise TypeError(f"no digest of {type(value).__name__}")


def _encode_all(values: Iterable[Any]) -> Iterator[bytes]:
    for value in values:
        yield from _encode(value)
