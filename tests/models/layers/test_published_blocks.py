"""Blocks of published architectures: with the same weights, stacks give the hidden states of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import Positions, RelativeBias, Rotary
from regard.config.block import BiasConfig, BlockConfig
from regard.models.layers.layer_spec import LayerSpec, same_layers
from regard.models.layers.stack import TransformerStack

transformers = pytest.importorskip("transformers")

LENGTH = 11
IDS = torch.tensor([[3, 17, 4, 4, 9, 30, 2, 8, 21, 5, 6]])
SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
}
WINDOW = 4  # keys that a query of a local layer attends to, with itself


def large_weights(model: Any) -> Any:
    """Random weights large enough that a mistake shows."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.2, 0.3)
    return model.eval()


def copy_decoder_layer(block: Any, layer: Any, norms: dict[str, str]) -> None:
    """Copy the weights of a layer of a causal model of transformers."""
    attention = layer.self_attn
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    block.attention.qkv.weight.copy_(torch.cat([projection.weight for projection in projections]))
    if block.attention.qkv.bias is not None:
        block.attention.qkv.bias.copy_(torch.cat([projection.bias for projection in projections]))
    block.attention.out.weight.copy_(attention.o_proj.weight)
    block.feed_forward.up.weight.copy_(torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]))
    block.feed_forward.down.weight.copy_(layer.mlp.down_proj.weight)
    if block.attention.query_norm is not None:
        block.attention.query_norm.weight.copy_(attention.q_norm.weight)
        block.attention.key_norm.weight.copy_(attention.k_norm.weight)
    for name, hf_name in norms.items():
        getattr(block, name).weight.copy_(getattr(layer, hf_name).weight)


PRE_NORMS = {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
SANDWICH_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
COMMON = {"hidden_size": 24, "feed_forward_size": 37, "gated": True, "norm_eps": 1e-3}
CAUSAL_CASES: dict[str, tuple[Any, BlockConfig, dict[str, str]]] = {
    "llama": (
        transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-3, **SIZES, **ROPE),
        BlockConfig(
            num_heads=4, num_kv_heads=2, activation="silu", norm="rms", bias=BiasConfig.uniform(False), **COMMON
        ),
        PRE_NORMS,
    ),
    "qwen2": (
        transformers.Qwen2Config(num_attention_heads=4, num_key_value_heads=1, rms_norm_eps=1e-3, **SIZES, **ROPE),
        BlockConfig(
            num_heads=4,
            num_kv_heads=1,
            activation="silu",
            norm="rms",
            bias=BiasConfig(qkv=True, output=False, feed_forward=False, norm=False),
            **COMMON,
        ),
        PRE_NORMS,
    ),
    "qwen3": (
        transformers.Qwen3Config(
            num_attention_heads=4, num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-3, **SIZES, **ROPE
        ),
        BlockConfig(
            num_heads=4,
            num_kv_heads=2,
            head_size=10,
            qk_norm=True,
            activation="silu",
            norm="rms",
            bias=BiasConfig.uniform(False),
            **COMMON,
        ),
        PRE_NORMS,
    ),
    "gemma2": (
        transformers.Gemma2Config(
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=10,
            query_pre_attn_scalar=25,
            attn_logit_softcapping=None,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rms_norm_eps=1e-3,
            attn_implementation="eager",
            **SIZES,
            **ROPE,
        ),
        BlockConfig(
            num_heads=4,
            num_kv_heads=2,
            head_size=10,
            attention_scale=0.2,
            activation="gelu_tanh",
            norm="rms_plus_one",
            norm_placement="both",
            bias=BiasConfig.uniform(False),
            **COMMON,
        ),
        SANDWICH_NORMS,
    ),
}


@pytest.mark.parametrize("name", CAUSAL_CASES)
@torch.inference_mode()
def test_causal_stacks_are_those_of_transformers(name: str) -> None:
    hf_config, config, norms = CAUSAL_CASES[name]
    reference = large_weights(transformers.AutoModel.from_config(hf_config))
    windows = [WINDOW - 1, 0, WINDOW - 1] if name == "gemma2" else [0, 0, 0]
    layers = [LayerSpec(layer, Rotary(500.0), is_causal=True, window=windows[layer]) for layer in range(3)]
    stack = TransformerStack(config, layers, "decoder")
    for block, layer in zip(stack.layers, reference.layers, strict=True):
        copy_decoder_layer(block, layer, norms)
    stack.final_norm.weight.copy_(reference.norm.weight)
    embedded = torch.randn(LENGTH, 24)
    expected = reference(inputs_embeds=embedded[None]).last_hidden_state[0]
    torch.testing.assert_close(stack(embedded, PackedBatch(np.array([LENGTH]))), expected, rtol=1e-4, atol=1e-4)


