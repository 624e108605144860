"""Translation models in CTranslate2's format."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.positions import sinusoids
from regard.checkpoint import atomic
from regard.checkpoint.source import TranslatorSource
from regard.checkpoint.tokenizer_files import TARGET_TOKENIZER, TOKENIZER
from regard.config.models import StackConfig, TransformerConfig
from regard.errors import UsageError
from regard.text.tokenizer import Tokenizer

POSITIONS = ("sinusoidal", "learned", "none")  # of its encoder–decoders
_NEVER = -1e4  # output bias of tokens that are never generated: beyond any logit, within half precision


def save_ctranslate2(model: TranslatorSource, folder: Path, out: Path) -> None:
    """Write a Transformer and its tokenizers for CTranslate2; errors name `folder`."""
    specification = _build_specification(model, folder)
    with tempfile.TemporaryDirectory() as temporary:
        specification.save(temporary)
        paths = sorted(Path(temporary).iterdir())
        contents: dict[str, atomic.Content] = {path.name: path.read_bytes() for path in paths}
    contents[TOKENIZER] = model.source.to_json().encode()
    if model.source.digest != model.target.digest:
        contents[TARGET_TOKENIZER] = model.target.to_json().encode()
    atomic.write_folder(out, contents)


def _build_specification(model: TranslatorSource, folder: Path) -> Any:
    """CTranslate2's description of a model, with its weights."""
    try:
        from ctranslate2.specs import common_spec, transformer_spec
    except ImportError:
        raise UsageError("CTranslate2 is not installed: `pip install 'regard[convert]'`") from None
    config = model.config
    if not isinstance(config, TransformerConfig):
        raise UsageError(f"{folder} cannot be written for CTranslate2: a recurrent model")
    if reason := _inexpressible_parts(config):
        raise UsageError(f"{folder} cannot be written for CTranslate2: {reason}")
    activations = {
        "relu": common_spec.Activation.RELU,
        "gelu": common_spec.Activation.GELU,
        "gelu_tanh": common_spec.Activation.GELUTanh,
        "silu": common_spec.Activation.SWISH,
        "tanh": common_spec.Activation.Tanh,
        "quick_gelu": common_spec.Activation.GELUSigmoid,
    }
    settings = {"pre_norm": config.norm_placement == "pre", "activation": activations[config.activation]}
    specification = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(config.encoder.num_layers, config.encoder.num_heads, **settings),
        transformer_spec.TransformerDecoderSpec(config.decoder.num_layers, config.decoder.num_heads, **settings),
    )
    _fill_weights(specification, config, model.weights)
    _fill_vocabularies(specification, config, model)
    specification.validate()
    specification.optimize()
    return specification


def _inexpressible_parts(config: TransformerConfig) -> str:
    """Parts of the model that CTranslate2's Transformer does not have; empty if it has all of them."""
    if config.positions not in POSITIONS:
        return f"{config.positions} positions in an encoder–decoder"
    if config.norm_placement not in ("pre", "post"):
        return f"norm_placement {config.norm_placement}"
    if config.attention_window:
        return f"attention_window {config.attention_window}"
    return " and ".join(config.encoder.changed_parts() or config.decoder.changed_parts())


def _fill_weights(specification: Any, config: TransformerConfig, weights: dict[str, Tensor]) -> None:
    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    encoder = specification.encoder
    decoder = specification.decoder
    sides = (
        ("source", "encoder", encoder, encoder.embeddings[0], config.encoder),
        ("target", "decoder", decoder, decoder.embeddings, config.decoder),
    )
    for side, stack_name, stack, embedding, stack_config in sides:
        embedding.weight = arrays["token_embedding.weight" if config.share_embeddings else f"{side}_embedding.weight"]
        stack.scale_embeddings = config.scale_embedding
        stack.position_encodings.encodings = _position_table(config, weights, side)
        _fill_stack(stack, stack_name, stack_config, arrays)
    decoder.projection.weight = decoder.embeddings.weight if config.tie_embeddings else arrays["lm_head.weight"]
    bias = arrays.get("lm_head_bias", np.zeros(config.target_vocab_size, np.float32)).copy()
    bias[sorted({config.pad_id, config.bos_id} - {config.eos_id})] = _NEVER
    decoder.projection.bias = bias


def _fill_vocabularies(specification: Any, config: TransformerConfig, model: TranslatorSource) -> None:
    target_tokens = _list_tokens(model.target, config.target_vocab_size)
    specification.register_source_vocabulary(_list_tokens(model.source, config.source_vocab_size))
    specification.register_target_vocabulary(target_tokens)
    unk_id = model.target.unk_id
    settings = specification.config
    settings.add_attribute("layer_norm_epsilon", config.norm_eps)
    settings.unk_token = target_tokens[unk_id if unk_id >= 0 else config.eos_id]
    settings.bos_token = target_tokens[config.bos_id]
    settings.decoder_start_token = target_tokens[config.bos_id]
    settings.eos_token = target_tokens[config.eos_id]


def _fill_stack(stack: Any, stack_name: str, stack_config: StackConfig, arrays: dict[str, np.ndarray]) -> None:
    """Fill in the weights of the encoder or the decoder."""

    def fill_linear(target: Any, name: str) -> None:
        target.weight = arrays[f"{stack_name}.{name}.weight"]
        target.bias = arrays[f"{stack_name}.{name}.bias"]

    def fill_norm(target: Any, name: str) -> None:
        target.gamma = arrays[f"{stack_name}.{name}.weight"]
        target.beta = arrays[f"{stack_name}.{name}.bias"]

    for index in range(stack_config.num_layers):
        layer = stack.layer[index]
        block = f"layers.{index}"
        fill_linear(layer.self_attention.linear[0], f"{block}.attention.qkv")
        fill_linear(layer.self_attention.linear[1], f"{block}.attention.out")
        fill_norm(layer.self_attention.layer_norm, f"{block}.attention_norm")
        fill_linear(layer.ffn.linear_0, f"{block}.feed_forward.up")
        fill_linear(layer.ffn.linear_1, f"{block}.feed_forward.down")
        fill_norm(layer.ffn.layer_norm, f"{block}.feed_forward_norm")
        if stack_name == "decoder":
            fill_linear(layer.attention.linear[0], f"{block}.cross_attention.query")
            fill_linear(layer.attention.linear[1], f"{block}.cross_attention.key_value")
            fill_linear(layer.attention.linear[2], f"{block}.cross_attention.out")
            fill_norm(layer.attention.layer_norm, f"{block}.cross_attention_norm")
    if f"{stack_name}.final_norm.weight" in arrays:
        fill_norm(stack.layer_norm, "final_norm")


def _position_table(config: TransformerConfig, weights: dict[str, Tensor], side: str) -> np.ndarray:
    """Table that is added to the embeddings, [positions, hidden]."""
    if config.positions == "learned":
        return weights[f"{side}_positions.weight"].numpy()
    if config.positions == "sinusoidal":
        return sinusoids(torch.arange(config.max_positions), config.hidden_size).numpy()
    return np.zeros((config.max_positions, config.hidden_size), np.float32)


def _list_tokens(tokenizer: Tokenizer, vocab_size: int) -> list[str]:
    """The vocabulary as text, one token for each row of the embedding."""
    return [tokenizer.backend.id_to_token(token_id) or f"<row {token_id}>" for token_id in range(vocab_size)]
