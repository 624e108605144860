"""Adapter of Hugging Face's causal models `gpt2` and `gpt_neox`: config fields, weight names and layouts, both ways.

Learned positions are written as `gpt2`, rotary ones as `gpt_neox` with sequential residuals. `gpt2` stores matrices as
[input, output], so they are transposed. Both fuse query, key and value: `gpt2` as three blocks of rows, as we do,
`gpt_neox` interleaved by head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from regard.checkpoint.hf.adapter import (
    Shapes,
    WeightMatcher,
    check_vocab_size,
    field_value,
    nested_value,
    read_activation,
    with_float32_dtype,
    write_activation,
)
from regard.checkpoint.unused_weights import BUFFER, TIED_COPY
from regard.checkpoint.weights import Array, Arrays
from regard.config.models import BertConfig, GptConfig
from regard.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor

TASK = "causal-lm"
NATIVE_TYPE = "regard-gpt"  # of causal models that no type below can express
TRANSPOSED = "transposed"  # layouts of a weight in their file, where it differs from ours
INTERLEAVED_BY_HEAD = "interleaved by head"
ROPE_THETA = 10_000.0
BUFFERS = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")
Weight = TypeVar("Weight", Array, "Tensor")


@dataclass(frozen=True)
class CausalType:
    """Names and defaults of one of Hugging Face's causal model types."""

    architecture: str
    positions: str  # our positional scheme
    prefix: str  # of all weights but the output projection; optional when read
    fields: tuple[tuple[str, str, Any], ...]  # HF field, our setting, default of an absent field
    activation: tuple[str, str]  # HF field, default of an absent field
    default_eos_id: int  # of an absent field
    backbone: tuple[tuple[str, str], ...]  # our weight, HF name
    final_norm: str
    layer_prefix: str  # with the layer's index
    block: tuple[tuple[str, str, str], ...]  # our module of a block, HF name, layout of its matrix
    output: str
    extra_fields: Mapping[str, Any]  # that new folders have besides
    dropout_fields: tuple[str, ...] = ()  # further HF fields of our one dropout


