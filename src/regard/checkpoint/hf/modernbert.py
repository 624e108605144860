"""What ModernBERT's `config.json` says of its layers in more than one field, or in several spellings, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.checkpoint.hf.adapter import field_value
from regard.config.models import BertConfig
from regard.errors import CheckpointError

GLOBAL_LAYER, LOCAL_LAYER = "full_attention", "sliding_attention"
_BASES = {
    GLOBAL_LAYER: ("global_rope_theta", 160_000.0),
    LOCAL_LAYER: ("local_rope_theta", 10_000.0),
}  # their older fields
_BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")


def read_layers(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return our settings of how far layers look, how places turn them, and whether they have biases.

    >>> read_layers({"local_attention": 64, "global_attn_every_n_layers": 2}, "config.json")["global_every"]
    2
    """
    biases = {field_value(fields, name, False, where) for name in _BIASES}
    if len(biases) > 1:
        raise CheckpointError(
            f"{where}: of {', '.join(_BIASES)} some are true and some false: only alike ones are read"
        )
    if not field_value(fields, "decoder_bias", True, where):
        raise CheckpointError(
            f"{where}: decoder_bias is false: only heads that add a bias to each word's score are read"
        )
    shown, scored = (
        field_value(fields, name, "gelu", where) for name in ("hidden_activation", "classifier_activation")
    )
    if shown != scored:
        raise CheckpointError(
            f"{where}: classifier_activation is {scored!r:.60}, not hidden_activation's {shown!r:.60}"
        )
    pooling = field_value(fields, "classifier_pooling", "cls", where)
    if pooling not in ("cls", "mean"):
        raise CheckpointError(f"{where}: classifier_pooling must be 'cls' or 'mean', not {pooling!r:.60}")
    return {
        "bias": biases.pop(),
        "attention_window": field_value(fields, "local_attention", 128, where) // 2,
        "global_every": _far_every(fields, where),
        "rope_theta": _base(fields, GLOBAL_LAYER, where),
        "local_rope_theta": _base(fields, LOCAL_LAYER, where),
        "pooling": "first" if pooling == "cls" else pooling,
    }


def _far_every(fields: Mapping[str, Any], where: str) -> int:
    """Return of how many layers the first looks at whole rows."""
    every: int = field_value(fields, "global_attn_every_n_layers", 3, where)
    kinds, layers = fields.get("layer_types"), field_value(fields, "num_hidden_layers", 22, where)
    if kinds is None:
        return every
    if isinstance(kinds, list) and len(kinds) == layers:
        found = kinds.index(GLOBAL_LAYER, 1) if GLOBAL_LAYER in kinds[1:] else layers
        for fits in (every, found):
            if fits > 0 and kinds == _kinds(layers, fits):
                return fits
    wanted = f"{GLOBAL_LAYER} first and again at even distances, {LOCAL_LAYER} between, {layers} in all"
    raise CheckpointError(f"{where}: layer_types must be {wanted}, not {kinds!r:.90}")


def _kinds(layers: int, every: int) -> list[str]:
    return [LOCAL_LAYER if layer % every else GLOBAL_LAYER for layer in range(layers)]


def _base(fields: Mapping[str, Any], kind: str, where: str) -> float:
    """Return what the wavelengths of a kind of layer grow with."""
    older, usual = _BASES[kind]
    turned = fields.get("rope_parameters") or {}
    told = turned.get(kind) or {} if isinstance(turned, dict) else None
    if not isinstance(told, dict):
        raise CheckpointError(
            f"{where}: rope_parameters must name settings of {GLOBAL_LAYER} and {LOCAL_LAYER}, not {turned!r:.90}"
        )
    scaling = told.get("rope_type", "default") if fields.get("rope_scaling") is None else fields["rope_scaling"]
    if scaling != "default":
        raise CheckpointError(f"{where}: places turned as {scaling!r:.60}: only the default way is read")
    return float(field_value(told, "rope_theta", field_value(fields, older, usual, where), where))


def write_layers(config: BertConfig, activation: str) -> dict[str, Any]:
    """Return their fields of the same; `activation` is what they call ours."""
    return {
        **dict.fromkeys(_BIASES, config.bias),
        "decoder_bias": True,
        "classifier_activation": activation,
        "classifier_pooling": "cls" if config.pooling == "first" else config.pooling,
        "local_attention": 2 * config.attention_window,
        "global_attn_every_n_layers": config.global_every,
        "layer_types": _kinds(config.stack.num_layers, config.global_every),
        "rope_parameters": {
            GLOBAL_LAYER: {"rope_type": "default", "rope_theta": config.rope_theta},
            LOCAL_LAYER: {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
    }
