"""Tensors in safetensors files, read only after their header is validated, and a report on a folder's weights.

A model's weights are read as float32 NumPy arrays, without torch: what computes them may be the engine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.checkpoint.atomic import Content
from regard.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED_FILE = "pytorch_model.bin"  # of older folders
PICKLED_INDEX = "pytorch_model.bin.index.json"
_MAX_HEADER_BYTES = 8 << 20
_MAX_TENSORS = 20_000
_LENGTH_BYTES = 8  # the header's length, at the start of a file
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # as bits: NumPy has no bf16
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_FLOAT_DTYPES = ("F32", "F16", "BF16", "F64")

Array = NDArray[Any]
Arrays = dict[str, Array]


@dataclass(frozen=True)
class TensorEntry:
    """One tensor in the header of a safetensors file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int  # of its first byte in the file


def serialize_tensors(tensors: Mapping[str, Tensor]) -> Content:
    """Writer of the tensors as a safetensors file, with the metadata that other tools expect."""
    import safetensors.torch

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return lambda sink: sink.write(safetensors.torch.save(contiguous, metadata={"format": "pt"}))


def tensor_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes that the tensors occupy."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names and values of float32 tensors.

    >>> import torch
    >>> digest_tensors({"a": torch.zeros(2)})[:8]
    '50edc262'
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Read names, dtypes and shapes of a safetensors file after validating its header."""
    header, data_bytes, data_offset = _read_json_header(path)
    if not isinstance(header, dict) or len(header) > _MAX_TENSORS:
        raise _invalid_file_error(path, f"its header is not a table of at most {_MAX_TENSORS} tensors")
    header.pop("__metadata__", None)
    spans = {name: _read_span(path, name, entry) for name, entry in header.items()}
    starts = [start for start, _ in sorted(spans.values())]
    ends = [0, *(end for _, end in sorted(spans.values()))]
    if starts != ends[:-1] or ends[-1] != data_bytes:
        raise _invalid_file_error(path, "its tensors do not fill the file without gaps")
    return {
        name: TensorEntry(path, entry["dtype"], shape=tuple(entry["shape"]), offset=data_offset + spans[name][0])
        for name, entry in header.items()
    }


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file in their own dtypes, as copies in memory."""
    read_header(path)
    import safetensors.torch

    try:
        return {name: tensor.clone() for name, tensor in safetensors.torch.load_file(path).items()}
    except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise _invalid_file_error(path, str(error)) from None


def read_float_arrays(entries: Mapping[str, TensorEntry], names: Iterable[str]) -> Arrays:
    """Read the named tensors, which must have a float dtype, as float32."""
    selected = {name: entries[name] for name in names}
    check_dtypes(selected)
    return read_arrays(selected)


def check_dtypes(entries: Mapping[str, TensorEntry]) -> None:
    """Raise for the first tensor that has no float dtype."""
    for name, entry in entries.items():
        if entry.dtype not in _FLOAT_DTYPES:
            raise CheckpointError(f"{name} is stored as {entry.dtype}: F32, F16 and BF16 are read")


def read_arrays(entries: Mapping[str, TensorEntry]) -> Arrays:
    """Read the tensors of these entries from their files, floats as float32; all values must be finite.

    float32 stays in the page cache: an array is a private map of the file until it is changed.
    """
    files = {path: _map_file(path) for path in sorted({entry.file for entry in entries.values()})}
    arrays = {name: _read_array(files[entry.file], entry) for name, entry in entries.items()}
    for name, array in arrays.items():
        if not _is_finite(array):
            raise CheckpointError(f"{entries[name].file}: {name} holds values that are not finite numbers")
    return arrays


def _map_file(path: Path) -> Array:
    try:
        return np.memmap(path, dtype=np.uint8, mode="c")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None


def _read_array(data: Array, entry: TensorEntry) -> Array:
    dtype = _DTYPES[entry.dtype]
    end = entry.offset + math.prod(entry.shape) * dtype.itemsize
    if end > len(data):
        raise _invalid_file_error(entry.file, "it was shortened while it was read")
    values = np.asarray(data[entry.offset : end]).view(dtype)
    if entry.dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    elif entry.dtype in _FLOAT_DTYPES:
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, which is rejected
            values = values.astype(np.float32, copy=False)
    return np.require(values, requirements="A").reshape(entry.shape)


def _is_finite(array: Array) -> bool:
    """Whether all values are finite; where their sum is, they are, which is faster to find out."""
    if array.dtype != np.float32:
        return True
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum()) or np.isfinite(array).all())


def to_tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """Tensors that share the memory of these arrays."""
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Arrays that share the memory of these tensors."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _read_json_header(path: Path) -> tuple[Any, int, int]:
    """Read the JSON header of a safetensors file; also return the number of bytes after it, and their offset."""
    try:
        if path.exists() and not path.is_file():
            raise _invalid_file_error(path, "it is no file")
        file_bytes = path.stat().st_size
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            is_too_long = header_bytes > min(_MAX_HEADER_BYTES, file_bytes - _LENGTH_BYTES)
            if file_bytes < _LENGTH_BYTES or is_too_long:
                raise _invalid_file_error(
                    path,
                    f"its header claims {header_bytes} bytes; at most {_MAX_HEADER_BYTES} are allowed, "
                    f"and the file has {file_bytes}",
                )
            header = json.loads(file.read(header_bytes))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise _invalid_file_error(path, "its header is not JSON") from None
    data_offset = _LENGTH_BYTES + header_bytes
    return header, file_bytes - data_offset, data_offset


def _read_span(path: Path, name: str, entry: Any) -> tuple[int, int]:
    """Byte range of a tensor, after comparing it with shape and dtype."""
    try:
        start, end = entry["data_offsets"]
        shape = entry["shape"]
        item_bytes = _DTYPES[entry["dtype"]].itemsize
        is_valid = all(type(size) is int and size >= 0 for size in (start, end, *shape))
        if is_valid and end - start == math.prod(shape) * item_bytes:
            return start, end
    except (KeyError, TypeError, ValueError):
        pass
    raise _invalid_file_error(path, f"the entry of {name!r:.80} does not describe a tensor")


def _invalid_file_error(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a sound safetensors file: {reason}")


@dataclass
class WeightReport:
    """Tensors of a folder's weight files: loaded as named, loaded under another name, missing, ignored."""

    loaded: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)  # name in the file → current name
    missing: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)  # ignored name → reason
    notes: list[str] = field(default_factory=list)

    def format_lines(self) -> list[str]:
        """Format the report as lines of text.

        >>> WeightReport(loaded=["a"], missing=["b"], ignored=["c"], reasons={"c": "a buffer"}).format_lines()
        ['weights: 1 loaded, 0 renamed, 1 missing, 1 ignored', 'missing, newly initialised: b', 'ignored: c (a buffer)']
        """
        lines = [
            f"weights: {len(self.loaded)} loaded, {len(self.renamed)} renamed, "
            f"{len(self.missing)} missing, {len(self.ignored)} ignored"
        ]
        if self.renamed:
            old, new = next(iter(self.renamed.items()))
            suffix = ", and so on" if len(self.renamed) > 1 else ""
            lines.append(f"renamed: {old} is {new}{suffix}")
        if self.missing:
            lines.append(f"missing, newly initialised: {', '.join(self.missing)}")
        names_by_reason: dict[str, list[str]] = {}
        for name in self.ignored:
            names_by_reason.setdefault(self.reasons.get(name, "not used"), []).append(name)
        lines += [f"ignored: {', '.join(names)} ({reason})" for reason, names in names_by_reason.items()]
        return lines + self.notes
