"""JSON of files that anyone may have written: duplicate fields, deep nesting and absurd sizes are refused."""

from __future__ import annotations

import json
from typing import Any

from regard.errors import CheckpointError

_MAX_NESTING = 64  # of objects and lists


def parse_json(data: bytes, *, max_values: int) -> object:
    """Parse JSON, or raise `CheckpointError`.

    A field that occurs twice in an object is an error, and so are more than `_MAX_NESTING` levels. As each value takes
    far more memory than its text, there is a limit to their number, too.

    >>> parse_json(b'{"step": [7, 8]}', max_values=10)
    {'step': [7, 8]}
    >>> parse_json(b'{"step": 7, "step": 8}', max_values=10)
    Traceback (most recent call last):
    regard.errors.CheckpointError: not JSON: the field 'step' occurs twice in one object
    """
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > max_values:
        raise CheckpointError(f"more than {max_values} values, which no such file needs")
    try:
        values: object = json.loads(data, object_pairs_hook=_object_without_duplicates)
        is_too_deep = _is_deeper(values, _MAX_NESTING)
    except RecursionError:
        is_too_deep = True
    except ValueError as error:
        raise CheckpointError(f"not JSON: {error}") from None
    if is_too_deep:
        raise CheckpointError(f"nested more deeply than {_MAX_NESTING} levels")
    return values


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; which of two values of a field is meant, nobody knows."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {duplicate!r:.60} occurs twice in one object")
    return fields


def _is_deeper(values: object, levels: int) -> bool:
    """Whether JSON values are nested more deeply than this."""
    if not isinstance(values, dict | list) or not values:
        return False
    children = values.values() if isinstance(values, dict) else values
    return levels == 0 or any(_is_deeper(child, levels - 1) for child in children)
