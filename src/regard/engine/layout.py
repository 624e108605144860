"""Arrays of a model in the engine: their order, shapes and dtypes, and packing of float32 weights into them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.engine.library import CODES, load_library, pointer

PRECISIONS = tuple(CODES["precision"])
BLOCK_OUTPUTS = 16  # outputs of a block of packed weights
ALIGNMENT = 64  # bytes; every array starts at a multiple of it

Array = NDArray[Any]
Weights = Mapping[str, NDArray[np.float32]]
EngineConfig = TransformerConfig | BertConfig | GptConfig


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
    bias: str = ""
    precision: str = ""  # where it differs from the model's
    slot: str = ""  # a name of `CODES["slot"]`; empty where the library does not take the layer
    layer: int = 0

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
            arrays[0][: self.outputs] = weight
            return
        packed = arrays[0]
        has_scales = len(arrays) == 4
        load_library().handle.regard_pack_weights(
            pointer(weight),
            self.outputs,
            self.inputs,
            CODES["precision"][self.precision or precision],
            pointer(packed),
            pointer(arrays[1]) if has_scales else None,
            pointer(arrays[2]) if has_scales else None,
        )

    def unpack(self, arrays: list[Array], precision: str) -> dict[str, NDArray[np.float32]]:
        """Weights by name from the arrays of `array_specs`, dequantized."""
        if self.kind in ("embedding", "table"):
            (table,) = arrays
            return {self.weight: from_bf16(table) if table.dtype == np.uint16 else table}
        bias = arrays[-1][: self.outputs]
        if self.kind == "norm":
            return {self.weight: arrays[0][: self.outputs], self.bias: bias}
        precision = self.precision or precision
        weight = self._unpack_blocks(arrays[0], precision)
        if precision == "int8":
            scales = arrays[1][: self.outputs, None]
            weight = weight * scales
        return {self.weight: weight, self.bias: bias}

    def _unpack_blocks(self, packed: Array, precision: str) -> NDArray[np.float32]:  # [outputs, inputs]
        """Reorder packed blocks [blocks, input groups, outputs of a block, inputs of a group] to rows."""
        group_size = {"float32": 1, "bf16": 2, "int8": 4}[precision]
        dtype = {"float32": np.float32, "bf16": np.uint16, "int8": np.int8}[precision]
        padded_outputs = _pad_outputs(self.outputs)
        blocks = packed.view(dtype).reshape(padded_outputs // BLOCK_OUTPUTS, -1, BLOCK_OUTPUTS, group_size)
        rows = blocks.transpose(0, 2, 1, 3).reshape(padded_outputs, -1)
        rows = np.ascontiguousarray(rows[: self.outputs, : self.inputs])
        return from_bf16(rows) if precision == "bf16" else rows.astype(np.float32)


# ---- the weights of each model


def weight_specs(config: EngineConfig) -> Iterator[WeightSpec]:
    """Weights of a model in the library's order; an encoder's head comes last."""
    if isinstance(config, TransformerConfig):
        return _transformer_specs(config)
    if isinstance(config, GptConfig):
        return _causal_specs(config)
    return itertools.chain(_encoder_specs(config), head_specs(config))


def _encoder_specs(config: BertConfig) -> Iterator[WeightSpec]:
    hidden_size = config.hidden_size
    max_positions = config.position_offset + config.max_positions
    yield _embedding("token_embedding", config.vocab_size, hidden_size, "source_embedding")
    yield _table("position_embedding", max_positions, hidden_size, "source_positions")
    if config.num_token_types:
        yield _table("token_type_embedding", config.num_token_types, hidden_size, "token_types")
    yield _norm("embedding_norm", hidden_size, "embedding_norm")
    for layer in range(config.stack.num_layers):
        yield from _block("encoder", layer, hidden_size, config.stack, side="encoder", has_cross_attention=False)
    if config.norm == "before":
        yield _norm("encoder.final_norm", hidden_size, "encoder_norm")


def head_specs(config: BertConfig) -> Iterator[WeightSpec]:
    """Weights of an encoder's head, which stay float32."""
    if config.has_pooler:
        yield replace(_linear("pooler", config.hidden_size, config.hidden_size), precision="float32")
    if config.num_outputs:
        yield replace(_linear("classifier", config.num_outputs, config.hidden_size), precision="float32")


def _transformer_specs(config: TransformerConfig) -> Iterator[WeightSpec]:
    hidden_size = config.hidden_size
    if config.share_embeddings:
        target_embedding = "token_embedding"
        yield _embedding("token_embedding", config.target_vocab_size, hidden_size, "source_embedding")
    else:
        target_embedding = "target_embedding"
        yield _embedding("source_embedding", config.source_vocab_size, hidden_size, "source_embedding")
        yield _embedding("target_embedding", config.target_vocab_size, hidden_size, "target_embedding")
    if config.positions == "learned":
        for name in ("source_positions", "target_positions"):
            yield _table(name, config.max_positions, hidden_size, name)
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        for layer in range(stack.num_layers):
            yield from _block(side, layer, hidden_size, stack, side=side, has_cross_attention=side == "decoder")
        if config.norm == "before":
            yield _norm(f"{side}.final_norm", hidden_size, f"{side}_norm")
    tied_weight = f"{target_embedding}.weight" if config.tie_embeddings else ""
    yield _output(config.target_vocab_size, hidden_size, tied_weight)


