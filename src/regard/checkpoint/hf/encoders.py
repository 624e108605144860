"""Adapter of Hugging Face's encoders: config fields, labels and heads, both ways, by the rows of `encoder_types`.

What no type can express is written under our own names and a model type of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from regard.checkpoint.hf import causal_encoders
from regard.checkpoint.hf.adapter import (
    ACTIVATIONS,
    check_vocab_size,
    field_value,
    read_activation,
    with_float32_dtype,
    write_activation,
)
from regard.checkpoint.hf.causal_encoders import CAUSAL_ENCODER_TYPES
from regard.checkpoint.hf.encoder_schema import EncoderType
from regard.checkpoint.hf.encoder_types import ENCODER_TYPES, NATIVE_TYPE
from regard.checkpoint.hf.encoder_weights import is_in_module, normalize_names
from regard.checkpoint.hf.modernbert import read_layers, write_layers
from regard.config.models import ENCODER_HEADS, BertConfig
from regard.errors import CheckpointError, ConfigError

LABELLED_HEADS = ("label", "token")
_MAX_UNNAMED_LABELS = 2**16
_ATTENTION = {"block_sparse": "blocks", "original_full": "full"}  # HF name, ours
_HEAD_PRIORITY = ("pretraining", "masked", "next", "label", "token", "span")  # where weights hold several heads


def is_encoder(fields: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is of an encoder type that we read; a causal model is one if it has the head of a task.

    >>> is_encoder({"model_type": "gpt2"})
    False
    >>> is_encoder({"model_type": "gpt2", "architectures": ["GPT2ForTokenClassification"]})
    True
    """
    model_type = fields.get("model_type")
    if model_type in CAUSAL_ENCODER_TYPES:
        return named_head(fields, "") not in ("", "plain")
    return isinstance(model_type, str) and (model_type in ENCODER_TYPES or model_type == NATIVE_TYPE)


@dataclass(frozen=True)
class LabelNames:
    """Names of a head's labels, and the kind of classification."""

    names: tuple[str, ...] = ()
    problem_type: str = ""  # single_label_classification, multi_label_classification, regression; empty: unknown


def read_labels(fields: Mapping[str, Any], where: str) -> LabelNames:
    """Labels of a `config.json`; numbered ones where it has no names, two by default.

    >>> read_labels({"id2label": {"1": "good", "0": "bad"}}, "config.json").names
    ('bad', 'good')
    """
    id2label = fields.get("id2label")
    if id2label is None:
        count = fields.get("num_labels", fields.get("_num_labels", 2))
        if type(count) is not int or not 1 <= count <= _MAX_UNNAMED_LABELS:
            allowed = f"a whole number from 1 to {_MAX_UNNAMED_LABELS}"
            raise CheckpointError(f"{where}: num_labels must be {allowed} without id2label, not {count!r:.60}")
        id2label = {str(index): f"LABEL_{index}" for index in range(count)}
    problem_type = fields.get("problem_type") or ""
    try:
        by_index = {int(index): name for index, name in id2label.items()}
        names = tuple(by_index[index] for index in range(len(by_index)))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{where}: id2label must name the labels 0, 1, 2, …, not {id2label!r:.60}") from None
    if not names or not all(isinstance(name, str) for name in names) or not isinstance(problem_type, str):
        raise CheckpointError(f"{where}: id2label and problem_type must be texts, not {id2label!r:.60}")
    return LabelNames(names, problem_type)