CAUSAL_TYPES = {
    "gpt2": CausalType(
        architecture="GPT2LMHeadModel",
        positions="learned",
        prefix="transformer.",
        fields=(
            ("vocab_size", "vocab_size", 50257),
            ("n_positions", "max_positions", 1024),
            ("n_embd", "hidden_size", 768),
            ("n_layer", "stack.num_layers", 12),
            ("n_head", "stack.num_heads", 12),
            ("layer_norm_epsilon", "norm_eps", 1e-5),
            ("resid_pdrop", "dropout", 0.1),
            ("attn_pdrop", "attention_dropout", 0.1),
            ("tie_word_embeddings", "tie_embeddings", True),
        ),
        activation=("activation_function", "gelu_new"),
        default_eos_id=50256,
        backbone=(("token_embedding.weight", "wte.weight"), ("positions.weight", "wpe.weight")),
        final_norm="ln_f",
        layer_prefix="h.{}.",
        block=(
            ("attention_norm", "ln_1", ""),
            ("attention.qkv", "attn.c_attn", TRANSPOSED),
            ("attention.out", "attn.c_proj", TRANSPOSED),
            ("feed_forward_norm", "ln_2", ""),
            ("feed_forward.up", "mlp.c_fc", TRANSPOSED),
            ("feed_forward.down", "mlp.c_proj", TRANSPOSED),
        ),
        output="lm_head.weight",
        extra_fields={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
        dropout_fields=("embd_pdrop",),
    ),
    "gpt_neox": CausalType(
        architecture="GPTNeoXForCausalLM",
        positions="rotary",
        prefix="gpt_neox.",
        fields=(
            ("vocab_size", "vocab_size", 50432),
            ("max_position_embeddings", "max_positions", 2048),
            ("hidden_size", "hidden_size", 6144),
            ("num_hidden_layers", "stack.num_layers", 44),
            ("num_attention_heads", "stack.num_heads", 64),
            ("intermediate_size", "stack.feed_forward_size", 24576),
            ("layer_norm_eps", "norm_eps", 1e-5),
            ("hidden_dropout", "dropout", 0.0),
            ("attention_dropout", "attention_dropout", 0.0),
            ("tie_word_embeddings", "tie_embeddings", False),
        ),
        activation=("hidden_act", "gelu"),
        default_eos_id=2,
        backbone=(("token_embedding.weight", "embed_in.weight"),),
        final_norm="final_layer_norm",
        layer_prefix="layers.{}.",
        block=(
            ("attention_norm", "input_layernorm", ""),
            ("attention.qkv", "attention.query_key_value", INTERLEAVED_BY_HEAD),
            ("attention.out", "attention.dense", ""),
            ("feed_forward_norm", "post_attention_layernorm", ""),
            ("feed_forward.up", "mlp.dense_h_to_4h", ""),
            ("feed_forward.down", "mlp.dense_4h_to_h", ""),
        ),
        output="embed_out.weight",
        extra_fields={
            "use_parallel_residual": False,
            "attention_bias": True,
            # the same twice, for newer and for older versions of transformers
            "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA, "partial_rotary_factor": 1.0},
            "rotary_pct": 1.0,
            "rotary_emb_base": 10_000,
        },
    ),
}


def causal_model_type(config: GptConfig) -> tuple[str, str]:
    """Hugging Face's model type of a config; if there is none, an empty type and the reason.

    >>> causal_model_type(GptConfig()), causal_model_type(GptConfig(positions="learned"))
    (('gpt_neox', ''), ('gpt2', ''))
    >>> causal_model_type(GptConfig(positions="sinusoidal"))
    ('', 'positions are sinusoidal, neither learned nor rotary')
    """
    if changed := config.stack.changed_parts():
        return "", f"the block has {' and '.join(changed)}"
    if config.norm_placement != "pre":
        return "", f"norm_placement is {config.norm_placement}, not pre"
    if config.attention_window:
        return "", f"attention_window is {config.attention_window}"
    for model_type, row in CAUSAL_TYPES.items():
        if row.positions == config.positions:
            return model_type, ""
    allowed = " nor ".join(row.positions for row in CAUSAL_TYPES.values())
    return "", f"positions are {config.positions}, neither {allowed}"


def config_from_hf(fields: Mapping[str, Any], where: str) -> GptConfig:
    """Convert the `config.json` of a causal model, a type of `CAUSAL_TYPES`; `where` names the file in errors.

    >>> config_from_hf({"model_type": "gpt2", "n_embd": 64, "n_head": 4}, "config.json").stack.feed_forward_size
    256
    """
    model_type = str(fields.get("model_type"))
    row = CAUSAL_TYPES[model_type]
    _check_supported(fields, model_type, where)
    fields = {"n_positions": fields.get("n_ctx"), **fields}  # its name in the first GPT-2 configs
    settings = {name: field_value(fields, hf_name, default, where) for hf_name, name, default in row.fields}
    settings["positions"] = row.positions
    if "stack.feed_forward_size" not in settings:
        settings["stack.feed_forward_size"] = field_value(fields, "n_inner", 4 * settings["hidden_size"], where)
    activation_field, default_activation = row.activation
    settings["activation"] = read_activation(field_value(fields, activation_field, default_activation, where))
    has_eos = fields.get("eos_token_id", row.default_eos_id) is not None  # null is not the same as absent
    settings["eos_id"] = field_value(fields, "eos_token_id", row.default_eos_id, where) if has_eos else -1
    try:
        config = GptConfig().override(settings)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {error}") from None
    check_vocab_size(fields, "vocab_size", where)
    if config.eos_id >= config.vocab_size:
        config = config.override({"eos_id": -1})  # small models often keep the large model's eos id
    return config


def _check_supported(fields: Mapping[str, Any], model_type: str, where: str) -> None:
    """Raise where a `config.json` requests what our causal model does not compute."""
    if fields.get("add_cross_attention"):
        raise CheckpointError(f"{where}: add_cross_attention is true: models with cross-attention are not supported")
    if model_type != "gpt_neox":
        return
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"{where}: rope_parameters must be an object, not {rope!r:.60}")
    requirements: dict[str, tuple[Any, Any]] = {  # field → its value, the only supported value
        "use_parallel_residual": (fields.get("use_parallel_residual", True), False),
        "attention_bias": (fields.get("attention_bias", True), True),
        "rope_type": (rope.get("rope_type", rope.get("type", "default")), "default"),
        "rope_theta": (rope.get("rope_theta", fields.get("rotary_emb_base", ROPE_THETA)), ROPE_THETA),
        "rotary_pct": (rope.get("partial_rotary_factor", fields.get("rotary_pct", 0.25)), 1.0),
    }
    for field_name, (value, supported) in requirements.items():
        if value != supported:
            raise CheckpointError(f"{where}: {field_name} is {value!r:.60}: of {model_type} only {supported!r} is read")


