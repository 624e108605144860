"""Causal language models with the head of a task (GPT2ForSequenceClassification …): encoders of one direction.

The rows of the table of encoder types come from those of `causal`, which also reads and writes the config fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.checkpoint.hf import causal
from regard.checkpoint.hf.adapter import field_value
from regard.checkpoint.hf.causal import BUFFERS, CAUSAL_TYPES
from regard.checkpoint.hf.encoder_schema import EncoderType, HeadNames
from regard.config.models import BertConfig, GptConfig
from regard.errors import CheckpointError, ConfigError

_SHARED_SETTINGS = (
    *("vocab_size", "hidden_size", "stack", "activation", "positions", "norm_placement", "max_positions"),
    *("tie_embeddings", "norm_eps", "dropout", "attention_dropout"),
)
_FIXED_SETTINGS: dict[str, Any] = {
    "causal": True,
    "embedding_norm": False,
    "num_token_types": 0,
    "pooler": False,
    "pooling": "last",
}
_MODULES = {"decoder": "encoder", "positions": "position_embedding"}  # of a causal model → of an encoder


def _encoder_type(model_type: str, class_prefix: str) -> EncoderType:
    row = CAUSAL_TYPES[model_type]
    return EncoderType(
        prefix=row.prefix,
        fields=row.fields,
        backbone=(
            *((encoder_name(name), hf_name) for name, hf_name in row.backbone),
            ("encoder.final_norm", row.final_norm),
        ),
        layer_prefix=row.layer_prefix,
        block=tuple((name, (hf_name,)) for name, hf_name, _ in row.block),
        heads={
            "plain": HeadNames(f"{class_prefix}Model"),
            "label": HeadNames(f"{class_prefix}ForSequenceClassification", (("classifier", "score"),)),
            "token": HeadNames(
                f"{class_prefix}ForTokenClassification",
                (("classifier", "classifier"),),
                dropout_field="classifier_dropout",
                default_dropout=0.1,
            ),
            "span": HeadNames(f"{class_prefix}ForQuestionAnswering", (("classifier", "qa_outputs"),)),
        },
        tied_copies={"token_embedding.weight": row.output},
        other_heads={row.architecture: row.output.removesuffix(".weight")},
        layouts={name: layout for name, _, layout in row.block},
        buffers=BUFFERS,
        is_causal=True,
        template=("", "", False),
    )


def encoder_name(name: str) -> str:
    """Name that a weight of a causal model has in an encoder.

    >>> encoder_name("decoder.layers.0.attention.qkv.weight"), encoder_name("token_embedding.weight")
    ('encoder.layers.0.attention.qkv.weight', 'token_embedding.weight')
    """
    module, separator, suffix = name.partition(".")
    return _MODULES.get(module, module) + separator + suffix


def causal_name(name: str) -> str:
    """Name that a weight of an encoder has in a causal model.

    >>> causal_name("position_embedding.weight"), causal_name("classifier.weight")
    ('positions.weight', 'classifier.weight')
    """
    module, separator, suffix = name.partition(".")
    return {encoder: module for module, encoder in _MODULES.items()}.get(module, module) + separator + suffix


CAUSAL_ENCODER_TYPES = {"gpt2": _encoder_type("gpt2", "GPT2"), "gpt_neox": _encoder_type("gpt_neox", "GPTNeoX")}


def encoder_config(config: GptConfig, where: str, **settings: Any) -> BertConfig:
    """The encoder of one direction that computes what a causal model does; `settings` are those of its head.

    >>> encoder_config(GptConfig(positions="learned", hidden_size=64), "config.json").summary()
    'causal Transformer, 4 layers of 64, 4 heads, feed-forward 512, pre-norm, learned positions, no head'
    """
    if config.attention_window:
        raise CheckpointError(
            f"{where}: attention_window is {config.attention_window}: a causal model with local attention has no head "
            "for another task"
        )
    if settings.get("head") == "label":
        settings["classifier_bias"] = False
    settings = {"pad_id": max(0, config.eos_id), "classifier_dropout": 0.0, **settings}
    shared: dict[str, Any] = {name: getattr(config, name) for name in _SHARED_SETTINGS}
    try:
        return BertConfig(**shared, **_FIXED_SETTINGS, **settings)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from None


def config_from_hf(fields: Mapping[str, Any], where: str, **settings: Any) -> BertConfig:
    """Convert the `config.json` of a type of `CAUSAL_ENCODER_TYPES`; without a padding token, eos is taken for one."""
    config = causal.config_from_hf(fields, where)
    pad_id = field_value(fields, "pad_token_id", max(0, config.eos_id), where)
    return encoder_config(config, where, pad_id=max(0, pad_id), **settings)


def write_fields(config: BertConfig, model_type: str, original: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `config.json` but those of the head; `original` ones that we do not know are written back."""
    eos_id = causal.config_from_hf(original, "").eos_id if original else -1
    shared: dict[str, Any] = {name: getattr(config, name) for name in _SHARED_SETTINGS}
    fields = causal.config_to_hf(GptConfig(**shared, eos_id=eos_id), original, model_type)
    if not original or config_from_hf(original, "").pad_id != config.pad_id:
        fields["pad_token_id"] = config.pad_id
    return fields