def config_from_hf(fields: Mapping[str, Any], head: str, num_labels: int, where: str) -> BertConfig:
    """Convert a `config.json` to our config, with a head.

    >>> fields = {"model_type": "roberta", "max_position_embeddings": 514}
    >>> config_from_hf(fields, "plain", 0, "config.json").max_positions
    512
    """
    model_type = str(fields.get("model_type"))
    row = _find_row(model_type, where)
    _check_supported(fields, where)
    if head not in row.heads:
        raise CheckpointError(f"{where}: {model_type} models have no {head} head; they have {', '.join(row.heads)}")
    num_labels = num_labels if head in LABELLED_HEADS else 0
    if row.is_causal:
        head_dropout = _head_dropout(fields, row, head, 0.0, where)
        return causal_encoders.config_from_hf(
            fields, where, head=head, num_labels=num_labels, classifier_dropout=head_dropout
        )
    settings = _read_settings(fields, row, where)
    settings["head"] = head
    settings["num_labels"] = num_labels
    if model_type == "electra" and head == "masked" and settings["activation"] != "gelu":
        raise CheckpointError(f"{where}: hidden_act is not 'gelu', the only activation of electra's masked LM head")
    names_with_pooler = row.heads["label" if head == "label" else "plain"].names
    settings["pooler"] = any(name == "pooler" for name, _ in names_with_pooler)
    settings["classifier_dropout"] = _head_dropout(fields, row, head, settings["dropout"], where)
    if head == "label":
        for name, value in row.label_settings.items():
            settings[name] = settings.get(value, value)
        settings["pooler_dropout"] = settings["classifier_dropout"] if row.has_pooler_dropout else 0.0
    try:
        config = BertConfig().override(settings)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {error}") from None
    check_vocab_size(fields, "vocab_size", where)
    return config


def _find_row(model_type: str, where: str) -> EncoderType:
    if model_type not in ENCODER_TYPES:
        allowed = ", ".join(ENCODER_TYPES)
        raise CheckpointError(
            f"{where}: a model of type {model_type!r:.60}, which is not read as an encoder: {allowed} are"
        )
    return ENCODER_TYPES[model_type]


def _check_supported(fields: Mapping[str, Any], where: str) -> None:
    """Raise where a `config.json` requests what our encoder does not compute."""
    for flag in ("is_decoder", "add_cross_attention"):
        if fields.get(flag):
            raise CheckpointError(f"{where}: {flag} is true: only encoders are read")
    if fields.get("use_bias") is False:
        raise CheckpointError(f"{where}: use_bias is false: models without biases of query, key and value are not read")
    position_scheme = fields.get("position_embedding_type", "absolute")
    if position_scheme != "absolute":
        raise CheckpointError(f"{where}: position_embedding_type is {position_scheme!r:.60}: only 'absolute' is read")
    if fields.get("inner_group_num", 1) != 1:
        raise CheckpointError(f"{where}: inner_group_num is {fields['inner_group_num']!r:.60}: only 1 is read")
    if fields.get("num_hidden_groups") == 0:
        raise CheckpointError(f"{where}: num_hidden_groups is 0: layers need at least one group of weights")


def _read_settings(fields: Mapping[str, Any], row: EncoderType, where: str) -> dict[str, Any]:
    """Our settings of the backbone, by dotted path."""
    settings: dict[str, Any] = {
        name: field_value(fields, hf_name, default, where) for hf_name, name, default in row.fields
    }
    if row.has_layer_types:
        settings |= read_layers(fields, where)
    settings |= row.fixed_settings
    settings["activation"] = read_activation(settings["activation"])
    if "attention" in settings:
        settings["attention"] = _ATTENTION.get(settings["attention"], settings["attention"])
    if row.has_positions_after_pad:
        settings["position_offset"] = settings["pad_id"] + 1
        settings["max_positions"] -= settings["position_offset"]
    if settings.get("embedding_size") == settings["hidden_size"] and not row.has_mandatory_projection:
        settings["embedding_size"] = 0
    return settings


def _head_dropout(fields: Mapping[str, Any], row: EncoderType, head: str, dropout: float, where: str) -> float:
    """Dropout before a head's output layer; `dropout` is that of the backbone."""
    names = row.heads[head]
    if not names.dropout_field:
        return 0.0
    default = dropout if names.default_dropout is None else names.default_dropout
    return float(field_value(fields, names.dropout_field, default, where))


