"""Language modelling beside a task: value and gradient of the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.config.models import BertConfig, StackConfig
from regard.models.bert import Bert, initialize_bert
from regard.packed_tokens import Tokens
from regard.tasks.auxiliary_lm import AuxiliaryLMObjective, mean_lm_loss
from regard.tasks.classification import ClassificationObjective
from regard.tasks.windows import EncodedTexts

ROWS = ([5, 6, 7, 8, 1], [9, 1], [1], [10, 11, 12, 1])


def build_model() -> Bert:
    config = BertConfig(
        vocab_size=13,
        hidden_size=6,
        stack=StackConfig(num_layers=1, num_heads=2, feed_forward_size=7),
        causal=True,
        norm_placement="pre",
        embedding_norm=False,
        num_token_types=0,
        pooling="last",
        pooler=False,
        head="label",
        num_labels=3,
    )
    model = Bert(config)
    initialize_bert(model, 2, 0.5)
    return model


def build_objective() -> ClassificationObjective:
    rows = EncodedTexts()
    for index, row in enumerate(ROWS):
        rows.add(row, [0] * len(row), index)
    return ClassificationObjective(rows, np.array([0, 2, 1, 2]), seed=1, digest="d")


def gradients(model: Bert, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def explicit_lm_loss(model: Bert) -> Tensor:
    """Mean loss over all predicted tokens, row by row."""
    losses = []
    for row in ROWS:
        ids, batch = model.to_tensors(Tokens.from_rows([row]))
        logits = model(ids, batch) @ model.token_embedding.weight.t()
        losses.append(cross_entropy(logits[:-1], ids[1:], reduction="none"))
    return torch.cat(losses).mean()


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_the_loss_is_the_task_loss_plus_the_weighted_mean_loss_of_tokens(weight: float) -> None:
    model = build_model()
    objective = build_objective()
    batch = objective.batch(np.arange(4), 0)
    task_loss, plain_loss = objective.loss(model, batch, 0.1, None)
    expected = task_loss + weight * 4 * explicit_lm_loss(model)
    loss, reported = AuxiliaryLMObjective(objective, weight).loss(model, batch, 0.1, None)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert float(reported) == pytest.approx(float(plain_loss), rel=1e-5)  # of the task alone
    expected_gradients = gradients(model, expected)
    actual_gradients = gradients(model, loss)
    assert actual_gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(actual_gradients[name], gradient, rtol=1e-4, atol=1e-5)


def test_rows_of_one_token_predict_nothing() -> None:
    model = build_model()
    tokens = Tokens.from_rows([[5], [1]])
    ids, batch = model.to_tensors(tokens)
    assert float(mean_lm_loss(model, model(ids, batch), tokens, batch)) == 0


def test_batches_are_those_of_the_task() -> None:
    objective = build_objective()
    auxiliary = AuxiliaryLMObjective(objective, 0.5)
    assert auxiliary.unit == "texts" and auxiliary.lengths.tolist() == [[5], [2], [1], [4]]
    expected = objective.epoch_batches(3, 6)
    batches = auxiliary.epoch_batches(3, 6)
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in expected]
    assert auxiliary.batch(batches[0], 3).num_predictions == len(batches[0])
