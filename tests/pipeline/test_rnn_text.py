"""Pipelines of RNN text encoders: ELMo features of words, labels of texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.checkpoint.native import save_rnn_text
from regard.config.data import TokenizerConfig
from regard.config.rnn_models import RnnClassifierConfig, RnnTextConfig
from regard.data.labelled import LabelledTexts
from regard.errors import CheckpointError, DataError, UsageError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.packed_tokens import Tokens
from regard.pipeline.classification import ClassificationPipeline
from regard.pipeline.features import FeaturePipeline
from regard.pipeline.load import load
from regard.pipeline.loaders import load_classifier, load_features
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
    save_rnn_text(folder, config, model.state_dict(), tokenizer=tokenizer, task="classify", metadata=metadata, card="")
    return folder


def test_words_and_tokens_have_layers_and_spans(elmo: Path) -> None:
    model = load(elmo, threads=1)
    assert isinstance(model, FeaturePipeline)
    words = model.features(TEXTS)
    assert words[0].words == ["Two", "dogs", "run."]
    assert words[0].layers.shape == (3, 3, 10)
    assert words[0].layers.dtype == np.float32
    tokens = model.features(TEXTS, unit="tokens")
    encoding = model.model.tokenizer.encode(TEXTS[0])
    assert tokens[0].spans == encoding.spans
    expected = model.model.model.features(Tokens.from_rows([encoding.ids])).transpose(1, 0, 2)
    assert tokens[0].layers.shape == expected.shape
    inside = [index for index, (start, end) in enumerate(encoding.spans) if start < 8 and end > 4]  # dogs
    np.testing.assert_allclose(words[0].layers[:, 1], expected[:, inside].mean(1), atol=1e-5)
    np.testing.assert_allclose(model("snow").layers, words[1].layers, atol=1e-5)
    assert model("").layers.shape == (3, 0, 10)


def test_layers_are_mixed_with_given_weights(elmo: Path) -> None:
    features = load_features(elmo, threads=1)(TEXTS[2])
    np.testing.assert_allclose(features.mix([0, 0, 1]), features.layers[2])
    np.testing.assert_allclose(features.mix(), features.layers.mean(0), atol=1e-6)
    np.testing.assert_allclose(
        features.mix([0.5, 0.5, 0], scale=3), 1.5 * (features.layers[0] + features.layers[1]), atol=1e-5
    )
    with pytest.raises(UsageError, match="3 layers need as many weights"):
        features.mix([1.0])


def test_labels_are_strings_with_probabilities(classifier: Path) -> None:
    model = regard.load(classifier, threads=1)
    assert isinstance(model, ClassificationPipeline)
    labels = model.classify([*TEXTS, " "])
    assert all(label in ("bad", "fair", "good") for label in labels[:3])
    for label, text in zip(labels, TEXTS, strict=False):
        assert label.text == text
        assert sum(label.probabilities.values()) == pytest.approx(1, rel=1e-5)
        assert label.probability == max(label.probabilities.values()) == label.probabilities[label]
        alone = model(text)
        assert alone == label and alone.probability == pytest.approx(label.probability, rel=1e-4)
    assert [label.truncated for label in labels] == [0, 0, 3, 0]
    assert (labels[3], labels[3].probability) == ("", 0.0)


def test_labelled_texts_are_scored(classifier: Path) -> None:
    model = load_classifier(classifier, threads=1)
    predictions = model.classify(TEXTS)
    scores = model.evaluate(LabelledTexts.from_texts(TEXTS, list(map(str, predictions))), predictions)
    assert (scores["texts"], scores["accuracy"], scores["macro_f1"], scores["cut"]) == (3, 100.0, 100.0, 1)
    assert np.array(scores["confusion"]).sum() == np.trace(scores["confusion"]) == 3
    with pytest.raises(DataError, match="row 2: the label 'god' .*did you mean good"):
        model.evaluate(LabelledTexts.from_texts(TEXTS, ["good", "god", "bad"]), predictions)


def test_a_folder_is_loaded_for_its_own_task_only(elmo: Path, classifier: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"for the task 'language'; one for 'classify' is needed"):
        load_classifier(elmo)
    with pytest.raises(CheckpointError, match=r"one for 'language' is needed \(`regard classify` uses this one"):
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
