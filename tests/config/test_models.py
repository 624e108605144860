"""Configs of Transformers: what contradicts itself or has no effect is refused, and summaries name changed parts."""

from __future__ import annotations

from typing import Any

import pytest

from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.config.settings import Config
from regard.errors import ConfigError

EQUAL_WEIGHTS = {"stack.attention_normalization": "uniform"}


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (
            StackConfig(),
            {"attention_normalization": "uniform", "attention_scale": 0.5},
            r"attention_scale \(0.5\) means nothing to equal weights: set it to auto, or attention_normalization to",
        ),
        (BertConfig(), {**EQUAL_WEIGHTS, "positions": "relative"}, "or stack.attention_normalization to another than"),
        (GptConfig(), {**EQUAL_WEIGHTS, "positions": "alibi"}, "alibi positions add to attention scores, which mean"),
        (
            TransformerConfig(),
            {"decoder.attention_normalization": "uniform", "positions": "relative"},
            "relative positions add to attention scores.* or decoder.attention_normalization to another than uniform",
        ),
        (
            BertConfig(),
            {"causal": True, "attention": "blocks"},
            "a causal encoder needs attention 'full': 'blocks' attends to later tokens, too",
        ),
        (
            BertConfig(),
            {"attention_window": 4, "stack.num_layers": 1},
            r"attention_window \(4\) has no effect: .* with stack.num_layers 1 and global_every 3 no other is local",
        ),
        (BertConfig(), {"attention_window": 4, "global_every": 1}, "with stack.num_layers 4 and global_every 1 no"),
    ],
)
def test_settings_without_effect_are_refused(config: Config, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.override(settings)


def test_equal_weights_and_local_attention_are_accepted_where_they_have_an_effect() -> None:
    for config in (BertConfig(), GptConfig(positions="learned")):
        assert "attention_normalization uniform" in config.override(EQUAL_WEIGHTS).summary()
    local = BertConfig(attention_window=4, global_every=2, stack=StackConfig(num_layers=2))
    assert [local.is_local(layer) for layer in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({}, ""),
        ({"encoder.residual": False}, ", encoder residual false"),
        ({"decoder.attention_scale": 1.0}, ", decoder attention_scale 1"),
        ({"encoder.residual": False, "decoder.residual": False}, ", residual false"),
        (
            {"encoder.head_size": 16, "decoder.head_size": 8, "attention_window": 3},
            ", encoder head_size 16, decoder head_size 8, attention_window 3",
        ),
    ],
)
def test_the_summary_says_which_stack_has_a_changed_part(settings: dict[str, Any], parts: str) -> None:
    config = TransformerConfig()
    assert config.override(settings).summary() == f"{config.summary()}{parts}"
