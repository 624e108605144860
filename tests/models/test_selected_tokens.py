"""States of chosen tokens: the last layer makes no others, and they and all gradients are what they would be."""

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
from regard.tasks.windows import encode_for_training
from regard.tokens import Tokens

BLOCK = 8
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "before"},
    {"positions": "rotary", "bias": False, "gated": True},
    {"layer_groups": 1},
    {"positions": "rotary", "attention_window": 2, "global_every": 2},  # the last layer looks at whole rows
    {"positions": "rotary", "attention_window": 2, "global_every": 3},  # it looks near
    {
        "positions": "rotary",
        "attention_window": 64,
        "global_every": 3,
        "local_rope_theta": 100.0,
    },  # it looks near, at all there is
    {"attention": "blocks", "block_size": 4},
]


def encoder(**changes: Any) -> Bert:
    sizes = {
        "vocab_size": 50,
        "hidden_size": 16,
        "max_positions": 64,
        "stack": StackConfig(num_layers=3, num_heads=2, feed_forward_size=20),
    }
    model = Bert(BertConfig(**{**sizes, **changes}))
    initialize_bert(model, 3, std=0.5)
    return model


def read() -> Tokens:
    chance = np.random.default_rng(1)
    return Tokens.from_rows([chance.integers(0, 50, length) for length in (7, 3, 60, 1)])


def gradient(model: Bert, made: Tensor) -> Tensor:
    model.zero_grad()
    (made * torch.linspace(-1, 1, made.numel()).view(made.shape)).sum().backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def same(found: Tensor, wanted: Tensor) -> bool:
    if found.shape != wanted.shape:
        return False
    return not found.numel() or bool((found - wanted).abs().max() <= 1e-5 * wanted.abs().max())


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("count", [0, 1, 9, 71])
def test_they_and_their_gradients_are_those_of_all_states(changes: dict[str, Any], count: int) -> None:
    model = encoder(**changes)
    ids, rows = model.to_tensors(read(), 64)
    places = np.random.default_rng(2).permutation(rows.num_tokens)[:count]
    chosen = SelectedTokens(rows, places, BLOCK)
    few = model(ids, rows, None, None, chosen)
    assert len(few) == -(-count // BLOCK) * BLOCK
    every = model(ids, rows)[torch.from_numpy(places)]
    assert same(few[:count], every)
    assert same(gradient(model, few[:count]), gradient(model, every))


def test_the_last_layer_makes_no_others() -> None:
    model = encoder()
    ids, rows = model.to_tensors(read())
    made: list[int] = []
    for block in model.stack.blocks:
        block.feedforward.inner.register_forward_hook(lambda _module, _given, out: made.append(len(out)))
    model(ids, rows, None, None, SelectedTokens(rows, np.array([0, 7, 10, 70])))
    assert made == [71, 71, 4]


def test_who_watches_sees_every_token_and_changes_nothing() -> None:
    model = encoder(dropout=0.1, attention_dropout=0.1)
    ids, rows = model.to_tensors(read())
    chosen, noise = SelectedTokens(rows, np.array([3, 70])), Noise(1, 7)
    with torch.inference_mode():
        alone = model(ids, rows, None, noise, chosen)
        with trace() as seen:
            watched = model(ids, rows, None, noise, chosen)
        with trace() as every:
            model(ids, rows, None, noise)
    assert torch.equal(watched, alone)
    assert np.allclose(seen["encoder.2.self"].weights, every["encoder.2.self"].weights, rtol=0, atol=1e-6)
    assert seen["encoder.2.self"].weights.shape[2] == 60


def test_a_place_that_is_no_token_is_refused() -> None:
    model = encoder()
    _, rows = model.to_tensors(read(), 64)
    with pytest.raises(IndexError, match="places from 3 to 71 of 71 tokens"):
        SelectedTokens(rows, np.array([3, 71]))


@pytest.mark.parametrize("changes", [{}, {"head_transform": True}], ids=str)
def test_a_label_is_told_by_first_tokens_alone(changes: dict[str, Any]) -> None:
    model, tokens = encoder(head="label", num_labels=3, **changes), read()
    assert model.config.classifies_first_token
    found = model.head_logits(*encode_for_training(model, tokens, None, None, tokens.offsets[:-1]))
    assert same(found, torch.from_numpy(model.logits(tokens)))


def test_other_heads_need_more_states() -> None:
    assert not encoder(head="label", num_labels=3, head_transform=True, pooling="mean").config.classifies_first_token
    assert not encoder(head="token", num_labels=3).config.classifies_first_token
