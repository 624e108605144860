"""The engine file: packed arrays in the safetensors format, validated and then memory-mapped.

Every array starts at a multiple of 64 bytes, so that the library reads it in place and processes share it. The header
also holds the model's config, so that the file is complete in itself.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.engine.description import EngineConfig, check_config
from regard.engine.layout import ALIGNMENT, PRECISIONS, Array, ArraySpec, array_specs
from regard.engine.shortlist import Shortlist
from regard.errors import CheckpointError, ConfigError, UsageError

ENGINE_FILE = "engine.safetensors"
FORMAT = "regard-engine"
VERSION = 4
_CONFIGS: dict[str, type[EngineConfig]] = {"translator": TransformerConfig, "encoder": BertConfig, "gpt": GptConfig}
_PADDING = re.compile(r"padding\.\d+")
_SHORTLIST_ARRAYS = ("shortlist.always_allowed", "shortlist.offsets", "shortlist.lexicon")
_LENGTH_BYTES = 8  # of the header's length, before the header
_MAX_HEADER_BYTES = 2 << 20  # 96 + 96 layers need 1.3 MB; what JSON becomes in memory is up to thirty times as large
_MAX_MESSAGE = 300  # characters of an error, which may quote a value of the file
_DTYPES = {
    np.dtype(np.float32): "F32",
    np.dtype(np.int32): "I32",
    np.dtype(np.uint8): "U8",
    np.dtype(np.uint16): "BF16",
}


class ByteSink(Protocol):
    """Anything that bytes can be written to."""

    def write(self, data: bytes, /) -> object:
        """Write bytes."""
        ...


@dataclass(frozen=True)
class EngineFile:
    """Contents of an engine file."""

    config: EngineConfig
    precision: str
    arrays: list[Array]
    metadata: dict[str, Any]  # on the model, beside its config
    shortlist: Shortlist | None = None


# ---- writing


def serialize(
    config: EngineConfig,
    precision: str,
    arrays: Sequence[Array],
    metadata: Mapping[str, Any] | None = None,
    shortlist: Shortlist | None = None,
) -> Callable[[ByteSink], object]:
    """Serialize a model's arrays and metadata; the function returned writes the file to a sink."""
    specs = array_specs(config, precision)
    if shortlist is not None:
        shortlist_arrays = [shortlist.always_allowed, shortlist.offsets, shortlist.lexicon]
        specs += [
            _shortlist_spec(name, len(array)) for name, array in zip(_SHORTLIST_ARRAYS, shortlist_arrays, strict=True)
        ]
        arrays = [*arrays, *shortlist_arrays]
    model = {"kind": _config_kind(config), "config": config.to_dict(), "metadata": dict(metadata or {})}
    table: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "version": str(VERSION),
            "precision": precision,
            "model": json.dumps(model),
        }
    }
    chunks: list[bytes] = []
    offset = 0

    def add_entry(name: str, dtype: str, shape: list[int], content: bytes) -> None:
        nonlocal offset
        if content:
            table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(content)]}
            chunks.append(content)
            offset += len(content)

    for index, (spec, array) in enumerate(zip(specs, arrays, strict=True)):
        add_entry(spec.name, _DTYPES[np.dtype(spec.dtype)], list(spec.shape), array.tobytes())
        padding = -array.nbytes % ALIGNMENT
        add_entry(f"padding.{index}", "U8", [padding], bytes(padding))
    header = json.dumps(table).encode()
    header += b" " * (-(_LENGTH_BYTES + len(header)) % ALIGNMENT)
    if len(header) > _MAX_HEADER_BYTES:
        raise UsageError(
            f"the header of the engine file would have {len(header):,} bytes, at most {_MAX_HEADER_BYTES:,} are read: "
            "the model has too many layers, or too long names of labels"
        )

    def write(sink: ByteSink) -> None:
        sink.write(len(header).to_bytes(_LENGTH_BYTES, "little"))
        sink.write(header)
        for chunk in chunks:
            sink.write(chunk)

    return write


def _config_kind(config: EngineConfig) -> str:
    return next(kind for kind, config_class in _CONFIGS.items() if isinstance(config, config_class))


def _shortlist_spec(name: str, length: int) -> ArraySpec:
    return ArraySpec(name, np.int32, shape=(length,))


# ---- reading


