"""Frozen features at the words of a text."""

from __future__ import annotations

import numpy as np
import pytest

from regard.config.data import TokenizerConfig
from regard.config.rnn_models import ElmoConfig
from regard.models.base import initialize_weights
from regard.models.elmo import Elmo
from regard.tasks.elmo import ElmoFeatures, pool_spans
from regard.tasks.rnn_text import RnnPreprocessor
from regard.text.train import train_tokenizer
from regard.tokens import Tokens

TEXTS = ["Lower lights, slower nights!", "low", "Ein Café – naïve", "one two three four five six"]
PIECES = train_tokenizer([*TEXTS, "low lower lowest"] * 5, TokenizerConfig(vocab_size=280))
WORDS = train_tokenizer(TEXTS * 3, TokenizerConfig(kind="words"))


@pytest.fixture(scope="module")
def features() -> ElmoFeatures:
    model = Elmo(ElmoConfig(vocab_size=PIECES.vocab_size, hidden_size=7))
    initialize_weights(model, 1)
    return ElmoFeatures(model.eval(), PIECES, "digest")


def test_pieces_that_touch_a_span_are_averaged() -> None:
    layers = np.arange(8, dtype=np.float32).reshape(4, 2, 1)
    pieces = [(0, 2), (2, 4), (5, 7), (7, 9)]
    found = pool_spans(layers, pieces, [(0, 4), (1, 3), (4, 5), (5, 9), (9, 9)])
    assert found[:, 0, 0].tolist() == [1.0, 1.0, 4.0, 5.0, 6.0]
    assert found[:, 1, 0].tolist() == [2.0, 2.0, 5.0, 6.0, 7.0]
    assert pool_spans(layers, pieces, []).shape == (0, 2, 1)


def test_features_of_many_texts_are_those_of_each(features: ElmoFeatures) -> None:
    spans = [WORDS.encode(text).spans for text in TEXTS]
    found = list(features.extract(TEXTS, spans))
    for text, places, layers in zip(TEXTS, spans, found, strict=True):
        assert layers.shape == (len(places), features.layers, features.hidden_size) == (len(places), 3, 14)
        plain = features.model.features(Tokens.from_rows([PIECES.encode(text).ids]))
        np.testing.assert_allclose(layers, pool_spans(plain, PIECES.encode(text).spans, places), atol=1e-5)
    one = PIECES.encode("low")
    np.testing.assert_allclose(
        found[1][0], features.model.features(Tokens.from_rows([one.ids])).mean(0), rtol=1e-5, atol=1e-6
    )


def test_kept_features_are_those_made_anew(features: ElmoFeatures) -> None:
    perception = RnnPreprocessor(WORDS, 99, features)
    kept, anew = perception.encode(TEXTS), perception.encode(TEXTS)
    kept.cache_features()
    numbers = np.array([2, 0])
    one, other = kept.batch(numbers), anew.batch(numbers)
    assert one.features is not None and other.features is not None
    assert one.features.dtype == other.features.dtype == np.float16
    assert len(one.features) == len(one.tokens.ids)
    np.testing.assert_allclose(one.features, other.features, atol=2e-3)
    assert kept.feature_bytes == sum(layers.nbytes for layers in kept.cached_features or [])


def test_a_long_text_is_read_as_far_as_told(features: ElmoFeatures) -> None:
    read = RnnPreprocessor(WORDS, 3, features).encode(TEXTS)
    assert [len(row) for row in read.rows] == [3, 1, 3, 3]
    assert read.truncated.tolist() == [max(0, len(WORDS.encode(text).ids) - 3) for text in TEXTS]
    assert (read.truncated > 0).tolist() == [True, False, True, True]
    assert read.texts[3] == "one two three"
    alone = RnnPreprocessor(WORDS, 99, features).encode(["one two three"]).batch(np.array([0])).features
    cut = read.batch(np.array([3])).features
    assert alone is not None and cut is not None
    np.testing.assert_allclose(cut, alone, atol=2e-3)
