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


def write_file(path: Path, header: Any, data: bytes = b"", claimed_length: int | None = None) -> Path:
    header_bytes = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(
        (len(header_bytes) if claimed_length is None else claimed_length).to_bytes(8, "little") + header_bytes + data
    )
    return path


def entry(start: int, end: int, *shape: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data", "claimed_length"),
    [
        ({"a": entry(0, 8, 2)}, b"1234", None),  # the file is truncated
        ({"a": entry(0, 8, 2)}, b"1234567890", None),  # more than the header says
        ({"a": entry(0, 8, 3)}, b"12345678", None),  # the shape needs more
        ({"a": entry(0, 8, 2), "b": entry(4, 12, 2)}, b"123456789012", None),  # overlap
        ({"a": entry(0, 4, 1), "b": entry(8, 12, 1)}, b"123456789012", None),  # a gap
        ({"a": entry(0, 8, 2**62, 2**62)}, b"12345678", None),
        ({"a": entry(0, 8, -2)}, b"12345678", None),
        ({"a": entry(0, 8, 2.0)}, b"12345678", None),
        ({"a": entry(0, 8, True)}, b"12345678", None),
        ({"a": entry(0, 8, 2, dtype="F31")}, b"12345678", None),
        ({"a": entry(0, 8, 2, dtype=["F32"])}, b"12345678", None),
        ({"a": []}, b"", None),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]}}, b"12345678", None),
        ([], b"", None),
        (b"{", b"", None),
        (b"\xff\xfe", b"", None),
        (b"[" * 50_000, b"", None),
        ({}, b"", 2**63),
        ({}, b"", 1 << 30),
        ({f"t{index}": entry(0, 0, 0) for index in range(20_001)}, b"", None),
    ],
)
def test_an_unsound_file_is_rejected(tmp_path: Path, header: Any, data: bytes, claimed_length: int | None) -> None:
    path = write_file(tmp_path / "w.safetensors", header, data, claimed_length)
    for read in (weights.read_header, weights.read_tensors):
        with pytest.raises(CheckpointError, match=r"w.safetensors: not a sound safetensors file"):
            read(path)


def test_an_empty_and_a_missing_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(CheckpointError, match="empty"):
        weights.read_tensors(tmp_path / "empty")
    with pytest.raises(CheckpointError, match=r"none: cannot be read"):
        weights.read_tensors(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match=r"pipe: .*no file"):
        weights.read_tensors(tmp_path / "pipe")


def test_values_must_be_finite(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3), "b": torch.tensor([1.0, float("nan")])}, tmp_path / "w")
    entries = weights.read_header(tmp_path / "w")
    with pytest.raises(CheckpointError, match="b holds values that are not finite"):
        weights.read_entries(entries)
    assert weights.read_entries({"a": entries["a"]})["a"].tolist() == [1, 1, 1]


def test_other_tools_read_our_files(tmp_path: Path) -> None:
    from safetensors import safe_open

    content = weights.serialize_tensors({"a": torch.arange(6.0).view(2, 3).T})
    assert callable(content)
    with open(tmp_path / "w", "wb") as file:
        content(file)
    with safe_open(tmp_path / "w", "np") as opened:
        assert opened.metadata() == {"format": "pt"}
        assert opened.get_tensor("a").tolist() == [[0, 3], [1, 4], [2, 5]]


@settings(
    max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(position=st.integers(0, 10_000), replacement=st.binary(max_size=4), removed=st.integers(0, 4))
def test_a_changed_file_is_read_or_rejected(tmp_path: Path, position: int, replacement: bytes, removed: int) -> None:
    path = tmp_path / "w"
    save_file({"words": torch.ones(3, 2), "bias": torch.ones(5, dtype=torch.bfloat16)}, path)
    data = path.read_bytes()
    position %= len(data)
    path.write_bytes(data[:position] + replacement + data[position + removed :])
    try:
        tensors = weights.read_tensors(path)
    except CheckpointError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error)
    else:
        assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
