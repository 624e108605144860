"""The temperature divides attention scores and what positions add to them; the engine runs the models that it can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.attention.trace import trace
from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.engine.folder import unsupported_reason
from regard.models import build_model
from regard.packed_tokens import Tokens

TEMPERATURE = 2.5
STACK = StackConfig(num_layers=1, num_heads=2, feed_forward_size=11)
SIZES: dict[str, Any] = {"hidden_size": 12, "dropout": 0.0, "max_positions": 17}
CONFIGS = [
    BertConfig(vocab_size=13, stack=STACK, **SIZES),
    GptConfig(vocab_size=13, stack=STACK, **SIZES),
    TransformerConfig(source_vocab_size=13, target_vocab_size=13, encoder=STACK, decoder=STACK, **SIZES),
]
Config = BertConfig | GptConfig | TransformerConfig


def with_temperature(config: Config, temperature: float) -> Config:
    names = ("encoder", "decoder") if isinstance(config, TransformerConfig) else ("stack",)
    return config.override({f"{name}.attention_temperature": temperature for name in names})


def attention_weights(config: Config) -> dict[str, NDArray[np.float32]]:
    """Weights of the first attention to a text, by site, of a model with large random weights."""
    model: Any = build_model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(len(name)))
    tokens = Tokens.from_rows([[5, 6, 7, 8, 9, 10, 4]])
    with trace("*.0.self", full_precision=True) as captured, torch.no_grad():
        if isinstance(config, TransformerConfig):
            model.eval()(tokens, tokens)
        else:
            model.eval().layer_states(tokens)
    return {site: captured[site].weights for site in captured}


@pytest.mark.parametrize("positions", ["none", "rotary", "alibi", "relative"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.family)
def test_the_temperature_divides_all_that_is_normalized(config: Config, positions: str) -> None:
    config = config.override({"positions": positions})
    usual = attention_weights(config)
    tempered = attention_weights(with_temperature(config, TEMPERATURE))
    assert usual.keys() == tempered.keys()
    for site, weights in usual.items():
        powers = weights ** (1 / TEMPERATURE)
        np.testing.assert_allclose(tempered[site], powers / powers.sum(-1, keepdims=True), atol=1e-5)
        assert np.abs(tempered[site] - weights).max() > 1e-2


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.family)
def test_the_engine_leaves_a_temperature_to_torch_where_positions_add_to_scores(config: Config) -> None:
    tempered = with_temperature(config, TEMPERATURE)
    for positions in ("learned", "rotary"):
        assert unsupported_reason(tempered.override({"positions": positions})) == ""
    for positions in ("alibi", "relative"):
        assert unsupported_reason(config.override({"positions": positions})) == ""
        reason = f"it has no attention_temperature with {positions} positions"
        assert unsupported_reason(tempered.override({"positions": positions})) == reason
