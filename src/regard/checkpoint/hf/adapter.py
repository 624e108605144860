"""What the adapters of Hugging Face model types share: config fields, activations, and matching of weights by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from regard.checkpoint.weights import Array, Arrays, WeightReport
from regard.config.settings import MAX_SIZE
from regard.errors import CheckpointError

# Hugging Face's activation, ours; the first row with ours is what we write
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
Shapes = Mapping[str, tuple[int, ...]]


def read_activation(hf_activation: str) -> str:
    """Our name of an activation; an unknown one is returned as it is, for the config to reject.

    >>> read_activation("gelu_new")
    'gelu_tanh'
    """
    return dict(ACTIVATIONS).get(hf_activation, hf_activation)


def write_activation(activation: str) -> str:
    """Hugging Face's name of one of our activations.

    >>> write_activation("gelu_tanh")
    'gelu_new'
    """
    return next(hf_activation for hf_activation, name in ACTIVATIONS if name == activation)


def with_float32_dtype(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Config fields with dtype float32, as we write weights; the older `torch_dtype` is kept if it is used."""
    is_older = "torch_dtype" in hf_config and "dtype" not in hf_config
    return {**hf_config, "torch_dtype" if is_older else "dtype": "float32"}


def field_value(fields: Mapping[str, Any], name: str, default: Any, where: str) -> Any:
    """Value of a config field, which must have the default's type; of a list of token ids the first."""
    value = fields.get(name)
    if value is None:
        return default
    if name.endswith("token_id") and isinstance(value, list) and value:
        value = value[0]
    is_int_for_float = isinstance(default, float) and type(value) is int and abs(value) < 2**31
    has_type = type(value) is type(default) or is_int_for_float
    if not has_type or (isinstance(value, float) and not math.isfinite(value)):
        raise CheckpointError(f"{where}: {name} must be of type {type(default).__name__}, not {value!r:.60}")
    if type(value) is int and not -1 <= value <= MAX_SIZE:  # -1 stands for no token
        raise CheckpointError(f"{where}: {name} is {value!r:.60}; at most {MAX_SIZE} and not negative is allowed")
    return value


def check_vocab_size(fields: Mapping[str, Any], name: str, where: str) -> None:
    """Raise where a vocabulary size is 0, which in a setting of ours stands for "by the tokenizer"."""
    if fields.get(name) == 0:
        raise CheckpointError(f"{where}: {name} is 0; at least 1 is needed")


def nested_value(values: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted path of nested mappings.

    >>> nested_value({"stack": {"num_heads": 8}}, "stack.num_heads")
    8
    """
    for name in path.split("."):
        values = values[name]
    return values


class WeightMatcher:
    """Match the tensors of a file with a model's weights, by name and shape, before any tensor is read.

    HF names are normalized: without the prefix of the model class and with current spellings. The tensors of several
    HF names are rows of one of our weights. Adapters fill `report` and add `assemble`.
    """

    def __init__(
        self,
        shapes: Shapes,
        stored: Mapping[str, str],
        table: Mapping[str, tuple[str, ...]],
        copies: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.report = WeightReport()
        self.weights_to_initialize: list[str] = []
        self._shapes = shapes  # name in the file → shape
        self._stored = stored  # HF name → name in the file
        self._table = dict(table)  # our name → HF names
        self._buffers: list[str] = []  # HF names that are read only to be checked
        self._copies = {}  # our name → HF names of tied copies in the file
        for name, hf_names in copies.items():
            self._copies[name] = tuple(hf_name for hf_name in hf_names if hf_name in stored)

    @property
    def tensors_to_read(self) -> list[str]:
        """Names, as in the file, of the tensors to read."""
        hf_names: list[str] = []
        for name, parts in self._table.items():
            if name not in self.weights_to_initialize:
                hf_names += parts
        for copies in self._copies.values():
            hf_names += copies
        hf_names += self._buffers
        return [self._stored[hf_name] for hf_name in dict.fromkeys(hf_names)]

    def _check_shape(self, hf_name: str, *allowed: tuple[int, ...]) -> None:
        """Raise where a tensor of the file has none of the allowed shapes; the first one is named."""
        stored = self._stored[hf_name]
        if self._shapes[stored] not in allowed:
            raise CheckpointError(
                f"{stored} has shape {list(self._shapes[stored])}, config.json asks for {list(allowed[0])}"
            )

    def _check_missing(self, hf_names: list[str]) -> None:
        """Raise where weights are missing from the file."""
        if hf_names:
            raise CheckpointError(f"{len(hf_names)} weights are missing, {', '.join(hf_names[:5])} among them")

    def _fill_report(self) -> None:
        """Sort the names in the file into loaded, renamed and ignored ones."""
        for hf_name, stored in self._stored.items():
            current = self._current_name(hf_name, stored)
            if current is None:
                self.report.ignored.append(stored)
                reason = self._ignored_reason(hf_name)
                if reason:
                    self.report.reasons[stored] = reason
            elif current == stored:
                self.report.loaded.append(stored)
            else:
                self.report.renamed[stored] = current

    def _current_name(self, hf_name: str, stored: str) -> str | None:
        """Name that transformers gives a tensor of the file today; None for one that is not used."""
        raise NotImplementedError

    def _ignored_reason(self, hf_name: str) -> str:
        """Reason why a tensor of the file is not used, where the adapter knows it."""
        return ""

    def _note_difference(self, copy: str, hf_name: str) -> None:
        """Note in the report that a tied copy differs from the weight that is used."""
        self.report.notes.append(f"{copy} differs from {hf_name} although they are tied: {hf_name} is used")

    def _by_hf_name(self, arrays: Mapping[str, Array]) -> Arrays:
        """Arrays that were read, by HF name."""
        return {hf_name: arrays[stored] for hf_name, stored in self._stored.items() if stored in arrays}

    @staticmethod
    def _concatenate(hf_arrays: Mapping[str, Array], hf_names: tuple[str, ...]) -> Array:
        """One of our weights from the arrays that are its rows."""
        parts = [hf_arrays[hf_name] for hf_name in hf_names]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def modernize_ending(name: str, spellings: Iterable[tuple[str, str]]) -> str:
    """Replace older endings of a weight's name by current ones.

    >>> modernize_ending("LayerNorm.gamma", [("LayerNorm.gamma", "LayerNorm.weight")])
    'LayerNorm.weight'
    """
    for old, new in spellings:
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name