def _causal_specs(config: GptConfig) -> Iterator[WeightSpec]:
    hidden_size = config.hidden_size
    yield _embedding("token_embedding", config.vocab_size, hidden_size, "target_embedding")
    if config.positions == "learned":
        yield _table("positions", config.max_positions, hidden_size, "target_positions")
    for layer in range(config.stack.num_layers):
        yield from _block("decoder", layer, hidden_size, config.stack, side="decoder", has_cross_attention=False)
    yield _norm("decoder.final_norm", hidden_size, "decoder_norm")
    tied_weight = "token_embedding.weight" if config.tie_embeddings else ""
    yield _output(config.vocab_size, hidden_size, tied_weight)


def _block(
    prefix: str, layer: int, hidden_size: int, stack: StackConfig, *, side: str, has_cross_attention: bool
) -> Iterator[WeightSpec]:
    """Weights of one layer; `side`, encoder or decoder, begins the names of the library's slots."""
    name = f"{prefix}.layers.{layer}"
    inner_size = stack.feed_forward_size
    yield _norm(f"{name}.attention_norm", hidden_size, f"{side}_self_norm", layer)
    yield _linear(f"{name}.attention.qkv", 3 * hidden_size, hidden_size, f"{side}_self_qkv", layer)
    yield _linear(f"{name}.attention.out", hidden_size, hidden_size, f"{side}_self_out", layer)
    if has_cross_attention:
        yield _norm(f"{name}.cross_attention_norm", hidden_size, f"{side}_cross_norm", layer)
        yield _linear(f"{name}.cross_attention.query", hidden_size, hidden_size, f"{side}_cross_query", layer)
        yield _linear(
            f"{name}.cross_attention.key_value", 2 * hidden_size, hidden_size, f"{side}_cross_key_value", layer
        )
        yield _linear(f"{name}.cross_attention.out", hidden_size, hidden_size, f"{side}_cross_out", layer)
    yield _norm(f"{name}.feed_forward_norm", hidden_size, f"{side}_feed_forward_norm", layer)
    yield _linear(f"{name}.feed_forward.up", inner_size, hidden_size, f"{side}_feed_forward_up", layer)
    yield _linear(f"{name}.feed_forward.down", hidden_size, inner_size, f"{side}_feed_forward_down", layer)


def _embedding(name: str, vocab_size: int, hidden_size: int, slot: str) -> WeightSpec:
    return WeightSpec("embedding", name, outputs=vocab_size, inputs=hidden_size, weight=f"{name}.weight", slot=slot)


def _table(name: str, rows: int, hidden_size: int, slot: str) -> WeightSpec:
    return WeightSpec("table", name, outputs=rows, inputs=hidden_size, weight=f"{name}.weight", slot=slot)


def _norm(name: str, hidden_size: int, slot: str, layer: int = 0) -> WeightSpec:
    return WeightSpec(
        "norm",
        name,
        outputs=hidden_size,
        inputs=1,
        weight=f"{name}.weight",
        bias=f"{name}.bias",
        slot=slot,
        layer=layer,
    )


def _linear(name: str, outputs: int, inputs: int, slot: str = "", layer: int = 0) -> WeightSpec:
    return WeightSpec(
        "linear",
        name,
        outputs=outputs,
        inputs=inputs,
        weight=f"{name}.weight",
        bias=f"{name}.bias",
        slot=slot,
        layer=layer,
    )


def _output(vocab_size: int, hidden_size: int, tied_weight: str) -> WeightSpec:
    """Output layer of a decoder; a model without output bias gets zeros."""
    return WeightSpec(
        "linear",
        "lm_head",
        outputs=vocab_size,
        inputs=hidden_size,
        weight=tied_weight or "lm_head.weight",
        bias="lm_head_bias",
        slot="output",
    )


# ---- packing


def array_specs(config: EngineConfig, precision: str) -> list[ArraySpec]:
    """All arrays of a model, in the library's order."""
    return list(itertools.chain.from_iterable(spec.array_specs(precision) for spec in weight_specs(config)))


def pack_weights(config: EngineConfig, weights: Weights, precision: str) -> list[Array]:
    """Pack float32 weights into the arrays of a model, which share one allocation."""
    arrays = allocate_arrays(array_specs(config, precision), np.zeros)
    remaining = iter(arrays)
    for spec in weight_specs(config):
        num_arrays = len(spec.array_specs(precision))
        spec.pack(list(itertools.islice(remaining, num_arrays)), weights, precision)
    return arrays


def unpack_weights(config: EngineConfig, arrays: Sequence[Array], precision: str) -> dict[str, NDArray[np.float32]]:
    """Dequantized weights by name, from the arrays of a model."""
    remaining = iter(arrays)
    weights: dict[str, NDArray[np.float32]] = {}
    for spec in weight_specs(config):
        num_arrays = len(spec.array_specs(precision))
        unpacked = spec.unpack(list(itertools.islice(remaining, num_arrays)), precision)
        for name, weight in unpacked.items():
            weights.setdefault(name, weight)  # a tied output repeats the embedding
    if not getattr(config, "output_bias", False):
        weights.pop("lm_head_bias", None)
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
