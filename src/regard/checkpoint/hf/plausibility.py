"""What looks wrong in a `config.json` from elsewhere, which no digest covers, although the weights fit it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.checkpoint.hf.causal import CAUSAL_TYPES
from regard.checkpoint.hf.encoder_decoders import HF_FIELDS
from regard.checkpoint.hf.encoder_types import ENCODER_TYPES
from regard.checkpoint.tokenizer_files import TOKENIZER_CONFIG, read_tokenizer_config
from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.errors import CheckpointError

# fields that change what a model computes, or which tokens it ends at, besides those of the tables
_OTHER_FIELDS = (
    *("model_type", "architectures", "id2label", "num_labels", "problem_type", "position_embedding_type"),
    *("is_decoder", "add_cross_attention", "use_bias", "inner_group_num", "embedding_size"),
    *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "n_inner", "activation_function", "hidden_act"),
    *("use_parallel_residual", "rotary_pct", "rotary_emb_base", "rope_parameters", "partial_rotary_factor"),
    *("global_attn_every_n_layers", "local_attention", "layer_types", "global_rope_theta", "local_rope_theta"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
)
_UNUSUAL_POWERS = (80, 96)  # head sizes of published models that are no powers of two
_ALBERT_LAYERS = (12, 24)  # of the published models
_MAX_KNOWN_LENGTH = 1 << 20  # a model_max_length beyond it stands for "unknown"


def find_doubts(
    path: Path, hf_config: Mapping[str, Any], config: BertConfig | GptConfig | TransformerConfig, where: str
) -> list[str]:
    """What looks wrong; a field that differs from a known one in one character raises `CheckpointError`."""
    model_type = str(hf_config.get("model_type"))
    fields = _known_fields(model_type)
    check_field_names(hf_config, (*(name for name, _ in fields), *_OTHER_FIELDS), where)
    head_fields = [name for name, setting in fields if setting.endswith("num_heads")]
    doubts = _find_head_doubts(hf_config, config, head_fields)
    if isinstance(config, BertConfig) and config.layer_groups and config.stack.num_layers not in _ALBERT_LAYERS:
        num_layers = config.stack.num_layers
        doubts.append(
            f"num_hidden_layers is {num_layers}: layers share their weights, which therefore do not show it, and "
            f"{' or '.join(map(str, _ALBERT_LAYERS))} are usual"
        )
    max_length = read_tokenizer_config(path).get("model_max_length")
    is_known = isinstance(max_length, int) and 2 < max_length < _MAX_KNOWN_LENGTH
    if config.positions != "learned" and is_known and max_length != config.max_positions:  # learned ones show it
        doubts.append(
            f"it allows {config.max_positions} positions, {TOKENIZER_CONFIG} {max_length} tokens: one of them is wrong"
        )
    return [f"{where}: {doubt}" for doubt in doubts]


def _find_head_doubts(
    hf_config: Mapping[str, Any], config: BertConfig | GptConfig | TransformerConfig, head_fields: Sequence[str]
) -> list[str]:
    """Numbers of heads that are missing, or give heads of an unusual size."""
    doubts = []
    stacks = [config.encoder, config.decoder] if isinstance(config, TransformerConfig) else [config.stack]
    for field, stack in zip(head_fields, stacks, strict=True):
        head_size = config.hidden_size // stack.num_heads
        if field not in hf_config:
            doubts.append(f"{field} is missing: {stack.num_heads} heads are assumed, which the weights do not show")
        elif head_size & (head_size - 1) and head_size not in _UNUSUAL_POWERS:
            doubts.append(
                f"{field} is {stack.num_heads}: heads of size {head_size} are unusual, and the weights do not show it"
            )
    return doubts


def _known_fields(model_type: str) -> list[tuple[str, str]]:
    """Fields of a model type, each with our setting."""
    if model_type in ENCODER_TYPES:
        return [(name, setting) for name, setting, _ in ENCODER_TYPES[model_type].fields]
    if model_type in CAUSAL_TYPES:
        return [(name, setting) for name, setting, _ in CAUSAL_TYPES[model_type].fields]
    return [*HF_FIELDS]


def check_field_names(fields: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise where a field is absent and another one differs from its name in one character: its default would be used.

    >>> check_field_names({"hidden_sise": 9}, ["hidden_size"], "config.json")
    Traceback (most recent call last):
    regard.errors.CheckpointError: config.json: unknown field 'hidden_sise' (did you mean hidden_size?)
    """
    names = set(known)
    for name in sorted(names - fields.keys()):
        for other in fields.keys() - names:
            if len(other) == len(name) and sum(map(str.__ne__, name, other)) == 1:
                raise CheckpointError(f"{where}: unknown field {other!r} (did you mean {name}?)")
