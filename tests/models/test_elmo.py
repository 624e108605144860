"""Language models from both ends: plain recurrence, what each direction may know, features alone and in company."""

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
from regard.tokens import Tokens
from tests.models.layers.plain import plain_step

VOCABULARY, WIDTH, BOUNDARY = 13, 5, 1
ROW = [1, 7, 3, 9, 4, 11, 1]


def model(cell: str = "lstm", layers: int = 2, dropout: float = 0.0) -> Elmo:
    config = ElmoConfig(vocab_size=VOCABULARY, cell=cell, hidden_size=WIDTH, num_layers=layers, dropout=dropout)
    made = Elmo(config)
    initialize_weights(made, 3)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    return made.double().eval()


def plainly(reading: StackedRNN, states: Tensor) -> list[Tensor]:
    """What each layer says of each of a row's states [T, D], one step after the other."""
    made = []
    for cell in reading.layers:
        state, outputs = (states.new_zeros(1, WIDTH),) * cell.parts, []
        for given in states:
            state = plain_step(cell, given[None] @ cell.input_weight.T, state)
            outputs.append(state[0][0])
        states = torch.stack(outputs)
        made.append(states)
    return made


def embedded(elmo: Elmo, ids: list[int]) -> Tensor:
    return elmo.words.weight[ids] * math.sqrt(WIDTH)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_loss_is_that_of_the_next_and_of_the_last_token(cell: str) -> None:
    elmo = model(cell)
    states = embedded(elmo, ROW)
    left = plainly(elmo.from_left, states[:-1])[-1]
    right = plainly(elmo.from_right, states[1:].flip(0))[-1].flip(0)
    wanted = []
    for hidden, targets in ((left, ROW[1:]), (right, ROW[:-1])):
        logits = hidden @ elmo.words.weight.T + elmo.output_bias
        wanted.append(torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="sum"))
    found = elmo.losses(Tokens.from_rows([ROW]))
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted).float(), rtol=1e-5, atol=1e-5)
    both, plain = elmo.loss(Tokens.from_rows([ROW, ROW[:4]]))
    alone = [sum(elmo.losses(Tokens.from_rows([row]))) for row in (ROW, ROW[:4])]
    assert both.item() == pytest.approx(sum(loss.item() for loss in alone), rel=1e-5)
    assert plain.item() == pytest.approx(both.item(), rel=1e-6)


def test_gradients_reach_every_weight_and_none_comes_from_nowhere() -> None:
    elmo = model()
    elmo.loss(Tokens.from_rows([ROW]))[0].backward()
    for name, parameter in elmo.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.abs().sum() > 0), name


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_features_are_words_and_both_directions_layer_by_layer(cell: str) -> None:
    elmo, text = model(cell), [7, 3, 9]
    found = elmo.features(Tokens.from_rows([text]))
    assert found.shape == (3, elmo.num_feature_layers, elmo.feature_width) == (3, 3, 2 * WIDTH)
    words = embedded(elmo, text)
    left = plainly(elmo.from_left, embedded(elmo, [BOUNDARY, *text]))
    right = plainly(elmo.from_right, embedded(elmo, [*text, BOUNDARY]).flip(0))
    wanted = [torch.cat([words, words], dim=1)]
    wanted += [torch.cat([one[1:], other.flip(0)[:-1]], dim=1) for one, other in zip(left, right, strict=True)]
    np.testing.assert_allclose(found, torch.stack(wanted, dim=1).detach(), rtol=1e-5, atol=1e-6)


def test_each_direction_knows_its_own_side_only() -> None:
    elmo, text = model(), [7, 3, 9, 4, 11]
    before = elmo.features(Tokens.from_rows([text]))
    after = elmo.features(Tokens.from_rows([[*text[:3], 12, text[4]]]))
    changed = np.abs(before - after)[:, 1:] > 1e-7  # [T, layers of cells, 2D]
    left, right = changed[..., :WIDTH], changed[..., WIDTH:]
    assert not left[:3].any() and left[3:].any(axis=(1, 2)).all()
    assert not right[4:].any() and right[:4].any(axis=(1, 2)).all()


def test_a_text_has_the_same_features_in_any_company() -> None:
    elmo = model()
    texts = [[7, 3, 9], [5], [4, 11, 6, 2, 8, 3], [9, 9]]
    together = np.split(elmo.features(Tokens.from_rows(texts)), np.cumsum([len(text) for text in texts])[:-1])
    for text, found in zip(texts, together, strict=True):
        np.testing.assert_allclose(found, elmo.features(Tokens.from_rows([text])), rtol=1e-6, atol=1e-9)


def test_dropout_is_a_function_of_seed_and_step() -> None:
    elmo, rows = model(dropout=0.5), Tokens.from_rows([ROW, ROW])
    losses = [elmo.loss(rows, noise=noise)[0].item() for noise in (Noise(1, 2), Noise(1, 2), Noise(1, 3), None)]
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3


def test_a_model_in_bf16_stays_near_float32() -> None:
    elmo, rows = model().float(), Tokens.from_rows([ROW])
    loss = elmo.loss(rows)[0].item()
    assert elmo.bfloat16().loss(rows)[0].item() == pytest.approx(loss, rel=0.02)
