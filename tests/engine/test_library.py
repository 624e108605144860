"""The Python mirror of the engine's C interface: enums, structs and functions are those of `regard_engine.h`."""

from __future__ import annotations

import ctypes
import re
from dataclasses import fields
from pathlib import Path

import pytest

from regard.components import POSITIONS
from regard.config.block import NORM_PLACEMENTS, NORMS, BlockConfig
from regard.config.description import LayerDescription
from regard.config.models import ACTIVATIONS
from regard.engine import layout, library

HEADER = Path(__file__).parents[2] / "engine/include/regard_engine.h"
PREFIXES = {
    "precision": "REGARD_PRECISION_",
    "positions": "REGARD_POS_",
    "norm": "REGARD_NORM_",
    "norm_placement": "REGARD_PLACEMENT_",
    "activation": "REGARD_ACT_",
    "pooling": "REGARD_POOL_",
    "site": "REGARD_SITE_",
    "slot": "REGARD_SLOT_",
    "part": "REGARD_PART_",
}
STRUCTS = {
    "regard_block": library.CBlock,
    "regard_layer": library.CLayer,
    "regard_shape": library.CModelShape,
    "regard_array": library.CArray,
    "regard_capture": library.CCapture,
    "regard_ablation": library.CAblation,
    "regard_attention_options": library.CAttentionOptions,
    "regard_search_request": library.CSearchRequest,
    "regard_search_result": library.CSearchResult,
}


@pytest.fixture(scope="module")
def header() -> str:
    """The header without comments, with single blanks."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(text.split())


def ctype(declaration: str) -> object:
    """The ctypes type of a C declaration: `char*` is text, other pointers are addresses."""
    if "*" in declaration:
        return ctypes.c_char_p if re.search(r"\bchar\b", declaration) else ctypes.c_void_p
    types = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "float": ctypes.c_float, "void": None}
    return (types | STRUCTS)[declaration.split()[0]]


def test_the_abi_version_is_that_of_the_header_and_of_the_library(header: str) -> None:
    match = re.search(r"#define REGARD_ABI_VERSION (\d+)", header)
    assert match and int(match[1]) == library.ABI_VERSION
    assert library.load_library().handle.regard_abi_version() == library.ABI_VERSION


def test_codes_are_the_enums_of_the_header(header: str) -> None:
    enums = dict(re.findall(r"enum regard_(\w+) \{(.*?)\}", header))
    assert set(enums) == set(PREFIXES) == set(library.CODES)
    for kind, prefix in PREFIXES.items():
        constants = re.findall(r"(\w+) = (\d+)", enums[kind])
        assert all(name.startswith(prefix) for name, _ in constants)
        codes = {name.removeprefix(prefix).lower(): int(code) for name, code in constants}
        assert codes == library.CODES[kind]
        assert len(set(codes.values())) == len(codes)


def test_codes_cover_the_names_of_configs() -> None:
    assert set(ACTIVATIONS) <= set(library.CODES["activation"])
    assert set(NORMS) == set(library.CODES["norm"])
    assert set(NORM_PLACEMENTS) == set(library.CODES["norm_placement"])
    assert set(library.CODES["positions"]) <= set(POSITIONS)
    assert set(layout.PRECISIONS) == set(library.CODES["precision"])


@pytest.mark.parametrize("name", STRUCTS)
def test_structures_have_the_fields_of_the_header(name: str, header: str) -> None:
    match = re.search(rf"typedef struct \{{([^}}]*)\}} {name};", header)
    assert match
    declared = []
    for declaration in match[1].split(";")[:-1]:
        kind, field = re.fullmatch(r"\s*(.*?)\s*(\w+)", declaration).groups()
        declared.append((field, ctype(kind)))
    assert list(STRUCTS[name]._fields_) == declared


def test_structures_have_the_names_of_configs() -> None:
    in_training = {"dropout", "attention_dropout", "activation_dropout"}
    # models with other normalizations, or with a temperature beside biases, are refused
    softmax_only = {"attention_normalization", "attention_top_k", "attention_bias_scale"}
    zeros = {"bias"}  # where they are absent
    block_fields = {field.name for field in fields(BlockConfig)} - in_training - softmax_only - zeros
    # scaling is part of theta or factor
    layer_fields = {field.name for field in fields(LayerDescription)} - {"scaling"}
    assert {name for name, _ in library.CBlock._fields_} == block_fields
    assert {name for name, _ in library.CLayer._fields_} == layer_fields


def test_functions_have_the_signatures_of_the_header(header: str) -> None:
    signatures = {}
    for result, name, parameters in re.findall(r"REGARD_API ([^(]*?)(regard_\w+)\(([^)]*)\);", header):
        arguments = [] if parameters == "void" else parameters.split(",")
        signatures[name] = ctype(result), tuple(ctype(argument) for argument in arguments)
    assert signatures == library._SIGNATURES
