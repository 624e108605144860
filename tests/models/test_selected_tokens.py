"""Hidden states of selected tokens: the last layer computes no others, and values and gradients are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.dropout import Noise
from regard.attention.packed_batch import SelectedTokens
from regard.attention.trace import trace
from regard.config.models import BertConfig, StackConfig
from regard.models.bert import Bert, initialize_bert
from regard.packed_tokens import Tokens
from regard.tasks.encoder_states import encode_for_training, pooled_indices

TOKEN_MULTIPLE = 8
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_placement": "pre"},
    {"positions": "rotary", "bias": False, "gated": True},
    {"layer_groups": 1},
    {"positions": "rotary", "attention_window": 2, "global_every": 2},  # the last layer is global
    {"positions": "rotary", "attention_window": 2, "global_every": 3},  # it is local
    {  # it is local, but the window holds the whole sequence
        "positions": "rotary",
        "attention_window": 64,
        "global_every": 3,
        "local_rope_theta": 100.0,
    },
    {"attention": "blocks", "block_size": 4},
]


def build_encoder(**changes: Any) -> Bert:
    sizes = {
        "vocab_size": 50,
        "hidden_size": 16,
        "max_positions": 64,
        "stack": StackConfig(num_layers=3, num_heads=2, feed_forward_size=20),
    }
    model = Bert(BertConfig(**{**sizes, **changes}))
    initialize_bert(model, 3, std=0.5)
    return model


def random_tokens() -> Tokens:
    rng = np.random.default_rng(1)
    return Tokens.from_rows([rng.integers(0, 50, length) for length in (7, 3, 60, 1)])


def gradient(model: Bert, hidden: Tensor) -> Tensor:
    model.zero_grad()
    (hidden * torch.linspace(-1, 1, hidden.numel()).view(hidden.shape)).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def is_close(actual: Tensor, expected: Tensor) -> bool:
    if actual.shape != expected.shape:
        return False
    return not actual.numel() or bool((actual - expected).abs().max() <= 1e-5 * expected.abs().max())


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("count", [0, 1, 9, 71])
def test_values_and_gradients_are_those_of_all_hidden_states(changes: dict[str, Any], count: int) -> None:
    model = build_encoder(**changes)
    ids, batch = model.to_tensors(random_tokens(), 64)
    indices = np.random.default_rng(2).permutation(batch.num_tokens)[:count]
    selected = model(ids, batch, None, None, SelectedTokens(batch, indices, TOKEN_MULTIPLE))
    assert len(selected) == -(-count // TOKEN_MULTIPLE) * TOKEN_MULTIPLE
    expected = model(ids, batch)[torch.from_numpy(indices)]
    assert is_close(selected[:count], expected)
    assert is_close(gradient(model, selected[:count]), gradient(model, expected))


def test_the_last_layer_computes_no_others() -> None:
    model = build_encoder()
    ids, batch = model.to_tensors(random_tokens())
    token_counts: list[int] = []
    for block in model.encoder.layers:
        block.feed_forward.up.register_forward_hook(lambda _module, _inputs, output: token_counts.append(len(output)))
    model(ids, batch, None, None, SelectedTokens(batch, np.array([0, 7, 10, 70])))
    assert token_counts == [71, 71, 4]


def test_a_trace_captures_every_token_and_changes_nothing() -> None:
    model = build_encoder(dropout=0.1, attention_dropout=0.1)
    ids, batch = model.to_tensors(random_tokens())
    selected = SelectedTokens(batch, np.array([3, 70]))
    noise = Noise(1, 7)
    with torch.inference_mode():
        untraced = model(ids, batch, None, noise, selected)
        with trace() as captured:
            traced = model(ids, batch, None, noise, selected)
        with trace() as captured_of_all:
            model(ids, batch, None, noise)
    assert torch.equal(traced, untraced)
    weights = captured["encoder.2.self"].weights
    assert np.allclose(weights, captured_of_all["encoder.2.self"].weights, rtol=0, atol=1e-6)
    assert weights.shape[2] == 60


def test_an_index_beyond_the_tokens_is_rejected() -> None:
    model = build_encoder()
    _, batch = model.to_tensors(random_tokens(), 64)
    with pytest.raises(IndexError, match="must be from 0 to 70, not from 3 to 71"):
        SelectedTokens(batch, np.array([3, 71]))


LAST_TOKEN = {"pooling": "last", "causal": True, "pooler": False}


@pytest.mark.parametrize("changes", [{}, {"head_transform": True}, {"pooling": "last"}, LAST_TOKEN], ids=str)
def test_a_label_is_predicted_from_first_or_last_tokens_alone(changes: dict[str, Any]) -> None:
    model = build_encoder(head="label", num_labels=3, **changes)
    tokens = random_tokens()
    assert model.config.pooled_token == changes.get("pooling", "first")
    pooled = pooled_indices(model.config, tokens)
    assert pooled is not None and len(pooled) == len(tokens)
    logits = model.head_logits(*encode_for_training(model, tokens, None, None, pooled))
    assert is_close(logits, torch.from_numpy(model.logits(tokens)))


def test_other_heads_need_more_hidden_states() -> None:
    mean_pooled = build_encoder(head="label", num_labels=3, head_transform=True, pooling="mean")
    assert pooled_indices(mean_pooled.config, random_tokens()) is None
    assert not build_encoder(head="token", num_labels=3).config.pooled_token
