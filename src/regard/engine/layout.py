"""Which arrays a model has in the engine, in the order that the library takes them, and how they are made."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.engine.library import CODES, load_library, pointer

PRECISIONS = tuple(CODES["precision"])
LANES = 16  # outputs of a block
BOUNDARY = 64  # bytes that arrays begin at a multiple of

Array = NDArray[Any]
Weights = Mapping[str, NDArray[np.float32]]
EngineConfig = TransformerConfig | BertConfig | GptConfig


@dataclass(frozen=True)
class ArraySpec:
    """One array: its name in a file, its number format and shape, and the codes by which the library finds it."""

    name: str
    dtype: DTypeLike
    shape: tuple[int, ...]
    slot: str = ""  # a name of `CODES["slot"]`; empty: the library does not take it
    part: str = "weight"  # a name of `CODES["part"]`
    layer: int = 0

    @property
    def bytes(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class WeightSpec:
    """Something with weights: its kind, its name, its outputs and inputs, and the names of its weights."""

    kind: str  # words, places, norm or linear
    name: str
    outputs: int
    inputs: int
    weight: str
    bias: str = ""
    precision: str = ""  # where it is not the model's
    slot: str = ""  # a name of `CODES["slot"]`; empty: the library does not take it
    layer: int = 0

    def array_specs(self, precision: str) -> list[ArraySpec]:
        """Return the arrays it has, in the library's order."""
        if self.kind == "words":
            return [self._array("weight", np.float32 if precision == "float32" else np.uint16, self._shape)]
        if self.kind == "places":
            return [self._array("weight", np.float32, self._shape)]
        padded = (_padded(self.outputs),)
        bias = self._array("bias", np.float32, padded)
        if self.kind == "norm":
            return [self._array("weight", np.float32, padded), bias]
        precision = self.precision or precision
        size = load_library().handle.regard_packed_bytes(self.outputs, self.inputs, CODES["precision"][precision])
        packed = self._array("packed", np.uint8, (size,), part="weight")
        if precision == "int8":
            scales = self._array("scales", np.float32, padded)
            corrections = self._array("corrections", np.int32, padded)
            return [packed, scales, corrections, bias]
        return [packed, bias]

    def _array(self, name: str, dtype: DTypeLike, shape: tuple[int, ...], part: str = "") -> ArraySpec:
        return ArraySpec(
            f"{self.name}.{name}",
            dtype,
            shape=shape,
            slot=self.slot,
            part=part or name,
            layer=self.layer,
        )

    @property
    def _shape(self) -> tuple[int, int]:
        return self.outputs, self.inputs

    def pack(self, arrays: list[Array], weights: Weights, precision: str) -> None:
        """Write its arrays from weights under our names."""
        weight = np.ascontiguousarray(weights[self.weight], dtype=np.float32)
        if self.kind in ("words", "places"):
            arrays[0][:] = to_bf16(weight) if arrays[0].dtype == np.uint16 else weight
            return
        bias = arrays[-1]
        bias[:] = 0
        if self.bias in weights:
            bias[: self.outputs] = weights[self.bias]
        if self.kind == "norm":
            arrays[0][:] = 0
            arrays[0][: self.outputs] = weight
            return
        places = [pointer(array) for array in arrays[:-1]]
        scales, corrections = places[1:] or (None, None)
        code = CODES["precision"][self.precision or precision]
        load_library().handle.regard_pack_weights(
            pointer(weight), self.outputs, self.inputs, code, places[0], scales, corrections
        )

    def unpack(self, arrays: list[Array], precision: str) -> dict[str, NDArray[np.float32]]:
        """Return its weights under our names, from its arrays."""
        if self.kind in ("words", "places"):
            return {self.weight: from_bf16(arrays[0]) if arrays[0].dtype == np.uint16 else arrays[0]}
        bias = {self.bias: arrays[-1][: self.outputs]}
        if self.kind == "norm":
            return {self.weight: arrays[0][: self.outputs], **bias}
        precision = self.precision or precision
        group = {"float32": 1, "bf16": 2, "int8": 4}[precision]
        kind = {"float32": np.float32, "bf16": np.uint16, "int8": np.int8}[precision]
        blocks = arrays[0].view(kind).reshape(-(-self.outputs // LANES), -1, LANES, group)
        rows = blocks.transpose(0, 2, 1, 3).reshape(-(-self.outputs // LANES) * LANES, -1)
        rows = np.ascontiguousarray(rows[: self.outputs, : self.inputs])
        weight = from_bf16(rows) if precision == "bf16" else rows.astype(np.float32)
        return {self.weight: weight * arrays[1][: self.outputs, None] if precision == "int8" else weight, **bias}


def weight_specs(config: EngineConfig) -> Iterator[WeightSpec]:
    """Yield what a model is made of, in the library's order; the heads of an encoder are behind that."""
    if isinstance(config, TransformerConfig):
        return _translator(config)
    if isinstance(config, GptConfig):
        return _gpt(config)
    return itertools.chain(_encoder(config), head_specs(config))


def _encoder(config: BertConfig) -> Iterator[WeightSpec]:
    width = config.hidden_size
    yield WeightSpec("words", "words", config.vocab_size, width, "words.weight", slot="source_embedding")
    places = config.position_offset + config.max_positions
    yield WeightSpec("places", "places", places, width, "places.weight", slot="source_positions")
    if config.num_token_types:
        yield WeightSpec("places", "types", config.num_token_types, width, "types.weight", slot="token_types")
    yield _norm("norm", width, "embedding_norm")
    for number in range(config.stack.num_layers):
        yield from _block("stack", number, width, config.stack, side="encoder", cross=False)
    if config.norm == "before":
        yield _norm("stack.norm", width, "encoder_norm")


def head_specs(config: BertConfig) -> Iterator[WeightSpec]:
    """Yield what makes scores of an encoder's states; it stays as fine as it was learned."""
    if config.has_pooler:
        yield replace(_linear("pooler", config.hidden_size, config.hidden_size), precision="float32")
    if config.num_outputs:
        yield replace(_linear("output", config.num_outputs, config.hidden_size), precision="float32")


def _translator(config: TransformerConfig) -> Iterator[WeightSpec]:
    width = config.hidden_size
    sides = {"words": config.target_vocab_size} if config.share_embeddings else {
        "source_words": config.source_vocab_size, "target_words": config.target_vocab_size
    }  # fmt: skip
    for (name, size), slot in zip(sides.items(), ("source_embedding", "target_embedding"), strict=False):
        yield WeightSpec("words", name, size, width, f"{name}.weight", slot=slot)
    if config.positions == "learned":
        for name in ("source_positions", "target_positions"):
            yield WeightSpec("places", name, config.max_positions, width, f"{name}.weight", slot=name)
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        for number in range(stack.num_layers):
            yield from _block(name, number, width, stack, side=name, cross=name == "decoder")
        if config.norm == "before":
            yield _norm(f"{name}.norm", width, f"{name}_norm")
    weight = f"{[*sides][-1]}.weight" if config.tie_embeddings else "output.weight"
    yield WeightSpec("linear", "output", config.target_vocab_size, width, weight, "output_bias", slot="output")


def _gpt(config: GptConfig) -> Iterator[WeightSpec]:
    width = config.hidden_size
    yield WeightSpec("words", "words", config.vocab_size, width, "words.weight", slot="target_embedding")
    if config.positions == "learned":
        yield WeightSpec(
            "places", "positions", config.max_positions, width, "positions.weight", slot="target_positions"
        )
    for number in range(config.stack.num_layers):
        yield from _block("stack", number, width, config.stack, side="decoder", cross=False)
    yield _norm("stack.norm", width, "decoder_norm")
    weight = "words.weight" if config.tie_embeddings else "output.weight"
    yield WeightSpec(
        "linear", "output", config.vocab_size, width, weight, "output_bias", slot="output"
    )  # it has no bias


def _block(prefix: str, layer: int, width: int, stack: StackConfig, *, side: str, cross: bool) -> Iterator[WeightSpec]:
    """Yield the weights of one layer; `side`, encoder or decoder, tells the library's slots."""
    name = f"{prefix}.blocks.{layer}"
    yield _norm(f"{name}.attention_norm", width, f"{side}_self_norm", layer)
    yield _linear(f"{name}.attention.qkv", 3 * width, width, f"{side}_self_qkv", layer)
    yield _linear(f"{name}.attention.out", width, width, f"{side}_self_out", layer)
    if cross:
        yield _norm(f"{name}.cross_norm", width, f"{side}_cross_norm", layer)
        yield _linear(f"{name}.cross.query", width, width, f"{side}_cross_query", layer)
        yield _linear(f"{name}.cross.key_value", 2 * width, width, f"{side}_cross_key_value", layer)
        yield _linear(f"{name}.cross.out", width, width, f"{side}_cross_out", layer)
    yield _norm(f"{name}.feedforward_norm", width, f"{side}_feed_forward_norm", layer)
    yield _linear(f"{name}.feedforward.inner", stack.feed_forward_size, width, f"{side}_feed_forward_up", layer)
    yield _linear(f"{name}.feedforward.outer", width, stack.feed_forward_size, f"{side}_feed_forward_down", layer)


def _norm(name: str, width: int, slot: str, layer: int = 0) -> WeightSpec:
    return WeightSpec("norm", name, width, 1, f"{name}.weight", f"{name}.bias", slot=slot, layer=layer)


def _linear(name: str, outputs: int, inputs: int, slot: str = "", layer: int = 0) -> WeightSpec:
    return WeightSpec("linear", name, outputs, inputs, f"{name}.weight", f"{name}.bias", slot=slot, layer=layer)


def array_specs(config: EngineConfig, precision: str) -> list[ArraySpec]:
    """Return all arrays of a model, in the library's order."""
    return [slot for part in weight_specs(config) for slot in part.array_specs(precision)]


def pack_weights(config: EngineConfig, weights: Weights, precision: str) -> list[Array]:
    """Return a model's arrays, side by side in one piece of memory."""
    arrays = allocate_arrays(array_specs(config, precision), np.zeros)
    rest = iter(arrays)
    for part in weight_specs(config):
        part.pack([next(rest) for _ in part.array_specs(precision)], weights, precision)
    return arrays


def unpack_weights(config: EngineConfig, arrays: Sequence[Array], precision: str) -> dict[str, NDArray[np.float32]]:
    """Return the weights that a model's arrays stand for, under our names."""
    rest = iter(arrays)
    made: dict[str, NDArray[np.float32]] = {}
    for part in weight_specs(config):
        taken = part.unpack([next(rest) for _ in part.array_specs(precision)], precision)
        made |= {name: array for name, array in taken.items() if name not in made}  # a tied output is its words
    if not getattr(config, "output_bias", False):
        made.pop("output_bias", None)
    return made


def allocate_arrays(specs: list[ArraySpec], allocate: Any) -> list[Array]:
    """Return arrays for slots, each on a boundary, in memory that `room` gives for a number of bytes."""
    places = np.cumsum([0, *(-(-slot.bytes // BOUNDARY) * BOUNDARY for slot in specs)]).tolist()
    memory = allocate(places[-1] + BOUNDARY, dtype=np.uint8)
    first = -pointer(memory) % BOUNDARY
    return [
        memory[first + place : first + place + slot.bytes].view(slot.dtype).reshape(slot.shape)
        for place, slot in zip(places[:-1], specs, strict=True)
    ]


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return numbers as bf16, rounded to even, in the bits of 16-bit ones.

    >>> to_bf16(np.array([1.0, 1.00390625, 1.01171875], np.float32)).tolist()
    [16256, 16256, 16258]
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def from_bf16(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return numbers that are bf16 in the bits of 16-bit ones.

    >>> from_bf16(np.array([16256, 16258], np.uint16)).tolist()
    [1.0, 1.015625]
    """
    return (values.astype(np.uint32) << 16).view(np.float32)


def _padded(size: int) -> int:
    return -(-size // LANES) * LANES
