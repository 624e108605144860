"""Codes of positions, for display: torch models and the engine have the same ones, whatever the size of a head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from regard.config.description import bert_stack, gpt_stack, transformer_decoder
from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.engine.positions import rotary_codes, sinusoids
from regard.models import build_model

STACK = StackConfig(num_layers=1, num_heads=3, feed_forward_size=7)
CONFIGS = [  # with the description of the stack whose positions are shown
    (BertConfig(vocab_size=13, hidden_size=30, stack=STACK), bert_stack),
    (GptConfig(vocab_size=13, hidden_size=30, stack=STACK), gpt_stack),
    (
        TransformerConfig(source_vocab_size=13, target_vocab_size=13, hidden_size=30, encoder=STACK, decoder=STACK),
        transformer_decoder,
    ),
]


def with_positions(config: Any, positions: str, hidden_size: int, head_size: int) -> Any:
    names = ("encoder", "decoder") if isinstance(config, TransformerConfig) else ("stack",)
    sizes = {"hidden_size": hidden_size, **{f"{name}.head_size": head_size for name in names}}
    return config.override({"positions": positions, **sizes})


@pytest.mark.parametrize(("hidden_size", "head_size"), [(30, 0), (30, 4), (64, 16)])
@pytest.mark.parametrize(("config", "describe_stack"), CONFIGS, ids=lambda part: getattr(part, "family", ""))
def test_rotary_codes_have_the_width_of_a_head(
    config: Any, describe_stack: Any, hidden_size: int, head_size: int
) -> None:
    config = with_positions(config, "rotary", hidden_size, head_size)
    model: Any = build_model(config)
    name, codes = model.position_codes(5)
    expected_name, expected = rotary_codes(describe_stack(config), range(5))
    assert (name, codes.shape) == (expected_name, (5, head_size or 10))
    np.testing.assert_allclose(codes, expected, atol=1e-6)


@pytest.mark.parametrize(("config", "describe_stack"), CONFIGS, ids=lambda part: getattr(part, "family", ""))
def test_added_codes_have_the_hidden_size(config: Any, describe_stack: Any) -> None:
    model: Any = build_model(with_positions(config, "sinusoidal", 30, 4))
    name, codes = model.position_codes(5)
    assert name == "sinusoidal"
    np.testing.assert_allclose(codes, sinusoids(range(5), 30), atol=1e-6)