def read_engine_file(path: Path) -> EngineFile:
    """Memory-map an engine file; every dtype, shape and offset is validated against the config first."""
    try:
        with open(path, "rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    header_bytes = int.from_bytes(content[:_LENGTH_BYTES], "little") if len(content) >= _LENGTH_BYTES else -1
    if not 0 <= header_bytes <= min(_MAX_HEADER_BYTES, len(content) - _LENGTH_BYTES):
        raise _invalid_file(path, "its header does not fit into it")
    data_start = _LENGTH_BYTES + header_bytes
    try:
        table = _parse_json(content[_LENGTH_BYTES:data_start])
        header = dict(table.pop("__metadata__"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _invalid_file(path, "its header has another format") from None
    precision = _check_header(path, header)
    config, metadata = _parse_model(path, header.get("model"))
    mapped = _MappedArrays(path, content, data_start, table)
    mapped.check_extents()
    specs = array_specs(config, precision)
    stored = EngineFile(
        config,
        precision,
        arrays=[mapped.read(spec) for spec in specs],
        metadata=metadata,
        shortlist=mapped.read_shortlist(config),
    )
    mapped.check_names([spec.name for spec in specs])
    return stored


def _parse_json(text: str | bytes) -> Any:
    """Parse JSON; a name that an object has twice is an error, as readers differ in which of the two they take."""

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            raise ValueError("a name is repeated")
        return values

    return json.loads(text, object_pairs_hook=build)


def _check_header(path: Path, header: Mapping[str, Any]) -> str:
    """Check format and version; return the precision."""
    if header.get("format") != FORMAT:
        raise _invalid_file(path, f"its format is {header.get('format')!r:.40}, not {FORMAT!r}")
    version = header.get("version")
    if version != str(VERSION):
        raise CheckpointError(f"{path}: version {version!r:.40}, not {VERSION}: convert the model again")
    precision = header.get("precision")
    if precision not in PRECISIONS:
        raise _invalid_file(path, f"its precision is {precision!r:.40}")
    return str(precision)


def _parse_model(path: Path, text: Any) -> tuple[EngineConfig, dict[str, Any]]:
    """Config and metadata of the model, from the header."""
    try:
        model = _parse_json(text)
        config = _CONFIGS[model["kind"]].from_dict(model["config"], where=str(path))
        check_config(config)
        return config, dict(model["metadata"])
    except ConfigError as error:
        message = str(error).removeprefix(f"{path}: ")
        raise CheckpointError(f"{path}: {message:.{_MAX_MESSAGE}}; convert the model again") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise _invalid_file(path, "its header does not describe a model") from None


@dataclass(frozen=True)
class _MappedArrays:
    """Arrays of a memory-mapped file, validated before they are used."""

    path: Path
    content: mmap.mmap
    data_start: int  # offset of the data, after the header
    table: Mapping[str, Any]  # entries by array name; not validated

    def check_extents(self) -> None:
        """Check that the arrays lie end to end and fill the file, as the format requires: nothing is used twice."""
        extents: list[tuple[int, int, str]] = []
        for name, entry in self.table.items():
            start, stop = _parse_offsets(entry.get("data_offsets") if isinstance(entry, dict) else None)
            if not 0 <= start <= stop <= self.data_bytes:
                raise _invalid_file(self.path, f"{name:.100} lies outside of the file")
            extents.append((start, stop, name))
        end = 0
        for start, stop, name in sorted(extents):
            if start != end:
                raise _invalid_file(self.path, f"{name:.100} does not begin where the array before it ends")
            end = stop
        if end != self.data_bytes:
            raise _invalid_file(self.path, f"its arrays have {end:,} bytes, the file {self.data_bytes:,}")

    def check_names(self, names: Sequence[str]) -> None:
        """Check that the file has no arrays but those of its model."""
        unknown = {name for name in self.table if not _PADDING.fullmatch(name)} - {*names, *_SHORTLIST_ARRAYS}
        if unknown:
            raise _invalid_file(self.path, f"{min(unknown):.100} is not an array of this model")

    @property
    def data_bytes(self) -> int:
        """Size of the data, after the header."""
        return len(self.content) - self.data_start

    def read(self, spec: ArraySpec) -> Array:
        """View an array in the mapped file."""
        entry = self.table.get(spec.name)
        dtype = _DTYPES[np.dtype(spec.dtype)]
        shape = list(spec.shape)
        if not isinstance(entry, dict) or entry.get("dtype") != dtype or entry.get("shape") != shape:
            raise _invalid_file(self.path, f"{spec.name} is not {dtype} {shape} as the config requires")
        start, stop = _parse_offsets(entry.get("data_offsets"))
        if stop - start != spec.num_bytes:
            raise _invalid_file(self.path, f"{spec.name} has {stop - start} bytes instead of {spec.num_bytes}")
        offset = self.data_start + start
        if offset % ALIGNMENT:
            raise _invalid_file(self.path, f"{spec.name} is not aligned")
        count = spec.num_bytes // np.dtype(spec.dtype).itemsize
        return np.frombuffer(self.content, spec.dtype, count=count, offset=offset).reshape(spec.shape)

    def read_shortlist(self, config: EngineConfig) -> Shortlist | None:
        """Read and validate the shortlist, where the file has one."""
        if not any(self.table.get(name) for name in _SHORTLIST_ARRAYS):
            return None
        if not isinstance(config, TransformerConfig):
            raise _invalid_file(self.path, "it has a shortlist, but is not a translation model")
        always_allowed, offsets, lexicon = (self._read_list(name) for name in _SHORTLIST_ARRAYS)
        shortlist = Shortlist(always_allowed, offsets, lexicon=lexicon)
        fault = shortlist.find_fault(config.source_vocab_size, config.target_vocab_size, [config.eos_id])
        if fault:
            raise _invalid_file(self.path, f"its shortlist: {fault}")
        return shortlist

    def _read_list(self, name: str) -> Array:
        entry = self.table.get(name)
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int or shape[0] <= 0:
            raise _invalid_file(self.path, f"its shortlist: {name} is not a list")
        return self.read(_shortlist_spec(name, shape[0]))


def _parse_offsets(offsets: Any) -> tuple[int, int]:
    """Start and stop of an entry; (-1, -1) if it has none."""
    if isinstance(offsets, list) and len(offsets) == 2 and all(type(offset) is int for offset in offsets):
        return offsets[0], offsets[1]
    return -1, -1


def _invalid_file(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a valid engine file: {reason}; convert the model again")
