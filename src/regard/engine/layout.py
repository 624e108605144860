"""Arrays of a model in the engine: their order, shapes and dtypes, and packing of float32 weights into them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from regard.config.block import BlockConfig
from regard.config.description import StackDescription
from regard.config.models import BertConfig
from regard.engine.description import EngineConfig, ModelDescription, describe_model
from regard.engine.library import CODES, load_library, pointer
from regard.errors import UsageError

PRECISIONS = tuple(CODES["precision"])
BLOCK_OUTPUTS = 16  # outputs of a block of packed weights
ALIGNMENT = 64  # bytes; every array starts at a multiple of it

Array = NDArray[Any]
Weights = Mapping[str, NDArray[np.float32]]
Model = EngineConfig | ModelDescription


@dataclass(frozen=True)
class ArraySpec:
    """One array: its name in the engine file, dtype and shape, and how the library identifies it."""

    name: str
    dtype: DTypeLike
    shape: tuple[int, ...]
    slot: str = ""  # a name of `CODES["slot"]`; empty where the library does not take the array
    part: str = "weight"  # a name of `CODES["part"]`
    layer: int = 0

    @property
    def num_bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class WeightSpec:
    """A layer with weights: its kind and sizes, the names of its weights, and the arrays that they become."""

    kind: str  # embedding, table (of positions or token types), norm or linear
    name: str
    outputs: int
    inputs: int
    weight: str
    bias: str = ""  # empty where there is none: zeros are packed
    precision: str = ""  # where it differs from the model's
    slot: str = ""  # a name of `CODES["slot"]`; empty where the library does not take the layer
    layer: int = 0
    adds_one: bool = False  # whether a norm multiplies by 1 + weight

    def array_specs(self, precision: str) -> list[ArraySpec]:
        """Arrays of these weights, in the library's order."""
        if self.kind == "embedding":
            dtype = np.float32 if precision == "float32" else np.uint16
            return [self._array_spec("weight", dtype, (self.outputs, self.inputs))]
        if self.kind == "table":
            return [self._array_spec("weight", np.float32, (self.outputs, self.inputs))]
        padded_shape = (_pad_outputs(self.outputs),)
        bias = self._array_spec("bias", np.float32, padded_shape)
        if self.kind == "norm":
            return [self._array_spec("weight", np.float32, padded_shape), bias]
        precision = self.precision or precision
        num_bytes = load_library().handle.regard_packed_bytes(self.outputs, self.inputs, CODES["precision"][precision])
        packed = self._array_spec("packed", np.uint8, (num_bytes,), part="weight")
        if precision == "int8":
            scales = self._array_spec("scales", np.float32, padded_shape)
            corrections = self._array_spec("corrections", np.int32, padded_shape)
            return [packed, scales, corrections, bias]
        return [packed, bias]

    def _array_spec(self, name: str, dtype: DTypeLike, shape: tuple[int, ...], part: str = "") -> ArraySpec:
        return ArraySpec(
            f"{self.name}.{name}",
            dtype,
            shape=shape,
            slot=self.slot,
            part=part or name,
            layer=self.layer,
        )

    def pack(self, arrays: list[Array], weights: Weights, precision: str) -> None:
        """Fill the arrays of `array_specs` from float32 weights."""
        weight = np.ascontiguousarray(weights[self.weight], dtype=np.float32)
        if self.kind in ("embedding", "table"):
            (table,) = arrays
            table[:] = to_bf16(weight) if table.dtype == np.uint16 else weight
            return
        bias = arrays[-1]
        bias[:] = 0
        if self.bias in weights:
            bias[: self.outputs] = weights[self.bias]
        if self.kind == "norm":
            arrays[0][:] = 0
            arrays[0][: self.outputs] = weight + np.float32(1) if self.adds_one else weight
            return
        packed = arrays[0]
        has_scales = len(arrays) == 4
        is_packed = load_library().handle.regard_pack_weights(
            pointer(weight),
            self.outputs,
            self.inputs,
            CODES["precision"][self.precision or precision],
            pointer(packed),
            pointer(arrays[1]) if has_scales else None,
            pointer(arrays[2]) if has_scales else None,
        )
        if not is_packed:
            raise UsageError(f"{self.weight} cannot be packed as int8: it has values that are not finite numbers")

    def unpack(self, arrays: list[Array], precision: str) -> dict[str, NDArray[np.float32]]:
        """Weights by name from the arrays of `array_specs`, dequantized."""
        if self.kind in ("embedding", "table"):
            (table,) = arrays
            return {self.weight: from_bf16(table) if table.dtype == np.uint16 else table}
        biases = {self.bias: arrays[-1][: self.outputs]} if self.bias else {}
        if self.kind == "norm":
            weight = arrays[0][: self.outputs]
            return {self.weight: weight - np.float32(1) if self.adds_one else weight, **biases}
        precision = self.precision or precision
        weight = self._unpack_blocks(arrays[0], precision)
        if precision == "int8":
            scales = arrays[1][: self.outputs, None]
            weight = weight * scales
        return {self.weight: weight, **biases}

    def _unpack_blocks(self, packed: Array, precision: str) -> NDArray[np.float32]:  # [outputs, inputs]
        """Reorder packed blocks [blocks, input groups, outputs of a block, inputs of a group] to rows."""
        group_size = {"float32": 1, "bf16": 2, "int8": 4}[precision]
        dtype = {"float32": np.float32, "bf16": np.uint16, "int8": np.int8}[precision]
        padded_outputs = _pad_outputs(self.outputs)
        blocks = packed.view(dtype).reshape(padded_outputs // BLOCK_OUTPUTS, -1, BLOCK_OUTPUTS, group_size)
        rows = blocks.transpose(0, 2, 1, 3).reshape(padded_outputs, -1)
        rows = np.ascontiguousarray(rows[: self.outputs, : self.inputs])
        return from_bf16(rows) if precision == "bf16" else rows.astype(np.float32)


# ---- the weights of a model


def weight_specs(config: Model) -> Iterator[WeightSpec]:
    """Weights of a model in the library's order; an encoder's head comes last."""
    yield from _model_specs(describe_model(config))
    if isinstance(config, BertConfig):
        yield from head_specs(config)


def head_specs(config: BertConfig) -> Iterator[WeightSpec]:
    """Weights of an encoder's head, which stay float32."""
    if config.has_pooler:
        yield replace(_linear("pooler", config.hidden_size, config.hidden_size), precision="float32")
    if config.num_outputs:
        classifier = _linear("classifier", config.num_outputs, config.hidden_size, has_bias=config.classifier_bias)
        yield replace(classifier, precision="float32")


def _model_specs(model: ModelDescription) -> Iterator[WeightSpec]:
    hidden_size = model.hidden_size
    embedding_size = model.embedding_size or hidden_size
    if model.encoder is not None:
        yield _embedding(model.source_embedding, model.source_vocab_size, embedding_size, "source_embedding")
    if model.decoder is not None and not model.share_embeddings:
        yield _embedding(model.target_embedding, model.target_vocab_size, hidden_size, "target_embedding")
    if model.positions == "learned" and model.encoder is not None:
        yield _table(model.source_positions, model.max_positions, embedding_size, "source_positions")
    if model.positions == "learned" and model.decoder is not None:
        yield _table(model.target_positions, model.max_positions, hidden_size, "target_positions")
    if model.num_token_types:
        yield _table("token_type_embedding", model.num_token_types, embedding_size, "token_types")
    if model.encoder is not None:
        if model.embedding_norm:
            yield _norm("embedding_norm", embedding_size, model.encoder.block, "embedding_norm")
        if model.embedding_size:
            yield _linear("embedding_projection", hidden_size, embedding_size, "embedding_projection")
        yield from _stack_specs("encoder", model.encoder)
    if model.decoder is not None:
        yield from _stack_specs("decoder", model.decoder)
        yield _output(model.target_vocab_size, hidden_size, model.output, model.output_bias)


def _stack_specs(side: str, stack: StackDescription) -> Iterator[WeightSpec]:
    """Weights of a stack; `side`, encoder or decoder, begins their names and those of the library's slots."""
    config = stack.block
    for index, num_buckets in stack.bias_tables.items():
        yield _table(stack.bias_names[index], num_buckets, config.num_heads, f"{side}_relative_bias", layer=index)
    for index in range(stack.num_blocks):
        yield from _block_specs(side, index, config)
    if config.has_input_norms:
        yield _norm(f"{side}.final_norm", config.hidden_size, config, f"{side}_norm")


def _block_specs(side: str, index: int, config: BlockConfig) -> Iterator[WeightSpec]:
    """Weights of one block."""
    name = f"{side}.layers.{index}"
    hidden_size = config.hidden_size
    query_width = config.num_heads * config.key_dim
    context_width = config.num_heads * config.value_dim
    key_value_width = config.kv_heads * (config.key_dim + config.value_dim)
    bias = config.bias

    def linear(weight: str, outputs: int, inputs: int, slot: str, has_bias: bool) -> WeightSpec:
        return _linear(f"{name}.{weight}", outputs, inputs, f"{side}_{slot}", layer=index, has_bias=has_bias)

    yield from _sublayer_norms(side, index, config, "attention_norm", "self")
    yield linear("attention.qkv", query_width + key_value_width, hidden_size, "self_qkv", bias.qkv)
    yield linear("attention.out", hidden_size, context_width, "self_out", bias.output)
    yield from _head_norms(side, index, config, "attention", "self")
    if config.cross_attention:
        yield from _sublayer_norms(side, index, config, "cross_attention_norm", "cross")
        yield linear("cross_attention.query", query_width, hidden_size, "cross_query", bias.qkv)
        yield linear("cross_attention.key_value", key_value_width, hidden_size, "cross_key_value", bias.qkv)
        yield linear("cross_attention.out", hidden_size, context_width, "cross_out", bias.output)
        yield from _head_norms(side, index, config, "cross_attention", "cross")
    up_size = config.feed_forward_size * (2 if config.gated else 1)
    yield from _sublayer_norms(side, index, config, "feed_forward_norm", "feed_forward")
    yield linear("feed_forward.up", up_size, hidden_size, "feed_forward_up", bias.feed_forward)
    yield linear("feed_forward.down", hidden_size, config.feed_forward_size, "feed_forward_down", bias.feed_forward)


def _sublayer_norms(side: str, index: int, config: BlockConfig, name: str, slot: str) -> Iterator[WeightSpec]:
    """Norms around a sublayer, by their placement."""
    prefix = f"{side}.layers.{index}"
    is_absent = slot == "self" and index == 0 and not config.first_attention_norm
    if config.norm_placement != "none" and not is_absent:
        yield _norm(f"{prefix}.{name}", config.hidden_size, config, f"{side}_{slot}_norm", layer=index)
    if config.norm_placement == "both":
        output_name = name.replace("_norm", "_output_norm")
        yield _norm(f"{prefix}.{output_name}", config.hidden_size, config, f"{side}_{slot}_output_norm", layer=index)


def _head_norms(side: str, index: int, config: BlockConfig, name: str, slot: str) -> Iterator[WeightSpec]:
    """Norms of each head's queries and keys."""
    if config.qk_norm:
        prefix = f"{side}.layers.{index}.{name}"
        yield _norm(f"{prefix}.query_norm", config.key_dim, config, f"{side}_{slot}_query_norm", layer=index)
        yield _norm(f"{prefix}.key_norm", config.key_dim, config, f"{side}_{slot}_key_norm", layer=index)


def _embedding(name: str, vocab_size: int, hidden_size: int, slot: str) -> WeightSpec:
    return WeightSpec("embedding", name, outputs=vocab_size, inputs=hidden_size, weight=f"{name}.weight", slot=slot)


def _table(name: str, rows: int, columns: int, slot: str, layer: int = 0) -> WeightSpec:
    weight = f"{name}.weight"
    return WeightSpec("table", name, outputs=rows, inputs=columns, weight=weight, slot=slot, layer=layer)


def _norm(name: str, size: int, config: BlockConfig, slot: str, layer: int = 0) -> WeightSpec:
    has_bias = config.norm == "layer" and config.bias.norm
    return WeightSpec(
        "norm",
        name,
        outputs=size,
        inputs=1,
        weight=f"{name}.weight",
        bias=f"{name}.bias" if has_bias else "",
        slot=slot,
        layer=layer,
        adds_one=config.norm == "rms_plus_one",
    )


def _linear(
    name: str, outputs: int, inputs: int, slot: str = "", *, layer: int = 0, has_bias: bool = True
) -> WeightSpec:
    return WeightSpec(
        "linear",
        name,
        outputs=outputs,
        inputs=inputs,
        weight=f"{name}.weight",
        bias=f"{name}.bias" if has_bias else "",
        slot=slot,
        layer=layer,
    )


def _output(vocab_size: int, hidden_size: int, weight: str, has_bias: bool) -> WeightSpec:
    """Output layer of a decoder."""
    return WeightSpec(
        "linear",
        "lm_head",
        outputs=vocab_size,
        inputs=hidden_size,
        weight=weight,
        bias="lm_head_bias" if has_bias else "",
        slot="output",
    )


# ---- packing


def array_specs(config: Model, precision: str) -> list[ArraySpec]:
    """All arrays of a model, in the library's order."""
    return list(itertools.chain.from_iterable(spec.array_specs(precision) for spec in weight_specs(config)))


def pack_weights(config: Model, weights: Weights, precision: str) -> list[Array]:
    """Pack float32 weights into the arrays of a model, which share one allocation."""
    arrays = allocate_arrays(array_specs(config, precision), np.zeros)
    remaining = iter(arrays)
    for spec in weight_specs(config):
        num_arrays = len(spec.array_specs(precision))
        spec.pack(list(itertools.islice(remaining, num_arrays)), weights, precision)
    return arrays


def unpack_weights(config: Model, arrays: Sequence[Array], precision: str) -> dict[str, NDArray[np.float32]]:
    """Dequantized weights by name, from the arrays of a model."""
    remaining = iter(arrays)
    weights: dict[str, NDArray[np.float32]] = {}
    for spec in weight_specs(config):
        num_arrays = len(spec.array_specs(precision))
        unpacked = spec.unpack(list(itertools.islice(remaining, num_arrays)), precision)
        for name, weight in unpacked.items():
            weights.setdefault(name, weight)  # a tied output repeats the embedding
    return weights


def allocate_arrays(specs: list[ArraySpec], allocate: Callable[..., Array]) -> list[Array]:
    """Aligned views for arrays into one allocation; `allocate` is called with a number of bytes and a dtype."""
    aligned_sizes = [-(-spec.num_bytes // ALIGNMENT) * ALIGNMENT for spec in specs]
    offsets = [0, *itertools.accumulate(aligned_sizes)]
    memory = allocate(offsets[-1] + ALIGNMENT, dtype=np.uint8)
    start = -pointer(memory) % ALIGNMENT
    return [
        memory[start + offset : start + offset + spec.num_bytes].view(spec.dtype).reshape(spec.shape)
        for offset, spec in zip(offsets[:-1], specs, strict=True)
    ]


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round float32 to bf16, ties to even, as bits in uint16.

    >>> to_bf16(np.array([1.0, 1.00390625, 1.01171875], np.float32)).tolist()
    [16256, 16256, 16258]
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def from_bf16(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Convert bf16, as bits in uint16, to float32.

    >>> from_bf16(np.array([16256, 16258], np.uint16)).tolist()
    [1.0, 1.015625]
    """
    return (values.astype(np.uint32) << 16).view(np.float32)


def _pad_outputs(outputs: int) -> int:
    return -(-outputs // BLOCK_OUTPUTS) * BLOCK_OUTPUTS