def config_to_hf(
    config: BertConfig, model_type: str, labels: LabelNames, original: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Content of `config.json`. Fields of an imported folder's `original` that we do not know are written back."""
    if model_type == NATIVE_TYPE:
        fields: dict[str, Any] = {
            "model_type": NATIVE_TYPE,
            "architectures": ["RegardEncoder"],
            "regard": config.to_dict(),
        }
        return fields | _label_fields(config, labels)
    row = ENCODER_TYPES[model_type]
    if not original or original.get("model_type") != model_type:
        original = {}
    if row.is_causal:
        fields = causal_encoders.write_fields(config, model_type, original)
    else:
        fields = _write_fields(config, model_type, original)
    fields["architectures"] = [row.heads[config.head].architecture]
    dropout_field = row.heads[config.head].dropout_field
    if dropout_field and _head_dropout(fields, row, config.head, config.dropout, "") != config.classifier_dropout:
        fields[dropout_field] = config.classifier_dropout
    return with_float32_dtype(fields | _label_fields(config, labels, original))


def _write_fields(config: BertConfig, model_type: str, original: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `config.json` but those of the head."""
    row = ENCODER_TYPES[model_type]
    values = _hf_values(config)
    fields: dict[str, Any] = {
        **(original or row.extra_fields),
        "model_type": model_type,
    }
    for hf_name, name, default in row.fields:
        if not original or _differs(original, hf_name, default, values[name]):
            fields[hf_name] = values[name]
    if row.has_layer_types:
        layers = write_layers(config, values["activation"])
        num_layers = {"num_hidden_layers": config.stack.num_layers}
        if not original or _read_layer_settings(original) != _read_layer_settings(layers | num_layers):
            fields |= layers
    return fields


def _hf_values(config: BertConfig) -> dict[str, Any]:
    """Our settings, by dotted path, with the values that Hugging Face's fields have."""
    values = _flatten(config)
    values["max_positions"] += values["position_offset"]
    values["embedding_size"] = config.embedding_dim
    values["layer_groups"] = config.layer_groups or config.stack.num_layers
    values["activation"] = write_activation(values["activation"])
    values["attention"] = next(hf_name for hf_name, name in _ATTENTION.items() if name == values["attention"])
    return values


def _read_layer_settings(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    return (fields.get("num_hidden_layers"), *read_layers(fields, "").values())


def _differs(original: Mapping[str, Any], hf_name: str, default: Any, value: Any) -> bool:
    """Whether a field of an imported folder has another value; two names of one activation are the same."""
    original_value = field_value(original, hf_name, default, "")
    if original_value == value:
        return False
    activations = dict(ACTIVATIONS)
    return bool(activations.get(str(original_value), original_value) != activations.get(str(value), value))


def _label_fields(config: BertConfig, labels: LabelNames, original: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Fields of the labels; none where the head has no labels, or where the original fields still hold."""
    if config.head not in LABELLED_HEADS:
        return {}
    if original and read_labels(original, "") == labels:
        return {}
    names = labels.names or tuple(f"LABEL_{index}" for index in range(config.num_labels))
    fields: dict[str, Any] = {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
    if labels.problem_type:
        fields["problem_type"] = labels.problem_type
    return fields


def _flatten(config: BertConfig) -> dict[str, Any]:
    """Settings by dotted path."""
    values = config.to_dict()
    stack = values.pop("stack")
    return values | {f"stack.{name}": value for name, value in stack.items()}


def hf_model_type(config: BertConfig, preferred: str = "bert") -> tuple[str, str]:
    """Model type of a config in `config.json`, and the reason if it is our own.

    >>> hf_model_type(BertConfig(vocab_size=9))
    ('bert', '')
    >>> hf_model_type(BertConfig(vocab_size=9, norm_placement="pre"))
    ('regard-bert', "no Hugging Face type has norm_placement 'pre'")
    """
    if changed := config.stack.changed_parts():
        return NATIVE_TYPE, f"no Hugging Face type has {' and '.join(changed)}"
    first_reason = ""
    for model_type in dict.fromkeys((preferred, *ENCODER_TYPES)):
        row = ENCODER_TYPES.get(model_type)
        if row is None or config.head not in row.heads or (row.is_causal and not config.causal):
            continue
        try:
            expressed = _round_trip(config, model_type)
        except (CheckpointError, ConfigError):
            continue  # the config contradicts what the type has in place of settings that it lacks
        if expressed == config:
            return model_type, ""
        settings = _flatten(config)
        expressed_settings = _flatten(expressed)
        different = [f"{name} {settings[name]!r}" for name in settings if settings[name] != expressed_settings[name]]
        first_reason = first_reason or f"no Hugging Face type has {' and '.join(different)}"
    return NATIVE_TYPE, first_reason


def _round_trip(config: BertConfig, model_type: str) -> BertConfig:
    """Write a config as a model type and read it back; settings without effect on this head stay."""
    fields = config_to_hf(config, model_type, LabelNames())
    expressed = config_from_hf(fields, config.head, config.num_labels, "")
    without_effect: dict[str, Any] = {
        "token_dropout": config.token_dropout,
        "pooler_dropout": config.pooler_dropout,
        "classifier_dropout": config.classifier_dropout,
    }
    has_pooler_setting = {"plain": config.pooler, "label": not config.head_transform}.get(config.head, False)
    if not has_pooler_setting:
        without_effect["pooler"] = config.pooler
    if not config.attention_window:
        without_effect["global_every"] = config.global_every
        without_effect["local_rope_theta"] = config.local_rope_theta
    if config.head != "label":
        without_effect["pooling"] = config.pooling
    if config.head != "label" and not config.has_pooler:
        without_effect["pooler_activation"] = config.pooler_activation
    return expressed.override(without_effect)


def detect_head(hf_config: Mapping[str, Any], names: Iterable[str], where: str) -> tuple[str, str]:
    """Head that a folder's weights hold, and a note where `config.json` names another one.

    The weights decide; among several heads the one that `architectures` names.
    """
    row = _find_row(str(hf_config.get("model_type")), where)
    normalized_names = set(normalize_names(names, row))
    heads = [head for head in ENCODER_HEADS if head in row.heads and _holds_head(normalized_names, row, head)]
    architecture = _architecture(hf_config)
    named = named_head(hf_config, where)
    if named in heads:
        return named, ""
    if architecture in row.other_heads:
        return "plain", ""
    if "label" in heads and named != "label" and "token" in heads:
        heads.remove("token")  # the output layer follows a pooler
    head = next((candidate for candidate in _HEAD_PRIORITY if candidate in heads), "plain")
    if not architecture:
        return head, ""
    model_type = "a model without a head" if head == "plain" else f"one with a {head} head"
    if named:
        return head, f"{where} names {architecture}, but the weights are those of {model_type}: it is read as such"
    allowed = ", ".join(head_names.architecture for head_names in row.heads.values())
    return head, f"{where} names {architecture}, which is unknown ({allowed} are known): read as {model_type}"


def named_head(hf_config: Mapping[str, Any], where: str) -> str:
    """Head that `architectures` names; empty where it names none that is known.

    >>> named_head({"model_type": "albert", "architectures": ["AlbertForMaskedLM"]}, "config.json")
    'masked'
    """
    row = _find_row(str(hf_config.get("model_type")), where)
    architecture = _architecture(hf_config)
    return next((head for head, head_names in row.heads.items() if head_names.architecture == architecture), "")


def _architecture(hf_config: Mapping[str, Any]) -> str:
    """Class of transformers that a `config.json` names first; empty where it names none."""
    architectures = hf_config.get("architectures")
    return str(architectures[0]) if isinstance(architectures, list) and architectures else ""


def _holds_head(normalized_names: set[str], row: EncoderType, head: str) -> bool:
    """Whether the weights of a head are among these names."""
    if head == "plain":
        return True
    modules = [hf_name for name, hf_name in row.heads[head].names if name != "mlm_head_output.weight"]
    return all(any(is_in_module(name, module) for name in normalized_names) for module in modules)
