"""RNN classifiers: pooling, the scalar mix of frozen layers, and texts that do not depend on their batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.attention.dropout import Noise
from regard.attention.packed_batch import PackedBatch
from regard.attention.sites import POOLING_SITE
from regard.attention.trace import trace
from regard.config.rnn_models import RnnClassifierConfig, RnnTextConfig
from regard.models.base import initialize_weights
from regard.models.layers.pooling import Pooling, ScalarMix
from regard.models.rnn_text import RnnClassifier
from regard.models.text_classifier import TextBatch
from regard.packed_tokens import Tokens

ROWS = [[7, 3, 9], [5], [4, 11, 6, 2, 8]]
LAYERS, FEATURES = 3, 7


def build_classifier(pooling: str = "attention", features: bool = False, cell: str = "lstm") -> RnnClassifier:
    feature_sizes = {"num_feature_layers": LAYERS, "feature_size": FEATURES} if features else {}
    encoder = RnnTextConfig(vocab_size=13, embedding_size=5, hidden_size=11, cell=cell, **feature_sizes)  # type: ignore[arg-type]
    model = RnnClassifier(RnnClassifierConfig(num_labels=4, pooling=pooling, encoder=encoder))
    initialize_weights(model, 3)
    return model.double().eval()


def text_batch(rows: list[list[int]], has_features: bool) -> TextBatch:
    features = [np.random.default_rng(len(row)).standard_normal((len(row), LAYERS, FEATURES)) for row in rows]
    return TextBatch(Tokens.from_rows(rows), np.concatenate(features).astype(np.float16) if has_features else None)


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("pooling", ["attention", "mean", "max", "last"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_text_has_the_same_probabilities_in_any_batch(pooling: str, features: bool, cell: str) -> None:
    classifier = build_classifier(pooling, features, cell)
    together = classifier.probabilities(text_batch(ROWS, features))
    np.testing.assert_allclose(together.sum(1), 1, rtol=1e-6)
    for row, probabilities in zip(ROWS, together, strict=True):
        alone = classifier.probabilities(text_batch([row], features))[0]
        np.testing.assert_allclose(probabilities, alone, rtol=1e-5)


def test_every_pooling_is_what_its_name_says() -> None:
    batch = PackedBatch(np.array([3, 1]))
    hidden = torch.tensor([[1.0, -2.0], [3.0, -4.0], [2.0, -9.0], [-5.0, 7.0]])
    assert Pooling("mean", 2)(hidden, batch).tolist() == [[2.0, -5.0], [-5.0, 7.0]]
    assert Pooling("max", 2)(hidden, batch).tolist() == [[3.0, -2.0], [-5.0, 7.0]]
    assert Pooling("last", 2)(hidden, batch).tolist() == [[2.0, -9.0], [-5.0, 7.0]]
    assert Pooling("last", 2, num_directions=2)(hidden, batch).tolist() == [[2.0, -2.0], [-5.0, 7.0]]
    attention = Pooling("attention", 2)
    with torch.no_grad():
        keys = torch.tanh(hidden @ attention.key.weight.T + attention.key.bias)
        weights = torch.softmax(keys[:3] @ attention.query.weight[0], dim=0)
        expected = torch.stack([weights @ hidden[:3], hidden[3]])
        with trace(POOLING_SITE, full_precision=True) as captured:
            pooled = attention(hidden, batch)
    torch.testing.assert_close(pooled, expected)
    np.testing.assert_allclose(captured[POOLING_SITE].weights[0, 0, 0], weights, rtol=1e-5)
    assert captured[POOLING_SITE].weights[1, 0, 0].tolist() == [1.0, 0.0, 0.0]


def test_one_direction_reads_forwards_alone_and_the_last_state_is_that_of_the_last_token() -> None:
    encoder = RnnTextConfig(vocab_size=13, embedding_size=5, hidden_size=11, directions="one")
    model = RnnClassifier(RnnClassifierConfig(num_labels=4, pooling="last", encoder=encoder)).eval()
    initialize_weights(model, 3)
    hidden, packed = model.hidden_states(text_batch([[7, 3, 9], [7, 3, 2]], False), None)
    assert hidden.shape == (6, 11)
    assert torch.equal(hidden[:2], hidden[3:5])  # what comes later changes nothing
    assert torch.equal(model.pooling(hidden, packed), hidden[[2, 5]])
    both = build_classifier()
    hidden, _ = both.hidden_states(text_batch([[7, 3, 9], [7, 3, 2]], False), None)
    assert hidden.shape == (6, 22) and not torch.equal(hidden[0], hidden[3])


def test_the_scalar_mix_weights_normalised_layers() -> None:
    mix = ScalarMix(3)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.scale.fill_(3.0)
    layers = torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(1))
    variance = layers.var(-1, keepdim=True, unbiased=False)
    normed = (layers - layers.mean(-1, keepdim=True)) / (variance + 1e-5).sqrt()
    exponentials = torch.tensor([0.5, -1.0, 2.0]).exp()
    layer_weights = exponentials / exponentials.sum()
    expected = 3 * sum(weight * normed[:, layer] for layer, weight in enumerate(layer_weights))
    torch.testing.assert_close(mix(layers), expected)


def test_frozen_layers_are_used_and_their_mix_is_learned() -> None:
    classifier = build_classifier(features=True)
    labels = np.array([0, 3, 1])
    batch = text_batch(ROWS, True)
    negated = TextBatch(batch.tokens, -batch.features)  # type: ignore[operator]
    assert not np.allclose(classifier.probabilities(batch), classifier.probabilities(negated))
    classifier.loss(batch, labels)[0].backward()
    for name, parameter in classifier.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.abs().sum() > 0), name
    assert classifier.encoder.mix_weights() == ([pytest.approx(1 / LAYERS)] * LAYERS, 1.0)
    assert build_classifier().encoder.mix_weights() == ([], 0.0)


def test_the_loss_is_that_of_the_probabilities() -> None:
    classifier = build_classifier()
    labels = np.array([2, 0, 3])
    batch = text_batch(ROWS, False)
    smoothed, plain = classifier.loss(batch, labels, smoothing=0.2)
    logprobs = np.log(classifier.probabilities(batch).astype(np.float64))
    expected = -logprobs[np.arange(3), labels].sum()
    assert plain.item() == pytest.approx(expected, rel=1e-5)
    assert smoothed.item() == pytest.approx(0.8 * expected - 0.2 * logprobs.mean(1).sum(), rel=1e-5)
    noisy = [classifier.loss(batch, labels, noise=Noise(1, step))[0].item() for step in (1, 1, 2)]
    assert noisy[0] == noisy[1] != noisy[2]
