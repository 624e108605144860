"""Frozen features: layers of models of every family at the words of a text."""

from __future__ import annotations

import numpy as np
import pytest

from regard.config.data import TokenizerConfig
from regard.config.rnn_models import ElmoConfig
from regard.models.base import initialize_weights
from regard.models.elmo import Elmo
from regard.packed_tokens import Tokens
from regard.tasks.frozen_features import FeatureLayers, FrozenFeatures, pool_spans
from regard.tasks.text_model import TextPreprocessor
from regard.text.train import train_tokenizer

TEXTS = ["Lower lights, slower nights!", "low", "Ein Café – naïve", "one two three four five six"]
SUBWORD_TOKENIZER = train_tokenizer([*TEXTS, "low lower lowest"] * 5, TokenizerConfig(vocab_size=280))
WORD_TOKENIZER = train_tokenizer(TEXTS * 3, TokenizerConfig(kind="words"))


@pytest.fixture(scope="module")
def features() -> FrozenFeatures[Elmo]:
    model = Elmo(ElmoConfig(vocab_size=SUBWORD_TOKENIZER.vocab_size, hidden_size=7))
    initialize_weights(model, 1)
    selection = FeatureLayers.select("mix", model)
    return FrozenFeatures(model.eval(), SUBWORD_TOKENIZER, selection=selection, digest="digest")


def test_subwords_that_overlap_a_span_are_averaged() -> None:
    layers = np.arange(8, dtype=np.float32).reshape(4, 2, 1)
    subwords = [(0, 2), (2, 4), (5, 7), (7, 9)]
    pooled = pool_spans(layers, subwords, [(0, 4), (1, 3), (4, 5), (5, 9), (9, 9)])
    assert pooled[:, 0, 0].tolist() == [1.0, 1.0, 4.0, 5.0, 6.0]
    assert pooled[:, 1, 0].tolist() == [2.0, 2.0, 5.0, 6.0, 7.0]
    assert pool_spans(layers, subwords, []).shape == (0, 2, 1)


def test_features_of_many_texts_are_those_of_each(features: FrozenFeatures[Elmo]) -> None:
    text_spans = [WORD_TOKENIZER.encode(text).spans for text in TEXTS]
    text_layers = list(features.extract(TEXTS, text_spans))
    for text, spans, layers in zip(TEXTS, text_spans, text_layers, strict=True):
        assert layers.shape == (len(spans), features.num_layers, features.hidden_size) == (len(spans), 3, 14)
        encoding = SUBWORD_TOKENIZER.encode(text)
        subword_layers = features.model.features(Tokens.from_rows([encoding.ids]))
        np.testing.assert_allclose(layers, pool_spans(subword_layers, encoding.spans, spans), atol=1e-5)
    low_ids = SUBWORD_TOKENIZER.encode("low").ids
    low_layers = features.model.features(Tokens.from_rows([low_ids])).mean(0)
    np.testing.assert_allclose(text_layers[1][0], low_layers, rtol=1e-5, atol=1e-6)


def test_cached_features_equal_features_on_demand(features: FrozenFeatures[Elmo]) -> None:
    preprocessor = TextPreprocessor(WORD_TOKENIZER, 99, features)
    cached_texts = preprocessor.encode(TEXTS)
    cached_texts.cache_features()
    indices = np.array([2, 0])
    cached = cached_texts.batch(indices)
    on_demand = preprocessor.encode(TEXTS).batch(indices)
    assert cached.features is not None and on_demand.features is not None
    assert cached.features.dtype == on_demand.features.dtype == np.float16
    assert len(cached.features) == len(cached.tokens.ids)
    np.testing.assert_allclose(cached.features, on_demand.features, atol=2e-3)
    assert cached_texts.feature_bytes == sum(layers.nbytes for layers in cached_texts.cached_features or [])


def test_a_long_text_is_truncated_to_the_maximum_length(features: FrozenFeatures[Elmo]) -> None:
    encoded = TextPreprocessor(WORD_TOKENIZER, 3, features).encode(TEXTS)
    assert [len(row) for row in encoded.rows] == [3, 1, 3, 3]
    assert encoded.truncated.tolist() == [max(0, len(WORD_TOKENIZER.encode(text).ids) - 3) for text in TEXTS]
    assert (encoded.truncated > 0).tolist() == [True, False, True, True]
    assert encoded.texts[3] == "one two three"
    short_texts = TextPreprocessor(WORD_TOKENIZER, 99, features).encode(["one two three"])
    short_features = short_texts.batch(np.array([0])).features
    truncated_features = encoded.batch(np.array([3])).features
    assert short_features is not None and truncated_features is not None
    np.testing.assert_allclose(truncated_features, short_features, atol=2e-3)
