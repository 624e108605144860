"""Weights of an encoder's heads are known by the beginnings of their names."""

from __future__ import annotations

from typing import Any

import pytest

from regard.config.models import ENCODER_HEADS, HEAD_PREFIXES, POOLING_KINDS, BertConfig, StackConfig
from regard.models.bert import Bert

CONFIG = BertConfig(
    vocab_size=11, hidden_size=8, stack=StackConfig(num_layers=2, num_heads=2, feed_forward_size=5), num_labels=3
)
VARIANTS: list[dict[str, Any]] = [
    *({"head": head} for head in ENCODER_HEADS),
    *({"head": head, "head_transform": True} for head in ("label", "token", "span")),
    *({"head": "label", "pooling": pooling} for pooling in POOLING_KINDS),
    {"head": "span", "span_feed_forward": True},
    {"head": "masked", "tie_embeddings": False},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_all_weights_but_those_of_the_backbone_begin_with_a_head_prefix(variant: dict[str, Any]) -> None:
    backbone = set(Bert(CONFIG.override({"pooler": False})).state_dict())
    names = set(Bert(CONFIG.override(variant)).state_dict())
    assert {name for name in names if name.startswith(HEAD_PREFIXES)} == names - backbone
    assert backbone < names
