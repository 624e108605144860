"""Layer settings of ModernBERT's `config.json`, both ways: it spreads them over fields and spells them in two ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.checkpoint.hf.adapter import field_value
from regard.config.models import BertConfig
from regard.errors import CheckpointError

GLOBAL_LAYER = "full_attention"
LOCAL_LAYER = "sliding_attention"
_NUM_LAYERS = 22  # default of the field
_LOCAL_ATTENTION = 128  # default of the field: tokens on both sides together
_ROPE_THETA = {  # layer type → older field, its default
    GLOBAL_LAYER: ("global_rope_theta", 160_000.0),
    LOCAL_LAYER: ("local_rope_theta", 10_000.0),
}
_BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")


def read_layers(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Our settings of the attention window, rotary positions, biases and pooling.

    >>> read_layers({"local_attention": 64, "global_attn_every_n_layers": 2}, "config.json")["global_every"]
    2
    """
    biases = {field_value(fields, name, False, where) for name in _BIASES}
    if len(biases) > 1:
        raise CheckpointError(f"{where}: {', '.join(_BIASES)} must be all true or all false")
    if not field_value(fields, "decoder_bias", True, where):
        raise CheckpointError(f"{where}: decoder_bias is false: only heads with an output bias are read")
    activation = field_value(fields, "hidden_activation", "gelu", where)
    head_activation = field_value(fields, "classifier_activation", "gelu", where)
    if activation != head_activation:
        raise CheckpointError(
            f"{where}: classifier_activation is {head_activation!r:.60}, not hidden_activation's {activation!r:.60}"
        )
    pooling = field_value(fields, "classifier_pooling", "cls", where)
    if pooling not in ("cls", "mean"):
        raise CheckpointError(f"{where}: classifier_pooling must be 'cls' or 'mean', not {pooling!r:.60}")
    window = field_value(fields, "local_attention", _LOCAL_ATTENTION, where) // 2
    global_every = _read_global_every(fields, where)
    has_local_layers = global_every != 1 and field_value(fields, "num_hidden_layers", _NUM_LAYERS, where) > 1
    return {
        "bias": biases.pop(),
        "attention_window": window if has_local_layers else 0,
        "global_every": global_every,
        "rope_theta": _read_rope_theta(fields, GLOBAL_LAYER, where),
        "local_rope_theta": _read_rope_theta(fields, LOCAL_LAYER, where),
        "pooling": "first" if pooling == "cls" else pooling,
    }


def _read_global_every(fields: Mapping[str, Any], where: str) -> int:
    """Distance between layers of global attention, from `layer_types` or the older field."""
    every: int = field_value(fields, "global_attn_every_n_layers", 3, where)
    layer_types = fields.get("layer_types")
    num_layers = field_value(fields, "num_hidden_layers", _NUM_LAYERS, where)
    if layer_types is None:
        return every
    if isinstance(layer_types, list) and len(layer_types) == num_layers:
        second_global = layer_types.index(GLOBAL_LAYER, 1) if GLOBAL_LAYER in layer_types[1:] else num_layers
        for distance in (every, second_global):
            if distance > 0 and layer_types == _layer_types(num_layers, distance):
                return distance
    allowed = f"{GLOBAL_LAYER} first and again at even distances, {LOCAL_LAYER} between, {num_layers} in all"
    raise CheckpointError(f"{where}: layer_types must be {allowed}, not {layer_types!r:.90}")


def _layer_types(num_layers: int, every: int) -> list[str]:
    return [LOCAL_LAYER if layer % every else GLOBAL_LAYER for layer in range(num_layers)]


def _read_rope_theta(fields: Mapping[str, Any], layer_type: str, where: str) -> float:
    """Base of the rotary wavelengths of a layer type, from `rope_parameters` or the older field."""
    older_field, default = _ROPE_THETA[layer_type]
    rope = fields.get("rope_parameters") or {}
    layer_rope = (rope.get(layer_type) or {}) if isinstance(rope, dict) else None
    if not isinstance(layer_rope, dict):
        raise CheckpointError(
            f"{where}: rope_parameters must name settings of {GLOBAL_LAYER} and {LOCAL_LAYER}, not {rope!r:.90}"
        )
    scaling = fields.get("rope_scaling")
    if scaling is None:
        scaling = layer_rope.get("rope_type", "default")
    if scaling != "default":
        raise CheckpointError(f"{where}: rotary positions are scaled by {scaling!r:.60}: only 'default' is read")
    return float(field_value(layer_rope, "rope_theta", field_value(fields, older_field, default, where), where))


def write_layers(config: BertConfig, activation: str) -> dict[str, Any]:
    """Fields of the same settings; `activation` is Hugging Face's name."""
    global_every = config.global_every if config.attention_window else 1
    return {
        **dict.fromkeys(_BIASES, config.bias),
        "decoder_bias": True,
        "classifier_activation": activation,
        "classifier_pooling": "mean" if config.pooling == "mean" else "cls",
        "local_attention": 2 * config.attention_window or _LOCAL_ATTENTION,
        "global_attn_every_n_layers": global_every,
        "layer_types": _layer_types(config.stack.num_layers, global_every),
        "rope_parameters": {
            GLOBAL_LAYER: {"rope_type": "default", "rope_theta": config.rope_theta},
            LOCAL_LAYER: {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
    }
