"""What Hugging Face's types have in common in config.json: activations, number formats, fields of a type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from regard.errors import CheckpointError

# their activation, ours; the first of theirs is what we write
ACTIVATIONS = (
    ("relu", "relu"),
    ("gelu", "gelu"),
    ("gelu_python", "gelu"),
    ("gelu_new", "gelu_tanh"),
    ("gelu_pytorch_tanh", "gelu_tanh"),
    ("gelu_fast", "gelu_tanh"),
    ("gelu_accurate", "gelu_tanh"),
    ("silu", "silu"),
    ("swish", "silu"),
    ("tanh", "tanh"),
    ("quick_gelu", "quick_gelu"),
)


def with_float32_dtype(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields saying that the weights are float32, as we write them; the older spelling is kept if used."""
    spelled = "torch_dtype" if "torch_dtype" in hf_config and "dtype" not in hf_config else "dtype"
    return {**hf_config, spelled: "float32"}


def field_value(fields: Mapping[str, Any], name: str, default: Any, where: str) -> Any:
    """Return a field's value if it has the default's type; a list of token numbers gives its first."""
    value = fields.get(name)
    if value is None:
        return default
    if name.endswith("token_id") and isinstance(value, list) and value:
        value = value[0]
    number = isinstance(default, float) and type(value) is int and abs(value) < 2**31
    if not (type(value) is type(default) or number) or (isinstance(value, float) and not math.isfinite(value)):
        raise CheckpointError(f"{where}: {name} must be of type {type(default).__name__}, not {value!r:.60}")
    return value
