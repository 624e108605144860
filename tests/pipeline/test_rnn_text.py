"""Pipelines of RNN text encoders: ELMo features of words, labels of texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.checkpoint.native import save_text_model
from regard.config.data import TokenizerConfig
from regard.config.rnn_models import RnnClassifierConfig, RnnTextConfig
from regard.data.labelled import LabelledTexts
from regard.errors import CheckpointError, DataError, UsageError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.packed_tokens import Tokens
from regard.pipeline.classification import ClassificationPipeline
from regard.pipeline.features import FeaturePipeline
from regard.pipeline.load import load, load_classifier
from regard.pipeline.loaders import load_features
from regard.text.train import train_tokenizer
from tests.rnn_text import saved_elmo

TEXTS = ["Two dogs run.", "snow", "A quiet, quiet triumph of a film"]


@pytest.fixture(scope="module")
def elmo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_elmo(tmp_path_factory.mktemp("elmo") / "model", TEXTS)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier") / "model"
    tokenizer = train_tokenizer(TEXTS * 3, TokenizerConfig(kind="words"))
    config = RnnClassifierConfig(
        num_labels=3, encoder=RnnTextConfig(vocab_size=tokenizer.vocab_size, embedding_size=5, hidden_size=7)
    )
    model = build_model(config)
    initialize_weights(model, 1)
    metadata = {"labels": ["bad", "fair", "good"], "max_length": 5, "step": 1, "metrics": {}}
    save_text_model(
        folder, config, model.state_dict(), tokenizer=tokenizer, task="classify", metadata=metadata, card=""
    )
    return folder


def test_features_of_a_word_are_the_mean_over_its_tokens_in_each_layer(elmo: Path) -> None:
    pipeline = load(elmo, threads=1)
    assert isinstance(pipeline, FeaturePipeline)
    of_words = pipeline.features(TEXTS)
    assert of_words[0].words == ["Two", "dogs", "run."]
    assert of_words[0].layers.shape == (3, 3, 10)
    assert of_words[0].layers.dtype == np.float32
    of_tokens = pipeline.features(TEXTS, unit="tokens")
    encoding = pipeline.model.tokenizer.encode(TEXTS[0])
    assert of_tokens[0].spans == encoding.spans
    layers = pipeline.model.model.features(Tokens.from_rows([encoding.ids])).transpose(1, 0, 2)
    assert of_tokens[0].layers.shape == layers.shape
    assert encoding.spans[:2] == [(0, 1), (0, 2)]  # the first two tokens overlap: both have their mean
    np.testing.assert_allclose(of_tokens[0].layers[:, 0], layers[:, :2].mean(1), atol=1e-5)
    np.testing.assert_allclose(of_tokens[0].layers[:, 1], layers[:, :2].mean(1), atol=1e-5)
    np.testing.assert_allclose(of_tokens[0].layers[:, 2:], layers[:, 2:], atol=1e-5)
    dogs_indices = [index for index, (start, stop) in enumerate(encoding.spans) if start < 8 and stop > 4]
    np.testing.assert_allclose(of_words[0].layers[:, 1], layers[:, dogs_indices].mean(1), atol=1e-5)
    np.testing.assert_allclose(pipeline("snow").layers, of_words[1].layers, atol=1e-5)
    assert pipeline("").layers.shape == (3, 0, 10)


def test_layers_are_mixed_with_any_weights_and_by_default_equally(elmo: Path) -> None:
    features = load_features(elmo, threads=1)(TEXTS[2])
    np.testing.assert_allclose(features.mix([0, 0, 1]), features.layers[2])
    np.testing.assert_allclose(features.mix(), features.layers.mean(0), atol=1e-6)
    mixed = features.mix([0.5, 0.5, 0], scale=3)
    np.testing.assert_allclose(mixed, 1.5 * (features.layers[0] + features.layers[1]), atol=1e-5)
    with pytest.raises(UsageError, match="3 layers need as many weights"):
        features.mix([1.0])


def test_labels_are_strings_with_probabilities(classifier: Path) -> None:
    pipeline = regard.load(classifier, threads=1)
    assert isinstance(pipeline, ClassificationPipeline)
    *labels, blank = pipeline.classify([*TEXTS, " "])
    for label, text in zip(labels, TEXTS, strict=True):
        assert label in ("bad", "fair", "good")
        assert label.text == text
        assert sum(label.probabilities.values()) == pytest.approx(1, rel=1e-5)
        assert label.probability == max(label.probabilities.values()) == label.probabilities[label]
        alone = pipeline(text)
        assert alone == label
        assert alone.probability == pytest.approx(label.probability, rel=1e-4)
    assert [label.truncated for label in labels] == [0, 0, 3]
    assert blank == ""
    assert blank.probability == 0.0
    assert blank.truncated == 0


def test_labelled_texts_are_scored(classifier: Path) -> None:
    pipeline = load_classifier(classifier, threads=1)
    predictions = pipeline.classify(TEXTS)
    scores = pipeline.evaluate(LabelledTexts.from_texts(TEXTS, [str(label) for label in predictions]), predictions)
    assert (scores["texts"], scores["accuracy"], scores["macro_f1"], scores["truncated"]) == (3, 100.0, 100.0, 1)
    assert np.array(scores["confusion"]).sum() == np.trace(scores["confusion"]) == 3
    with pytest.raises(DataError, match="row 2: the label 'god' .*did you mean good"):
        pipeline.evaluate(LabelledTexts.from_texts(TEXTS, ["good", "god", "bad"]), predictions)


def test_a_folder_is_loaded_for_its_own_task_only(elmo: Path, classifier: Path) -> None:
    with pytest.raises(CheckpointError, match=r"for the task 'elmo'; one for 'classify' is needed"):
        load_classifier(elmo)
    with pytest.raises(CheckpointError, match=r"one for 'elmo' is needed \(`regard classify` uses this one"):
        load_features(classifier)
    with pytest.raises(CheckpointError, match="one for 'translate' is needed"):
        load([classifier, classifier])
    with pytest.raises(UsageError, match="list of texts"):
        load_features(elmo).features("one text")


def test_a_folder_without_its_labels_is_rejected(classifier: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(classifier, broken)
    (broken / "MANIFEST.json").unlink()
    (broken / "task.json").write_text('{"task": "classify", "version": 2, "labels": ["one"], "max_length": 5}')
    with pytest.raises(CheckpointError, match=r"does not name the 3 labels"):
        load_classifier(broken)


def test_a_changed_folder_is_rejected_as_damaged(elmo: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(elmo, broken)
    data = bytearray((broken / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (broken / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged"):
        load_features(broken)