def config_to_hf(config: GptConfig, original: Mapping[str, Any] | None = None, model_type: str = "") -> dict[str, Any]:
    """Content of `config.json`, by default of the type that expresses the config.

    Fields of an imported folder's `original` that we do not know are written back.
    """
    model_type = model_type or causal_model_type(config)[0]
    row = CAUSAL_TYPES[model_type]
    if not original or original.get("model_type") != model_type:
        original = {}
    if original and not has_scaled_scores(original) and config_from_hf(original, "") == config:
        return with_float32_dtype(original)
    values = config.to_dict()
    fields = {hf_name: nested_value(values, name) for hf_name, name, _ in row.fields}
    if "intermediate_size" not in fields:
        fields["n_inner"] = config.stack.feed_forward_size
    eos_id = None if config.eos_id < 0 else config.eos_id
    return {
        **original,
        "model_type": model_type,
        "architectures": [row.architecture],
        "dtype": "float32",
        **fields,
        row.activation[0]: write_activation(config.activation),
        **dict.fromkeys(row.dropout_fields, config.dropout),
        "bos_token_id": eos_id,
        "eos_token_id": eos_id,
        **row.extra_fields,
    }


def to_hf_weights(config: GptConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights to Hugging Face's names and layouts; a tied output projection is left out."""
    row = CAUSAL_TYPES[causal_model_type(config)[0]]
    hf_weights = {}
    for name, (hf_name, layout) in _weight_layouts(config, row).items():
        full_name = hf_name if hf_name == row.output else row.prefix + hf_name
        tensor = change_layout(weights[name], layout, 3, config.stack.num_heads)
        hf_weights[full_name] = tensor.contiguous().clone()
    return hf_weights


class CausalWeightMatcher(WeightMatcher):
    """Match the tensors of a file with the weights of a causal model."""

    def __init__(self, config: GptConfig, shapes: Shapes, expected: Shapes) -> None:
        """Match the file's `shapes` with the `expected` ones of our weights, or raise `CheckpointError`."""
        self.config = config
        self._row = CAUSAL_TYPES[causal_model_type(config)[0]]
        layouts = _weight_layouts(config, self._row)
        self._layouts = {name: layout for name, (_, layout) in layouts.items()}
        super().__init__(
            shapes,
            stored={name.removeprefix(self._row.prefix): name for name in shapes},
            table={name: (hf_name,) for name, (hf_name, _) in layouts.items()},
            copies={"token_embedding.weight": (self._row.output,)} if config.tie_embeddings else {},
        )
        self._used = {hf_name for hf_name, _ in layouts.values()}
        self.report.missing = [hf_name for hf_name, _ in layouts.values() if hf_name not in self._stored]
        self._check_missing(self.report.missing)
        for name, (hf_name, layout) in layouts.items():
            shape = expected[name]
            self._check_shape(hf_name, shape[::-1] if layout == TRANSPOSED else shape)
        self._fill_report()

    def _current_name(self, hf_name: str, stored: str) -> str | None:
        if hf_name not in self._used:
            return None
        return stored if hf_name == self._row.output else self._row.prefix + hf_name

    def _ignored_reason(self, hf_name: str) -> str:
        if hf_name.endswith(BUFFERS) and hf_name not in self._used:
            return BUFFER
        return TIED_COPY if hf_name == self._row.output else "not a weight that this type of model has"

    def assemble(self, arrays: Mapping[str, Array], fields: Mapping[str, Any]) -> Arrays:
        """Our weights from the float32 arrays that were read; `fields` is the folder's `config.json`."""
        embedding = self._table["token_embedding.weight"][0]
        for copy in self._copies.get("token_embedding.weight", ()):
            if not np.array_equal(arrays[self._stored[copy]], arrays[self._stored[embedding]]):
                self._note_difference(self._stored[copy], embedding)
        num_heads = self.config.stack.num_heads
        weights: Arrays = {}
        for name, (hf_name,) in self._table.items():
            array = change_layout(arrays[self._stored[hf_name]], self._layouts[name], num_heads, 3)
            weights[name] = np.ascontiguousarray(array)
        return scale_queries(weights, self.config, fields, "decoder")


def _weight_layouts(config: GptConfig, row: CausalType) -> dict[str, tuple[str, str]]:
    """Our weight names, each with its HF name and layout."""
    modules = [("decoder.final_norm", row.final_norm, "")]
    for layer in range(config.stack.num_layers):
        prefix = row.layer_prefix.format(layer)
        modules += [(f"decoder.layers.{layer}.{name}", prefix + hf_name, layout) for name, hf_name, layout in row.block]
    table = {name: (hf_name, "") for name, hf_name in row.backbone}
    for name, hf_name, layout in modules:
        table[f"{name}.weight"] = (f"{hf_name}.weight", layout)
        table[f"{name}.bias"] = (f"{hf_name}.bias", "" if layout == TRANSPOSED else layout)
    if not config.tie_embeddings:
        table["lm_head.weight"] = (row.output, "")
    return table


def change_layout(weight: Weight, layout: str, outer: int, inner: int) -> Weight:
    """Convert a weight between our layout and theirs; by head, `outer` × `inner` groups of rows are transposed."""
    if layout == TRANSPOSED:
        return weight.T
    if layout == INTERLEAVED_BY_HEAD:
        return weight.reshape(outer, inner, -1).swapaxes(0, 1).reshape(weight.shape)
    return weight


def scale_queries(weights: Arrays, config: GptConfig | BertConfig, fields: Mapping[str, Any], stack: str) -> Arrays:
    """Scale the queries of a stack where a folder's layers scale attention scores in another way than ours."""
    scaled = dict(weights)
    for layer in range(config.stack.num_layers):
        factor = _query_scale(config, fields, layer)
        if factor == 1:
            continue
        for leaf in ("weight", "bias"):
            name = f"{stack}.layers.{layer}.attention.qkv.{leaf}"
            scaled[name] = weights[name].copy()
            scaled[name][: config.hidden_size] *= factor
    return scaled


def _query_scale(config: GptConfig | BertConfig, fields: Mapping[str, Any], layer: int) -> float:
    """Factor of a layer's attention scores beside the usual 1/√(head size)."""
    head_size = config.hidden_size // config.stack.num_heads
    scale = 1.0 if fields.get("scale_attn_weights", True) else math.sqrt(head_size)
    return scale / (layer + 1) if fields.get("scale_attn_by_inverse_layer_idx") else scale


def has_scaled_scores(fields: Mapping[str, Any]) -> bool:
    """Whether a folder scales attention scores in a way that our weights carry instead."""
    return fields.get("scale_attn_weights") is False or bool(fields.get("scale_attn_by_inverse_layer_idx"))
