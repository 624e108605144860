"""Weights of Hugging Face's encoders: names of each type, both ways, and matching of a file's tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from regard.checkpoint.hf.adapter import Shapes, WeightMatcher, modernize_ending
from regard.checkpoint.hf.causal import NATIVE_TYPE as NATIVE_CAUSAL_TYPE
from regard.checkpoint.hf.causal import TRANSPOSED, change_layout
from regard.checkpoint.hf.causal_encoders import causal_name
from regard.checkpoint.hf.encoder_schema import EncoderType, Names
from regard.checkpoint.hf.encoder_types import ENCODER_TYPES, NATIVE_TYPE
from regard.checkpoint.unused_weights import BUFFER, HEAD_REASON, TIED_COPY, UNUSED_POOLER
from regard.checkpoint.weights import Array, Arrays
from regard.config.models import BertConfig

if TYPE_CHECKING:
    from torch import Tensor

_NATIVE_OTHER_HEADS = {"causal-lm": "lm_head"}
_OLDER_ENDINGS = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))


def is_in_module(normalized_name: str, module: str) -> bool:
    """Whether a weight is, or belongs to, a module of a head."""
    module = module.lstrip(".")
    return normalized_name == module or normalized_name.startswith(f"{module}.")


def normalize_names(names: Iterable[str], row: EncoderType) -> dict[str, str]:
    """Names without what may vary (the prefix, older spellings of norms), each with its name in the file."""
    return {modernize_ending(stored.removeprefix(row.prefix), _OLDER_ENDINGS): stored for stored in names}


def weight_names(config: BertConfig, model_type: str, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Our weight names, each with the HF names of a new folder whose tensors are its rows."""
    if model_type == NATIVE_TYPE:
        return {name: (name,) for name in names}
    if model_type == NATIVE_CAUSAL_TYPE:
        return {name: (causal_name(name),) for name in names}
    row = ENCODER_TYPES[model_type]
    prefix = "" if config.head == "plain" else row.prefix  # a bare backbone is saved without its prefix
    modules: dict[str, tuple[str, ...]] = {name: (f"{prefix}{hf_name}",) for name, hf_name in row.backbone}
    for layer in range(config.layer_groups or config.stack.num_layers):
        layer_prefix = f"{prefix}{row.layer_prefix.format(layer)}"
        for name, parts in row.block:
            modules[f"encoder.layers.{layer}.{name}"] = tuple(layer_prefix + part for part in parts)
    modules |= _head_modules(row.heads[config.head].names, prefix)
    table = {}
    for name in names:
        if name in modules:
            table[name] = modules[name]
        else:
            module, _, leaf = name.rpartition(".")
            table[name] = tuple(f"{part}.{leaf}" for part in modules[module])
    return table


def _head_modules(names: Names, prefix: str) -> dict[str, tuple[str, ...]]:
    """Modules of a head; those with a leading dot are in the backbone, under its prefix."""
    return {name: (f"{prefix}{hf_name[1:]}" if hf_name.startswith(".") else hf_name,) for name, hf_name in names}


def _weight_layout(row: EncoderType, name: str) -> str:
    """Layout of one of our weights in a file of a type; empty where it is ours. A transposed matrix has a plain bias.

    >>> _weight_layout(ENCODER_TYPES["gpt2"], "encoder.layers.0.attention.qkv.weight")
    'transposed'
    """
    module, _, leaf = name.rpartition(".")
    layout = row.layouts.get(".".join(module.split(".")[3:]), "")
    return "" if layout == TRANSPOSED and leaf == "bias" else layout


