"""Safetensors files: unsound ones are rejected before any tensor is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from regard.checkpoint import weights
from regard.errors import CheckpointError


def write_safetensors(path: Path, header: Any, data: bytes = b"", header_length: int | None = None) -> None:
    """Write a safetensors file with this header; `header_length` is what the file claims, if not the truth."""
    header_bytes = header if isinstance(header, bytes) else json.dumps(header).encode()
    if header_length is None:
        header_length = len(header_bytes)
    path.write_bytes(header_length.to_bytes(8, "little") + header_bytes + data)


def tensor_entry(start: int, end: int, *shape: Any, dtype: Any = "F32") -> dict[str, Any]:
    """Entry of a tensor in the header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data", "header_length"),
    [
        ({"a": tensor_entry(0, 8, 2)}, b"1234", None),  # the file is truncated
        ({"a": tensor_entry(0, 8, 2)}, b"1234567890", None),  # more data than the header says
        ({"a": tensor_entry(0, 8, 3)}, b"12345678", None),  # the shape needs more
        ({"a": tensor_entry(0, 8, 2), "b": tensor_entry(4, 12, 2)}, b"123456789012", None),  # overlap
        ({"a": tensor_entry(0, 4, 1), "b": tensor_entry(8, 12, 1)}, b"123456789012", None),  # a gap
        ({"a": tensor_entry(0, 8, 2**62, 2**62)}, b"12345678", None),
        ({"a": tensor_entry(0, 8, -2)}, b"12345678", None),
        ({"a": tensor_entry(0, 8, 2.0)}, b"12345678", None),
        ({"a": tensor_entry(0, 8, True)}, b"12345678", None),
        ({"a": tensor_entry(0, 8, 2, dtype="F31")}, b"12345678", None),
        ({"a": tensor_entry(0, 8, 2, dtype=["F32"])}, b"12345678", None),
        ({"a": []}, b"", None),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]}}, b"12345678", None),
        ([], b"", None),
        (b"{", b"", None),
        (b"\xff\xfe", b"", None),
        (b"[" * 50_000, b"", None),
        ({}, b"", 2**63),
        ({}, b"", 1 << 30),
        ({f"t{index}": tensor_entry(0, 0, 0) for index in range(20_001)}, b"", None),
    ],
)
def test_an_unsound_file_is_rejected(tmp_path: Path, header: Any, data: bytes, header_length: int | None) -> None:
    path = tmp_path / "w.safetensors"
    write_safetensors(path, header, data, header_length)
    for read in (weights.read_header, weights.read_tensors):
        with pytest.raises(CheckpointError, match=r"w.safetensors: not a sound safetensors file"):
            read(path)


def test_an_empty_a_missing_and_a_special_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "nothing").write_bytes(b"")
    with pytest.raises(CheckpointError, match="/nothing: not a sound safetensors file"):
        weights.read_tensors(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"none: cannot be read"):
        weights.read_tensors(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match=r"pipe: .*no file"):
        weights.read_tensors(tmp_path / "pipe")


def test_values_that_are_not_finite_are_rejected(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3), "b": torch.tensor([1.0, float("nan")])}, tmp_path / "w")
    entries = weights.read_header(tmp_path / "w")
    with pytest.raises(CheckpointError, match="b holds values that are not finite"):
        weights.read_arrays(entries)
    assert weights.read_arrays({"a": entries["a"]})["a"].tolist() == [1, 1, 1]


def test_other_tools_read_our_files(tmp_path: Path) -> None:
    from safetensors import safe_open

    write_content = weights.serialize_tensors({"a": torch.arange(6.0).view(2, 3).T})
    assert callable(write_content)
    with open(tmp_path / "w", "wb") as file:
        write_content(file)
    with safe_open(tmp_path / "w", "np") as opened:
        assert opened.metadata() == {"format": "pt"}
        assert opened.get_tensor("a").tolist() == [[0, 3], [1, 4], [2, 5]]


@settings(
    max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(offset=st.integers(0, 10_000), replacement=st.binary(max_size=4), num_removed=st.integers(0, 4))
def test_a_changed_file_is_read_as_its_header_says_or_rejected(
    tmp_path: Path, offset: int, replacement: bytes, num_removed: int
) -> None:
    path = tmp_path / "w"
    save_file({"words": torch.ones(3, 2), "bias": torch.ones(5, dtype=torch.bfloat16)}, path)
    data = path.read_bytes()
    offset %= len(data)
    changed = data[:offset] + replacement + data[offset + num_removed :]
    path.write_bytes(changed)
    try:
        tensors = weights.read_tensors(path)
    except CheckpointError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error)
    else:
        header_length = int.from_bytes(changed[:8], "little")
        header = json.loads(changed[8 : 8 + header_length])
        header.pop("__metadata__", None)
        assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
            name: entry["shape"] for name, entry in header.items()
        }
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        assert num_bytes == len(changed) - 8 - header_length
