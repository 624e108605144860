"""A row for each type of Hugging Face's causal models: what it calls config fields and weights, and how they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TURNED, BY_HEAD = "turned over", "by head"  # how a weight of theirs lies, where not as ours does
BASE = 10_000.0  # of the wavelengths of rotary positions


@dataclass(frozen=True)
class Kind:
    """What one of their types calls things."""

    architecture: str
    positions: str  # ours that it has
    prefix: str  # of everything but the output projection; optional when read
    fields: tuple[tuple[str, str, Any], ...]  # their config field, ours, what an absent one means to them
    activation: tuple[str, str]  # their config field and what an absent one means
    end: int  # the token that an absent field means
    trunk: tuple[tuple[str, str], ...]  # our weight, theirs
    norm: str  # the last one
    layer: str  # before a block's weights, with the layer's number
    block: tuple[tuple[str, str, str], ...]  # our part of a block, theirs, how its matrix lies
    output: str
    written: Mapping[str, Any]  # fields that new folders have besides
    dropouts: tuple[str, ...] = ()  # further fields of theirs for our one dropout


KINDS = {
    "gpt2": Kind(
        architecture="GPT2LMHeadModel",
        positions="learned",
        prefix="transformer.",
        fields=(
            ("vocab_size", "vocabulary", 50257),
            ("n_positions", "places", 1024),
            ("n_embd", "width", 768),
            ("n_layer", "stack.layers", 12),
            ("n_head", "stack.heads", 12),
            ("layer_norm_epsilon", "epsilon", 1e-5),
            ("resid_pdrop", "dropout", 0.1),
            ("attn_pdrop", "attention_dropout", 0.1),
            ("tie_word_embeddings", "tied", True),
        ),
        activation=("activation_function", "gelu_new"),
        end=50256,
        trunk=(("words.weight", "wte.weight"), ("positions.weight", "wpe.weight")),
        norm="ln_f",
        layer="h.{}.",
        block=(
            ("attention_norm", "ln_1", ""),
            ("attention.qkv", "attn.c_attn", TURNED),
            ("attention.out", "attn.c_proj", TURNED),
            ("feedforward_norm", "ln_2", ""),
            ("feedforward.inner", "mlp.c_fc", TURNED),
            ("feedforward.outer", "mlp.c_proj", TURNED),
        ),
        output="lm_head.weight",
        written={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
        dropouts=("embd_pdrop",),
    ),
    "gpt_neox": Kind(
        architecture="GPTNeoXForCausalLM",
        positions="rotary",
        prefix="gpt_neox.",
        fields=(
            ("vocab_size", "vocabulary", 50432),
            ("max_position_embeddings", "places", 2048),
            ("hidden_size", "width", 6144),
            ("num_hidden_layers", "stack.layers", 44),
            ("num_attention_heads", "stack.heads", 64),
            ("intermediate_size", "stack.feedforward", 24576),
            ("layer_norm_eps", "epsilon", 1e-5),
            ("hidden_dropout", "dropout", 0.0),
            ("attention_dropout", "attention_dropout", 0.0),
            ("tie_word_embeddings", "tied", False),
        ),
        activation=("hidden_act", "gelu"),
        end=2,
        trunk=(("words.weight", "embed_in.weight"),),
        norm="final_layer_norm",
        layer="layers.{}.",
        block=(
            ("attention_norm", "input_layernorm", ""),
            ("attention.qkv", "attention.query_key_value", BY_HEAD),
            ("attention.out", "attention.dense", ""),
            ("feedforward_norm", "post_attention_layernorm", ""),
            ("feedforward.inner", "mlp.dense_h_to_4h", ""),
            ("feedforward.outer", "mlp.dense_4h_to_h", ""),
        ),
        output="embed_out.weight",
        written={
            "use_parallel_residual": False,
            "attention_bias": True,
            # the same said twice, for newer and for older readers
            "rope_parameters": {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 1.0},
            "rotary_pct": 1.0,
            "rotary_emb_base": 10_000,
        },
    ),
}
