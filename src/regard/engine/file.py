"""The engine's file: packed arrays as they lie in memory, in the layout of safetensors, checked and then mapped.

Every array begins at a multiple of 64 bytes, so that the library reads it in place and processes share it. What the
model is stands in the file, too: it can be used with nothing else.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.engine.layout import BOUNDARY, PRECISIONS, Array, ArraySpec, EngineConfig, array_specs
from regard.engine.shortlist import Shortlist
from regard.errors import CheckpointError, ConfigError

FILE = "engine.safetensors"
FORMAT, VERSION = "regard-engine", 3
_CONFIGS: dict[str, type[EngineConfig]] = {"translator": TransformerConfig, "encoder": BertConfig, "gpt": GptConfig}
_LISTS = ("common", "offsets", "words")  # the arrays of a shortlist
_HEADER_LIMIT = 8 << 20  # bytes
_KINDS = {np.dtype(np.float32): "F32", np.dtype(np.int32): "I32", np.dtype(np.uint8): "U8", np.dtype(np.uint16): "BF16"}


class ByteSink(Protocol):
    """What a file's content is written to."""

    def write(self, data: bytes, /) -> object:
        """Take some bytes."""
        ...


@dataclass(frozen=True)
class EngineFile:
    """A model as its file holds it."""

    config: EngineConfig
    precision: str
    arrays: list[Array]
    metadata: dict[str, Any]  # what else is said of it
    shortlist: Shortlist | None = None


def serialize(
    config: EngineConfig,
    precision: str,
    arrays: Sequence[Array],
    metadata: Mapping[str, Any] | None = None,
    shortlist: Shortlist | None = None,
) -> Callable[[ByteSink], object]:
    """Return what writes a model's arrays as a file, with plain facts about it."""
    wanted = array_specs(config, precision)
    if shortlist is not None:
        lists = [getattr(shortlist, name) for name in _LISTS]
        wanted = [*wanted, *(_listed(name, len(one)) for name, one in zip(_LISTS, lists, strict=True))]
        arrays = [*arrays, *lists]
    kind = next(name for name, known in _CONFIGS.items() if isinstance(config, known))
    model = json.dumps({"kind": kind, "config": config.to_dict(), "facts": dict(metadata or {})})
    told = {"format": FORMAT, "version": str(VERSION), "precision": precision, "model": model}
    table: dict[str, Any] = {"__metadata__": told}
    end, pieces = 0, []
    for number, (slot, array) in enumerate(zip(wanted, arrays, strict=True)):
        for name, kind, shape, data in (
            (slot.name, _KINDS[np.dtype(slot.dtype)], list(slot.shape), array.tobytes()),
            (f"padding.{number}", "U8", [-array.nbytes % BOUNDARY], bytes(-array.nbytes % BOUNDARY)),
        ):
            if data:
                table[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + len(data)]}
                end += len(data)
                pieces.append(data)
    header = json.dumps(table).encode()
    header += b" " * (-(8 + len(header)) % BOUNDARY)

    def write(sink: ByteSink) -> None:
        for piece in (len(header).to_bytes(8, "little"), header, *pieces):
            sink.write(piece)

    return write


def read_engine_file(path: Path) -> EngineFile:
    """Return the model of a file, its arrays mapped; every size is compared with the config's first."""
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    size = int.from_bytes(mapped[:8], "little") if len(mapped) >= 8 else -1
    if not 0 <= size <= min(_HEADER_LIMIT, len(mapped) - 8):
        raise _unsound(path, "its header does not fit into it")
    try:
        table = json.loads(mapped[8 : 8 + size])
        told = dict(table.pop("__metadata__"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _unsound(path, "its header is not one of ours") from None
    if told.get("format") != FORMAT:
        raise _unsound(path, f"its format is {told.get('format')!r:.40}, not {FORMAT!r}")
    if told.get("version") != str(VERSION):
        raise CheckpointError(
            f"{path}: version {told.get('version')!r:.40}; {VERSION} is read here: convert the model again"
        )
    if (precision := told.get("precision")) not in PRECISIONS:
        raise _unsound(path, f"its precision is {precision!r:.40}")
    config, facts = _model(path, told.get("model"))
    arrays = [_array(path, mapped, 8 + size, slot, table.get(slot.name)) for slot in array_specs(config, precision)]
    return EngineFile(config, precision, arrays, facts, _shortlist(path, mapped, 8 + size, config, table))


def _listed(name: str, count: int) -> ArraySpec:
    return ArraySpec(f"shortlist.{name}", np.int32, (count,))


def _shortlist(
    path: Path, mapped: mmap.mmap, first: int, config: EngineConfig, table: Mapping[str, Any]
) -> Shortlist | None:
    """Return the words that translations are written with, where the file lists them."""
    entries = [table.get(f"shortlist.{name}") for name in _LISTS]
    if not any(entries):
        return None
    sizes = [entry.get("shape") if isinstance(entry, dict) else None for entry in entries]
    if not isinstance(config, TransformerConfig) or not all(
        isinstance(size, list) and len(size) == 1 and type(size[0]) is int and size[0] > 0 for size in sizes
    ):
        raise _unsound(path, "its shortlist is none")
    slots_of = [_listed(name, size[0]) for name, size in zip(_LISTS, sizes, strict=True) if size]
    lists = [_array(path, mapped, first, slot, entry) for slot, entry in zip(slots_of, entries, strict=True)]
    made = Shortlist(*lists)
    if why := made.find_fault(config.source_vocab_size, config.target_vocab_size, [config.eos_id]):
        raise _unsound(path, f"its shortlist: {why}")
    return made


def _model(path: Path, told: Any) -> tuple[EngineConfig, dict[str, Any]]:
    """Return what the model is, as the header says."""
    try:
        found = json.loads(told)
        return _CONFIGS[found["kind"]].from_dict(found["config"], where=str(path)), dict(found["facts"])
    except ConfigError as error:
        raise CheckpointError(f"{error}; convert the model again") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise _unsound(path, "it does not say what model it holds") from None


def _array(path: Path, mapped: mmap.mmap, first: int, slot: ArraySpec, entry: Any) -> Array:
    wanted = {"dtype": _KINDS[np.dtype(slot.dtype)], "shape": list(slot.shape)}
    if not isinstance(entry, dict) or {name: entry.get(name) for name in wanted} != wanted:
        raise _unsound(path, f"{slot.name} is not {wanted['dtype']} {wanted['shape']} as the config asks for")
    begin, end = _span(entry.get("data_offsets"))
    if not 0 <= begin <= end <= len(mapped) - first or end - begin != slot.bytes:
        raise _unsound(path, f"{slot.name} does not lie in it")
    if (first + begin) % BOUNDARY:
        raise _unsound(path, f"{slot.name} is not aligned")
    count = slot.bytes // np.dtype(slot.dtype).itemsize
    return np.frombuffer(mapped, slot.dtype, count=count, offset=first + begin).reshape(slot.shape)


def _span(place: Any) -> tuple[int, int]:
    """Return where an entry says that it lies; nowhere, if what it says is no such thing."""
    if isinstance(place, list) and len(place) == 2 and all(type(one) is int for one in place):
        return place[0], place[1]
    return -1, -1


def _unsound(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a sound engine file: {why}; convert the model again")
