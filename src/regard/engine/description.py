"""Description of a model for the engine, from the config of any family: stacks and embeddings, and their C structs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

from regard.config.block import BlockConfig
from regard.config.description import (
    LayerDescription,
    StackDescription,
    bert_stack,
    gpt_stack,
    transformer_decoder,
    transformer_encoder,
)
from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.engine.library import CODES, CBlock, CLayer, CModelShape
from regard.errors import ConfigError

EngineConfig = TransformerConfig | BertConfig | GptConfig
Struct = TypeVar("Struct", bound=ctypes.Structure)
# Largest values of settings by name, as `shape.cpp` has them; of all other whole numbers `_MAX_INT32`.
_MAX_VALUES = {
    "hidden_size": 1 << 16,
    "embedding_size": 1 << 16,
    "feed_forward_size": 1 << 16,
    "vocab_size": 1 << 24,
    "source_vocab_size": 1 << 24,
    "target_vocab_size": 1 << 24,
    "num_labels": 1 << 24,
    "num_token_types": 1 << 16,
    "max_positions": 1 << 20,
    "position_offset": 1 << 20,
    "attention_window": 1 << 20,
}
_MAX_INT32 = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """Stacks and embeddings of a model, with the names of the weights that differ between families."""

    encoder: StackDescription | None = None  # None: a causal language model
    decoder: StackDescription | None = None  # None: an encoder alone
    source_vocab_size: int = 0
    target_vocab_size: int = 0
    source_embedding: str = ""
    target_embedding: str = ""  # as `source_embedding` where they are shared
    positions: str = "none"  # added to the embeddings: sinusoidal, learned or none
    source_positions: str = ""  # of learned positions
    target_positions: str = ""
    max_positions: int = 1
    position_offset: int = 0
    num_token_types: int = 0
    embedding_size: int = 0  # of an encoder whose embeddings are projected to the hidden size; 0: they are not
    embedding_norm: bool = False
    embedding_scale: float = 1.0
    output: str = ""  # weight of the decoder's output layer
    output_bias: bool = False
    eos_id: int = 0

    @property
    def hidden_size(self) -> int:
        """Hidden size of all stacks."""
        stack = self.encoder or self.decoder
        assert stack is not None
        return stack.block.hidden_size

    @property
    def share_embeddings(self) -> bool:
        """Whether source and target have one embedding."""
        return bool(self.source_embedding) and self.source_embedding == self.target_embedding


def describe_model(config: EngineConfig | ModelDescription) -> ModelDescription:
    """Describe a model of any family.

    >>> describe_model(BertConfig(positions="rotary")).positions
    'none'
    """
    if isinstance(config, ModelDescription):
        return config
    if isinstance(config, TransformerConfig):
        return _describe_transformer(config)
    return _describe_gpt(config) if isinstance(config, GptConfig) else _describe_bert(config)


def _describe_bert(config: BertConfig) -> ModelDescription:
    return ModelDescription(
        encoder=bert_stack(config),
        source_vocab_size=config.vocab_size,
        source_embedding="token_embedding",
        positions=_absolute_positions(config.positions),
        source_positions="position_embedding",
        max_positions=config.position_offset + config.max_positions,
        position_offset=config.position_offset,
        num_token_types=config.num_token_types,
        embedding_size=config.embedding_size,
        embedding_norm=config.embedding_norm,
        embedding_scale=math.sqrt(config.hidden_size) if config.scale_embedding else 1.0,
    )


def _describe_transformer(config: TransformerConfig) -> ModelDescription:
    target_embedding = "token_embedding" if config.share_embeddings else "target_embedding"
    return ModelDescription(
        encoder=transformer_encoder(config),
        decoder=transformer_decoder(config),
        source_vocab_size=config.source_vocab_size,
        target_vocab_size=config.target_vocab_size,
        source_embedding="token_embedding" if config.share_embeddings else "source_embedding",
        target_embedding=target_embedding,
        positions=_absolute_positions(config.positions),
        source_positions="source_positions",
        target_positions="target_positions",
        max_positions=config.max_positions,
        embedding_scale=math.sqrt(config.hidden_size) if config.scale_embedding else 1.0,
        output=f"{target_embedding}.weight" if config.tie_embeddings else "lm_head.weight",
        output_bias=config.output_bias,
        eos_id=config.eos_id,
    )


def _describe_gpt(config: GptConfig) -> ModelDescription:
    return ModelDescription(
        decoder=gpt_stack(config),
        target_vocab_size=config.vocab_size,
        target_embedding="token_embedding",
        positions=_absolute_positions(config.positions),
        target_positions="positions",
        max_positions=config.max_positions,
        output="token_embedding.weight" if config.tie_embeddings else "lm_head.weight",
        eos_id=config.eos_id,
    )


def _absolute_positions(positions: str) -> str:
    """The scheme that is added to embeddings; the others belong to the layers."""
    return positions if positions in ("sinusoidal", "learned") else "none"


def check_config(config: EngineConfig) -> None:
    """Raise `ConfigError` with the setting that no model in the engine can have, before anything is allocated by it.

    >>> check_config(BertConfig(hidden_size=100_000))
    Traceback (most recent call last):
    regard.errors.ConfigError: hidden_size (100000) must be at most 65536 in the engine
    """
    for setting in config.knobs():
        value = attrgetter(setting.path)(config)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{setting.path} ({value}) must be a finite number")
        max_value = _MAX_VALUES.get(setting.path.rpartition(".")[2], _MAX_INT32)
        if isinstance(value, int) and value > max_value:
            raise ConfigError(f"{setting.path} ({value}) must be at most {max_value} in the engine")
    if isinstance(config, TransformerConfig):
        max_vocab_size = max(config.source_vocab_size, config.target_vocab_size)
        _check_token_id("pad_id", config.pad_id, "vocab_size", max_vocab_size)
        _check_token_id("bos_id", config.bos_id, "target_vocab_size", config.target_vocab_size)
        _check_token_id("eos_id", config.eos_id, "target_vocab_size", config.target_vocab_size)
    elif isinstance(config, GptConfig):
        _check_token_id("eos_id", config.eos_id, "vocab_size", config.vocab_size)


def _check_token_id(name: str, token_id: int, size_name: str, vocab_size: int) -> None:
    if token_id >= vocab_size:
        raise ConfigError(f"{name} ({token_id}) must be below {size_name} ({vocab_size})")


# ---- C structs, by the names of their fields


def model_shape(config: EngineConfig | ModelDescription, precision: str) -> CModelShape:
    """The C struct of a model; the arrays of its layers live as long as it does."""
    if not isinstance(config, ModelDescription):
        check_config(config)
    model = describe_model(config)
    shape = _build_struct(
        CModelShape,
        source_vocab_size=model.source_vocab_size,
        target_vocab_size=model.target_vocab_size,
        max_positions=model.max_positions,
        position_offset=model.position_offset,
        num_token_types=model.num_token_types,
        embedding_size=model.embedding_size,
        precision=CODES["precision"][precision],
        positions=CODES["positions"][model.positions],
        embedding_norm=model.embedding_norm,
        share_embeddings=model.share_embeddings,
        eos_id=model.eos_id,
        embedding_scale=model.embedding_scale,
    )
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is None:
            continue
        layers = _layer_structs(stack)
        setattr(shape, side, _block_struct(stack.block))
        setattr(shape, f"num_{side}_layers", len(layers))
        setattr(shape, f"{side}_layers", ctypes.addressof(layers))
        setattr(shape, f"_{side}_layers_array", layers)  # kept alive
    return shape


def _block_struct(block: BlockConfig) -> CBlock:
    return _build_struct(CBlock, **{name: _encode_field(name, getattr(block, name)) for name, _ in CBlock._fields_})


def _layer_structs(stack: StackDescription) -> ctypes.Array[CLayer]:
    layers: Sequence[LayerDescription] = [_resolve_scaling(layer, stack.block.key_dim) for layer in stack.layers]
    structs = [
        _build_struct(CLayer, **{name: _encode_field(name, getattr(layer, name)) for name, _ in CLayer._fields_})
        for layer in layers
    ]
    return (CLayer * len(structs))(*structs)


def _build_struct(struct_type: type[Struct], **values: Any) -> Struct:
    """A C struct whose whole numbers are those of `values`: ctypes would cut larger ones."""
    struct = struct_type(**values)
    for name, value in values.items():
        if isinstance(value, int) and getattr(struct, name) != value:
            raise ConfigError(f"{name} ({value}) is beyond the integers of the engine")
    return struct


def _resolve_scaling(layer: LayerDescription, head_size: int) -> LayerDescription:
    """The same rotation without NTK scaling: by a larger theta."""
    if layer.scaling != "ntk":
        return layer
    half = (layer.rotary_dim or head_size) // 2
    theta = layer.theta * layer.factor ** (half / (half - 1)) if half > 1 else layer.theta
    return replace(layer, theta=theta, scaling="linear", factor=1.0)


def _encode_field(name: str, value: Any) -> Any:
    """A setting as the library reads it: names become codes."""
    return CODES[name][value] if isinstance(value, str) else value
