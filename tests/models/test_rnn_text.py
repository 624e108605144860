"""Classifiers: pooling, the mix of frozen layers, and texts that do not depend on their neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.attention.dropout import Noise
from regard.attention.packed_batch import PackedBatch
from regard.attention.trace import trace
from regard.config.rnn_models import RnnClassifierConfig, RnnTextConfig
from regard.models.base import initialize_weights
from regard.models.layers.pooling import POOLING, Pooling, ScalarMix
from regard.models.rnn_text import RnnClassifier, TextBatch
from regard.tokens import Tokens

ROWS = [[7, 3, 9], [5], [4, 11, 6, 2, 8]]
LAYERS, FEATURES = 3, 7


def model(pooling: str = "attention", features: bool = False, cell: str = "lstm") -> RnnClassifier:
    beside = {"num_feature_layers": LAYERS, "feature_size": FEATURES} if features else {}
    reader = RnnTextConfig(vocab_size=13, embedding_size=5, hidden_size=11, cell=cell, **beside)  # type: ignore[arg-type]
    made = RnnClassifier(RnnClassifierConfig(num_labels=4, pooling=pooling, encoder=reader))
    initialize_weights(made, 3)
    return made.double().eval()


def texts(rows: list[list[int]], features: bool) -> TextBatch:
    found = [np.random.default_rng(len(row)).standard_normal((len(row), LAYERS, FEATURES)) for row in rows]
    return TextBatch(Tokens.from_rows(rows), np.concatenate(found).astype(np.float16) if features else None)


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("pooling", ["attention", "mean", "max"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_text_has_the_same_chances_in_any_company(pooling: str, features: bool, cell: str) -> None:
    classifier = model(pooling, features, cell)
    together = classifier.probabilities(texts(ROWS, features))
    np.testing.assert_allclose(together.sum(1), 1, rtol=1e-6)
    for row, found in zip(ROWS, together, strict=True):
        np.testing.assert_allclose(found, classifier.probabilities(texts([row], features))[0], rtol=1e-5)


def test_every_pooling_is_what_its_name_says() -> None:
    rows = PackedBatch(np.array([3, 1]))
    states = torch.tensor([[1.0, -2.0], [3.0, -4.0], [2.0, -9.0], [-5.0, 7.0]])
    assert Pooling("mean", 2)(states, rows).tolist() == [[2.0, -5.0], [-5.0, 7.0]]
    assert Pooling("max", 2)(states, rows).tolist() == [[3.0, -2.0], [-5.0, 7.0]]
    looking = Pooling("attention", 2)
    with torch.no_grad():
        keys = torch.tanh(states @ looking.key.weight.T + looking.key.bias)
        weights = torch.softmax(keys[:3] @ looking.query.weight[0], dim=0)
        wanted = torch.stack([weights @ states[:3], states[3]])
        with trace(POOLING, full_precision=True) as seen:
            found = looking(states, rows)
    torch.testing.assert_close(found, wanted)
    np.testing.assert_allclose(seen[POOLING].weights[0, 0, 0], weights, rtol=1e-5)
    assert seen[POOLING].weights[1, 0, 0].tolist() == [1.0, 0.0, 0.0]


def test_the_mix_weighs_normalised_layers() -> None:
    mix, generator = ScalarMix(3), torch.Generator().manual_seed(1)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.scale.fill_(3.0)
    layers = torch.randn(5, 3, 7, generator=generator)
    normal = (layers - layers.mean(-1, keepdim=True)) / (layers.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    shares = torch.tensor([0.5, -1.0, 2.0]).exp()
    wanted = 3 * sum(share / shares.sum() * normal[:, number] for number, share in enumerate(shares))
    torch.testing.assert_close(mix(layers), wanted)


def test_frozen_layers_are_used_and_their_mix_is_learned() -> None:
    classifier, labels = model(features=True), np.array([0, 3, 1])
    given = texts(ROWS, True)
    other = TextBatch(given.tokens, -given.features)  # type: ignore[operator]
    assert not np.allclose(classifier.probabilities(given), classifier.probabilities(other))
    classifier.loss(given, labels)[0].backward()
    for name, parameter in classifier.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.abs().sum() > 0), name
    assert classifier.encoder.mix_weights() == ([pytest.approx(1 / LAYERS)] * LAYERS, 1.0)
    assert model().encoder.mix_weights() == ([], 0.0)


def test_the_loss_is_that_of_the_chances() -> None:
    classifier, labels, given = model(), np.array([2, 0, 3]), texts(ROWS, False)
    smoothed, plain = classifier.loss(given, labels, smoothing=0.2)
    chances = np.log(classifier.probabilities(given).astype(np.float64))
    right = -chances[np.arange(3), labels].sum()
    assert plain.item() == pytest.approx(right, rel=1e-5)
    assert smoothed.item() == pytest.approx(0.8 * right - 0.2 * chances.mean(1).sum(), rel=1e-5)
    noisy = [classifier.loss(given, labels, noise=Noise(1, step))[0].item() for step in (1, 1, 2)]
    assert noisy[0] == noisy[1] != noisy[2]
