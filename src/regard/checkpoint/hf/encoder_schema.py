"""What a row of the table of Hugging Face's encoder types says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Fields = tuple[tuple[str, str, Any], ...]  # HF config field, our setting, default of an absent field
Names = tuple[tuple[str, str], ...]  # our module or weight, HF name; a leading dot: in the backbone


@dataclass(frozen=True)
class HeadNames:
    """Names of one head of an encoder type."""

    architecture: str  # class in transformers
    names: Names = ()
    dropout_field: str = ""  # of the dropout before the output layer; empty: there is none
    default_dropout: float | None = None  # of an absent field; None: that of the backbone
    unused_layers: tuple[str, ...] = ()  # [hidden, hidden] layers of the backbone that the class has but does not use


@dataclass(frozen=True)
class EncoderType:
    """Names, defaults and peculiarities of one of Hugging Face's encoder types."""

    prefix: str  # of the backbone's weights; optional when read
    fields: Fields
    backbone: Names
    layer_prefix: str  # with the layer's index
    block: tuple[tuple[str, tuple[str, ...]], ...]  # our module, HF modules, which are rows of ours
    heads: Mapping[str, HeadNames]
    tied_copies: Mapping[str, str]  # our weight → HF name of a tied copy
    fixed_settings: Mapping[str, Any] = field(default_factory=dict)  # settings of ours that the type implies
    extra_fields: Mapping[str, Any] = field(default_factory=dict)  # HF fields that new folders have besides
    has_positions_after_pad: bool = False  # positions count from the pad id
    has_mandatory_projection: bool = False  # embeddings are projected even where they are as wide as hidden states
    has_pooler_dropout: bool = False  # a label head has dropout before its pooler too
    label_settings: Mapping[str, Any] = field(default_factory=dict)  # of a label head: setting → value or other setting
    has_layer_types: bool = False  # layers differ, as `modernbert` reads and writes them
    other_heads: Mapping[str, str] = field(default_factory=dict)  # class whose head is not read → module of the head
    layouts: Mapping[str, str] = field(default_factory=dict)  # our module → layout of its matrix, if another (`causal`)
    buffers: tuple[str, ...] = ()  # endings of tensors that are no weights
    is_causal: bool = False  # a decoder without cross-attention, whose fields `causal` reads and writes
    template: tuple[str, str, bool] = ("[CLS]", "[SEP]", False)  # start, end, two ends between texts and no token types
