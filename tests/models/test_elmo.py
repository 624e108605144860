"""ELMo: equal to a plain loop, each direction knows its own side, features alone and in a batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.dropout import Noise
from regard.config.rnn_models import ElmoConfig
from regard.models.base import initialize_weights
from regard.models.elmo import Elmo
from regard.models.layers.recurrent import StackedRNN
from regard.packed_tokens import Tokens
from tests.models.layers.plain import plain_step

VOCAB_SIZE, HIDDEN_SIZE, BOUNDARY = 13, 5, 1
ROW = [1, 7, 3, 9, 4, 11, 1]


def build_elmo(cell: str = "lstm", layers: int = 2, dropout: float = 0.0) -> Elmo:
    config = ElmoConfig(vocab_size=VOCAB_SIZE, cell=cell, hidden_size=HIDDEN_SIZE, num_layers=layers, dropout=dropout)
    model = Elmo(config)
    initialize_weights(model, 3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    return model.double().eval()


def run_plain_loop(rnn: StackedRNN, inputs: Tensor) -> list[Tensor]:
    """Outputs of every layer for one sequence [T, D], one step after the other."""
    layer_outputs = []
    for cell in rnn.layers:
        state = (inputs.new_zeros(1, HIDDEN_SIZE),) * cell.num_states
        outputs = []
        for step_inputs in inputs:
            state = plain_step(cell, step_inputs[None] @ cell.input_weight.T, state)
            outputs.append(state[0][0])
        inputs = torch.stack(outputs)
        layer_outputs.append(inputs)
    return layer_outputs


def embed(elmo: Elmo, ids: list[int]) -> Tensor:
    return elmo.token_embedding.weight[ids] * math.sqrt(HIDDEN_SIZE)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_loss_is_that_of_the_next_and_of_the_previous_token(cell: str) -> None:
    elmo = build_elmo(cell)
    embedded = embed(elmo, ROW)
    from_left = run_plain_loop(elmo.forward_lm, embedded[:-1])[-1]
    from_right = run_plain_loop(elmo.backward_lm, embedded[1:].flip(0))[-1].flip(0)
    expected = []
    for hidden, targets in ((from_left, ROW[1:]), (from_right, ROW[:-1])):
        logits = hidden @ elmo.token_embedding.weight.T + elmo.lm_head_bias
        expected.append(torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="sum"))
    losses = elmo.losses(Tokens.from_rows([ROW]))
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected).float(), rtol=1e-5, atol=1e-5)
    both, plain = elmo.loss(Tokens.from_rows([ROW, ROW[:4]]))
    alone = [sum(elmo.losses(Tokens.from_rows([row]))) for row in (ROW, ROW[:4])]
    assert both.item() == pytest.approx(sum(loss.item() for loss in alone), rel=1e-5)
    assert plain.item() == pytest.approx(both.item(), rel=1e-6)


def test_every_weight_has_a_gradient() -> None:
    elmo = build_elmo()
    elmo.loss(Tokens.from_rows([ROW]))[0].backward()
    for name, parameter in elmo.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.abs().sum() > 0), name


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_features_are_embeddings_and_both_directions_of_every_layer(cell: str) -> None:
    elmo = build_elmo(cell)
    text = [7, 3, 9]
    features = elmo.features(Tokens.from_rows([text]))
    assert features.shape == (3, elmo.num_feature_layers, elmo.feature_size) == (3, 3, 2 * HIDDEN_SIZE)
    embedded = embed(elmo, text)
    left_layers = run_plain_loop(elmo.forward_lm, embed(elmo, [BOUNDARY, *text]))
    right_layers = run_plain_loop(elmo.backward_lm, embed(elmo, [*text, BOUNDARY]).flip(0))
    expected = [torch.cat([embedded, embedded], dim=1)]
    for from_left, from_right in zip(left_layers, right_layers, strict=True):
        expected.append(torch.cat([from_left[1:], from_right.flip(0)[:-1]], dim=1))
    np.testing.assert_allclose(features, torch.stack(expected, dim=1).detach(), rtol=1e-5, atol=1e-6)


def test_each_direction_knows_its_own_side_only() -> None:
    elmo = build_elmo()
    text = [7, 3, 9, 4, 11]
    features = elmo.features(Tokens.from_rows([text]))
    features_of_changed_text = elmo.features(Tokens.from_rows([[*text[:3], 12, text[4]]]))
    is_changed = np.abs(features - features_of_changed_text)[:, 1:] > 1e-7  # [T, recurrent layers, 2D]
    from_left = is_changed[..., :HIDDEN_SIZE]
    from_right = is_changed[..., HIDDEN_SIZE:]
    assert not from_left[:3].any() and from_left[3:].any(axis=(1, 2)).all()
    assert not from_right[4:].any() and from_right[:4].any(axis=(1, 2)).all()


def test_a_text_has_the_same_features_in_any_batch() -> None:
    elmo = build_elmo()
    texts = [[7, 3, 9], [5], [4, 11, 6, 2, 8, 3], [9, 9]]
    together = np.split(elmo.features(Tokens.from_rows(texts)), np.cumsum([len(text) for text in texts])[:-1])
    for text, features in zip(texts, together, strict=True):
        np.testing.assert_allclose(features, elmo.features(Tokens.from_rows([text])), rtol=1e-6, atol=1e-9)


def test_dropout_is_a_function_of_seed_and_step() -> None:
    elmo = build_elmo(dropout=0.5)
    tokens = Tokens.from_rows([ROW, ROW])
    losses = [elmo.loss(tokens, noise=noise)[0].item() for noise in (Noise(1, 2), Noise(1, 2), Noise(1, 3), None)]
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3


def test_a_model_in_bf16_stays_near_float32() -> None:
    elmo = build_elmo().float()
    tokens = Tokens.from_rows([ROW])
    loss = elmo.loss(tokens)[0].item()
    assert elmo.bfloat16().loss(tokens)[0].item() == pytest.approx(loss, rel=0.02)