def to_hf_weights(config: BertConfig, model_type: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights to Hugging Face's names; fused matrices are split, tied copies left out."""
    import torch

    row = ENCODER_TYPES.get(model_type)
    hf_weights: dict[str, Tensor] = {}
    for name, hf_names in weight_names(config, model_type, weights).items():
        layout = _weight_layout(row, name) if row is not None else ""
        weight = change_layout(weights[name], layout, 3, config.stack.num_heads)
        for hf_name, part in zip(hf_names, weight.chunk(len(hf_names)), strict=True):
            hf_weights[hf_name] = part.contiguous().clone()
    if row is None:
        return hf_weights
    bias_copy = row.tied_copies.get("mlm_head_bias")
    if bias_copy and not config.tie_embeddings and "mlm_head_bias" in weights:
        hf_weights[bias_copy] = weights["mlm_head_bias"].clone()  # of the two, an untied model of theirs uses this one
    for layer in row.heads[config.head].unused_layers:
        hf_weights[f"{row.prefix}{layer}.weight"] = torch.zeros(config.hidden_size, config.hidden_size)
        hf_weights[f"{row.prefix}{layer}.bias"] = torch.zeros(config.hidden_size)
    return hf_weights


class EncoderWeightMatcher(WeightMatcher):
    """Match the tensors of a file with the weights of an encoder."""

    def __init__(
        self,
        config: BertConfig,
        model_type: str,
        shapes: Shapes,
        expected: Shapes,
        *,
        optional: Sequence[str] = (),
        replaced: Sequence[str] = (),
    ) -> None:
        """Match the file's `shapes` with the `expected` ones of our weights, or raise `CheckpointError`.

        Weights whose names begin with one of `optional` are initialized where they are missing, those with one of
        `replaced` in any case.
        """
        self.config = config
        self._row = ENCODER_TYPES.get(model_type)
        self._new_names = weight_names(config, model_type, expected)  # our name → HF names of a new folder
        prefix = ""
        stored = {name: name for name in shapes}
        copies: dict[str, tuple[str, ...]] = {}
        if self._row is not None:
            prefix = self._row.prefix
            stored = normalize_names(shapes, self._row)
            copies = {name: (hf_name,) for name, hf_name in self._row.tied_copies.items()}
            if not config.tie_embeddings:
                copies.pop("token_embedding.weight", None)
        table = {}
        for name, hf_names in self._new_names.items():
            table[name] = tuple(hf_name.removeprefix(prefix) for hf_name in hf_names)
        super().__init__(shapes, stored, table, copies)
        self._use_copies(expected)
        self._compare(expected, tuple(optional), tuple(replaced))
        self._current_names = self._find_current_names()
        self._fill_report()

    def assemble(self, arrays: Mapping[str, Array], initial_weights: Mapping[str, Array]) -> Arrays:
        """Our weights from the float32 arrays that were read, and initial weights for the others."""
        hf_arrays = self._by_hf_name(arrays)
        weights: Arrays = {}
        for name, hf_names in self._table.items():
            if name in self.weights_to_initialize:
                weights[name] = initial_weights[name]
            else:
                stored = self._concatenate(hf_arrays, hf_names)
                array = change_layout(stored, self._layout(name), self.config.stack.num_heads, 3)
                weights[name] = np.ascontiguousarray(array)
        for name, copies in self._copies.items():
            for copy in copies:
                if name in weights and not np.array_equal(hf_arrays[copy], weights[name]):
                    self._note_difference(copy, self._new_names[name][0])
        return weights

    def _layout(self, name: str) -> str:
        return "" if self._row is None else _weight_layout(self._row, name)

    def _use_copies(self, expected: Shapes) -> None:
        """Read the tied copy of a weight that the file lacks; of an untied bias, the one beside the output matrix."""
        for name, copies in self._copies.items():
            if not copies or name not in expected:
                continue
            if self._table[name][0] not in self._stored or not self.config.tie_embeddings:
                self._table[name] = copies

    def _compare(self, expected: Shapes, optional: tuple[str, ...], replaced: tuple[str, ...]) -> None:
        """Check that the file has each of our weights in its shape, or that it may be initialized."""
        missing_names = []
        for name, (rows, *other_dims) in expected.items():
            hf_names = self._table[name]
            part_shape = (rows // len(hf_names), *other_dims)
            if self._layout(name) == TRANSPOSED:
                part_shape = part_shape[::-1]
            missing = [hf_name for hf_name in hf_names if hf_name not in self._stored]
            if name.startswith(replaced) or (missing and name.startswith(optional)):
                self.weights_to_initialize.append(name)
                self.report.missing += self._new_names[name]
                continue
            for new_name, hf_name in zip(self._new_names[name], hf_names, strict=True):
                if hf_name in missing:
                    missing_names.append(new_name)
                else:
                    self._check_shape(hf_name, part_shape)
        self._check_missing(missing_names)

    def _find_current_names(self) -> dict[str, str]:
        """HF names of the tensors to read, each with its name in a new folder."""
        current_names: dict[str, str] = {}
        for name, hf_names in self._table.items():
            if name not in self.weights_to_initialize:
                current_names |= zip(hf_names, self._new_names[name], strict=True)
        return current_names

    def _current_name(self, hf_name: str, stored: str) -> str | None:
        return self._current_names.get(hf_name)

    def _ignored_reason(self, hf_name: str) -> str:
        buffers = () if self._row is None else self._row.buffers
        if hf_name.endswith(("position_ids", "token_type_ids", *buffers)):
            return BUFFER
        if self._is_tied_copy(hf_name):
            return TIED_COPY
        heads = {} if self._row is None else self._row.heads
        for head, names in heads.items():
            if any(is_in_module(hf_name, module) for _, module in names.names):
                return UNUSED_POOLER if head == "plain" else HEAD_REASON.format(names.architecture)
        others = _NATIVE_OTHER_HEADS if self._row is None else self._row.other_heads
        for head, module in others.items():
            if is_in_module(hf_name, module):
                return HEAD_REASON.format(head)
        return "not a weight that this type of model has"

    def _is_tied_copy(self, hf_name: str) -> bool:
        """Whether a tensor is a copy of another one; of an untied bias, the copy may be read in place of the bias."""
        for name, copies in self._copies.items():
            is_replaced = self._table.get(name) == copies and hf_name.endswith(".bias")
            if hf_name in copies or (copies and is_replaced):
                return True
        return False
