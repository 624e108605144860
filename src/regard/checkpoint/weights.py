"""Tensors in safetensors files: written as content, read only after their header was checked.

What became of the weights of a folder from elsewhere, told in words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from regard.checkpoint.atomic import Content
from regard.errors import CheckpointError

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"  # names in a model folder
OLD_FILE, OLD_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"  # pickled, of older folders
_HEADER_LIMIT = 8 << 20  # bytes
_TENSOR_LIMIT = 20_000
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class TensorEntry:
    """What a file's header says of one tensor."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def serialize_tensors(tensors: Mapping[str, Tensor]) -> Content:
    """Return what writes the tensors as a safetensors file that other tools read too."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return lambda sink: sink.write(safetensors.torch.save(plain, metadata={"format": "pt"}))


def tensor_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes that the tensors take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Return names, number formats and shapes of a safetensors file after checking that the header is sound."""
    try:
        if path.exists() and not path.is_file():
            raise _unsound(path, "it is no file")
        length = path.stat().st_size
        with open(path, "rb") as file:
            head = int.from_bytes(file.read(8), "little")
            if length < 8 or head > min(_HEADER_LIMIT, length - 8):
                raise _unsound(path, f"its header claims {head} bytes; at most {_HEADER_LIMIT} and the file are read")
            header = json.loads(file.read(head))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise _unsound(path, "its header is not JSON") from None
    if not isinstance(header, dict) or len(header) > _TENSOR_LIMIT:
        raise _unsound(path, f"its header is not a table of at most {_TENSOR_LIMIT} tensors")
    header.pop("__metadata__", None)
    spans = sorted(_span(path, name, entry) for name, entry in header.items())
    ends = [0, *(end for _, end in spans)]
    if [begin for begin, _ in spans] != ends[:-1] or ends[-1] != length - 8 - head:
        raise _unsound(path, "its tensors do not fill the file without gaps")
    return {name: TensorEntry(path, entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a safetensors file in their own number formats, in memory of their own."""
    read_header(path)
    try:
        return {name: tensor.clone() for name, tensor in safetensors.torch.load_file(path).items()}
    except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise _unsound(path, str(error)) from None


def read_float_tensors(entries: Mapping[str, TensorEntry], names: Iterable[str]) -> dict[str, Tensor]:
    """Return some of the tensors of files, whose numbers are of a kind that weights have."""
    chosen = {name: entries[name] for name in names}
    check_dtypes(chosen)
    return read_entries(chosen)


def check_dtypes(entries: Mapping[str, TensorEntry]) -> None:
    """Raise for the first tensor that is not stored as numbers of a kind that weights have."""
    for name, entry in entries.items():
        if entry.dtype not in ("F32", "F16", "BF16", "F64"):
            raise CheckpointError(f"{name} is stored as {entry.dtype}: F32, F16 and BF16 are read")


def read_entries(entries: Mapping[str, TensorEntry]) -> dict[str, Tensor]:
    """Return the tensors that the entries name, from as many files as they lie in; all must be finite numbers."""
    tensors = {}
    for path in sorted({entry.file for entry in entries.values()}):
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                for name in [name for name, entry in entries.items() if entry.file == path]:
                    tensors[name] = file.get_tensor(name)
        except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise _unsound(path, str(error)) from None
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{entries[name].file}: {name} holds values that are not finite numbers")
    return {name: tensors[name] for name in entries}


def _span(path: Path, name: str, entry: Any) -> tuple[int, int]:
    try:
        begin, end = entry["data_offsets"]
        shape, width = entry["shape"], _BYTES[entry["dtype"]]
        right = all(type(number) is int and number >= 0 for number in (begin, end, *shape))
        if right and end - begin == math.prod(shape) * width:
            return begin, end
    except (KeyError, TypeError, ValueError):
        pass
    raise _unsound(path, f"the entry of {name!r:.80} is not a tensor's")


def _unsound(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a sound safetensors file: {why}")


@dataclass
class WeightReport:
    """What was found in a folder's weights: names taken as they are, renamed, missing and ignored."""

    loaded: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)  # name in the file → name it stands for
    missing: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)  # an ignored name → the reason
    notes: list[str] = field(default_factory=list)

    def format_lines(self) -> list[str]:
        """Say it in words.

        >>> WeightReport(loaded=["a"], missing=["b"], ignored=["c"], reasons={"c": "a buffer"}).format_lines()
        ['weights: 1 found, 0 renamed, 1 missing, 1 ignored', 'missing, made anew: b', 'ignored: c (a buffer)']
        """
        counts = (len(self.loaded), len(self.renamed), len(self.missing), len(self.ignored))
        lines = ["weights: {} found, {} renamed, {} missing, {} ignored".format(*counts)]
        if self.renamed:
            old, new = next(iter(self.renamed.items()))
            lines.append(f"renamed: {old} is {new}" + (", and so on" if len(self.renamed) > 1 else ""))
        if self.missing:
            lines.append(f"missing, made anew: {', '.join(self.missing)}")
        reasons: dict[str, list[str]] = {}
        for name in self.ignored:
            reasons.setdefault(self.reasons.get(name, "not used"), []).append(name)
        lines += [f"ignored: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
        return lines + self.notes