def copy_t5_attention(attention: Any, hf_attention: Any) -> None:
    weights = {name: getattr(hf_attention, name).weight for name in ("q", "k", "v", "o")}
    if hasattr(attention, "qkv"):
        attention.qkv.weight.copy_(torch.cat([weights["q"], weights["k"], weights["v"]]))
    else:
        attention.query.weight.copy_(weights["q"])
        attention.key_value.weight.copy_(torch.cat([weights["k"], weights["v"]]))
    attention.out.weight.copy_(weights["o"])


def build_t5_stack(hf_stack: Any, config: BlockConfig, is_decoder: bool) -> TransformerStack:
    """A stack with the weights of an encoder or decoder of T5."""
    first_attention = hf_stack.block[0].layer[0].SelfAttention
    positions: Positions = RelativeBias(3, is_causal=is_decoder, num_buckets=8, max_distance=9)
    positions.relative_attention_bias.weight.copy_(first_attention.relative_attention_bias.weight)  # type: ignore[union-attr, operator]
    stack = TransformerStack(config, same_layers(2, positions, is_causal=is_decoder))
    for block, hf_block in zip(stack.layers, hf_stack.block, strict=True):
        sublayers = hf_block.layer
        copy_t5_attention(block.attention, sublayers[0].SelfAttention)
        block.attention_norm.weight.copy_(sublayers[0].layer_norm.weight)  # type: ignore[union-attr, operator]
        if is_decoder:
            copy_t5_attention(block.cross_attention, sublayers[1].EncDecAttention)
            block.cross_attention_norm.weight.copy_(sublayers[1].layer_norm.weight)  # type: ignore[union-attr, operator]
        feed_forward = sublayers[-1].DenseReluDense
        block.feed_forward.up.weight.copy_(torch.cat([feed_forward.wi_0.weight, feed_forward.wi_1.weight]))  # type: ignore[union-attr, operator]
        block.feed_forward.down.weight.copy_(feed_forward.wo.weight)  # type: ignore[union-attr, operator]
        block.feed_forward_norm.weight.copy_(sublayers[-1].layer_norm.weight)  # type: ignore[union-attr, operator]
    stack.final_norm.weight.copy_(hf_stack.final_layer_norm.weight)  # type: ignore[union-attr, operator]
    return stack


@torch.inference_mode()
def test_encoder_and_decoder_are_those_of_t5() -> None:
    hf_config = transformers.T5Config(
        vocab_size=31,
        d_model=24,
        d_kv=5,
        d_ff=37,
        num_layers=2,
        num_heads=3,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=9,
        feed_forward_proj="gated-gelu",
        layer_norm_epsilon=1e-3,
        decoder_start_token_id=0,
    )
    reference = large_weights(transformers.T5Model(hf_config))
    config = BlockConfig(
        num_heads=3,
        head_size=5,
        activation="gelu_tanh",
        norm="rms",
        attention_scale=1.0,
        bias=BiasConfig.uniform(False),
        **COMMON,
    )
    encoder = build_t5_stack(reference.encoder, config, is_decoder=False)
    decoder = build_t5_stack(reference.decoder, config.override({"cross_attention": True}), is_decoder=True)
    target_ids = IDS[:, :7]
    expected = reference(input_ids=IDS, decoder_input_ids=target_ids)
    source_batch = PackedBatch(np.array([LENGTH]))
    target_batch = PackedBatch(np.array([7]))
    source: Tensor = encoder(reference.shared(IDS)[0], source_batch)
    torch.testing.assert_close(source, expected.encoder_last_hidden_state[0], rtol=1e-4, atol=1e-4)
    sources = decoder.precompute_keys_values(source, source_batch)
    target = decoder(reference.shared(target_ids)[0], target_batch, sources=sources)
    torch.testing.assert_close(target, expected.last_hidden_state[0], rtol=1e-4, atol=1e-4)
