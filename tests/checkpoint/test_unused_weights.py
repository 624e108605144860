"""Weights that a model does not use are named, and whole layers are refused, by every loader."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import regard
from regard.checkpoint import atomic, weights
from regard.checkpoint.causal_dir import load_causal_lm
from regard.checkpoint.encoder_dir import load_encoder
from regard.checkpoint.hf import plausibility
from regard.checkpoint.model_dir import load_translator
from regard.checkpoint.native import load_text_model, save_text_model
from regard.checkpoint.unused_weights import allow_unused_layers
from regard.cli import run
from regard.config.rnn_models import ElmoConfig
from regard.config.runs import build_run
from regard.errors import CheckpointError, CheckpointWarning
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.training.run import train_run
from tests.encoders import saved_encoder
from tests.model_folders import TEXTS, save_model_folders

REFUSED = r"whole layers of the weights are not used \(.*\), because .*--allow-unused \(in Python allow_unused=True\)"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    folders = save_model_folders(root)
    folders["elmo"] = root / "elmo"
    tokenizer = load_encoder(folders["embed"]).tokenizer
    config = ElmoConfig(vocab_size=tokenizer.vocab_size, hidden_size=6, num_layers=2)
    model = build_model(config)
    initialize_weights(model, 1)
    save_text_model(folders["elmo"], config, model.state_dict(), tokenizer=tokenizer, task="elmo", metadata={}, card="")
    return folders


def edited(folder: Path, target: Path, *path: str, value: object) -> Path:
    """A copy without digests, with one field of config.json changed."""
    shutil.copytree(folder, target)
    (target / atomic.MANIFEST).unlink(missing_ok=True)
    fields = json.loads((target / "config.json").read_text("utf-8"))
    inner = fields
    for name in path[:-1]:
        inner = inner[name]
    assert inner[path[-1]] != value
    inner[path[-1]] = value
    (target / "config.json").write_text(json.dumps(fields), "utf-8")
    return target


LOADERS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "embed": (load_encoder, ("num_hidden_layers",)),
    "classify": (lambda folder: regard.load(folder), ("num_hidden_layers",)),
    "translate": (load_translator, ("decoder_layers",)),
    "generate": (load_causal_lm, ("num_hidden_layers",)),
    "elmo": (lambda folder: load_text_model(folder, ElmoConfig, "elmo"), ("regard", "num_layers")),
}


@pytest.mark.parametrize("task", LOADERS)
def test_a_config_with_fewer_layers_than_the_weights_is_refused(
    task: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    load, path = LOADERS[task]
    folder = edited(folders[task], tmp_path / "model", *path, value=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(CheckpointError, match=REFUSED):
            load(folder)
    with allow_unused_layers(), pytest.warns(CheckpointWarning, match=r"\d+ weights are not used"):
        load(folder)


def test_every_way_to_load_takes_the_permission(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = edited(folders["embed"], tmp_path / "model", "num_hidden_layers", value=1)
    assert run(["similar", str(folder), "a dog", "a cat"]) == 2
    assert "encoder.layer.1), because config.json asks for fewer" in capsys.readouterr().err
    assert run(["similar", str(folder), "a dog", "a cat", "--allow-unused"]) == 0
    assert "16 weights are not used" in capsys.readouterr().err
    assert run(["convert", str(folder), str(tmp_path / "out"), "--to", "regard"]) == 2
    assert run(["convert", str(folder), str(tmp_path / "out"), "--to", "regard", "--allow-unused"]) == 0
    with pytest.warns(CheckpointWarning):
        assert len(regard.load(folder, allow_unused=True).embed(TEXTS).vectors) == len(TEXTS)  # type: ignore[union-attr]


def test_training_from_a_model_with_unused_layers_needs_permission(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = edited(folders["embed"], tmp_path / "model", "num_hidden_layers", value=1)
    data = tmp_path / "data.csv"
    lines = [f"{text},{'ab'[index % 2]}\n" for index, text in enumerate(TEXTS)]
    data.write_text("text,label\n" + "".join(lines), "utf-8")
    settings = {"data.train": [str(data)], "data.valid": [str(data)], "pretrained": str(folder), "training.steps": 1}
    with pytest.raises(CheckpointError, match=REFUSED):
        train_run(build_run("classify", settings), tmp_path / "run")
    settings["allow_unused"] = True  # type: ignore[assignment]
    with pytest.warns(CheckpointWarning, match="16 weights are not used"):
        assert train_run(build_run("classify", settings), tmp_path / "allowed").is_finished


def test_harmless_weights_are_not_mentioned_others_are_once(tmp_path: Path) -> None:
    folder = saved_encoder(tmp_path / "model", TEXTS)
    (folder / atomic.MANIFEST).unlink()
    tensors = safetensors.torch.load_file(folder / weights.FILE)
    tensors["embeddings.position_ids"] = torch.arange(64)[None]
    safetensors.torch.save_file(tensors, folder / weights.FILE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_encoder(folder)
    for name in ("cls.predictions.bias", "adapters.a.weight", "adapters.b.weight"):
        tensors[name] = torch.zeros(3)
    safetensors.torch.save_file(tensors, folder / weights.FILE)
    with pytest.warns(CheckpointWarning) as caught:
        load_encoder(folder)
    messages = [str(warning.message).removeprefix(f"{folder}: ") for warning in caught]
    assert messages == [
        "2 weights are not used, not a weight that this type of model has: adapters.a.weight, adapters.b.weight",
        "1 weight is not used, of the BertForMaskedLM head: cls.predictions.bias",
    ]
    with pytest.warns(CheckpointWarning) as caught:  # another head was requested: that of the file is not dropped
        load_encoder(folder, head="plain")
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_attention_heads", 1, ""),
        ("num_attention_heads", 8, ""),
        ("num_hidden_layers", 1, "whole layers"),
    ],
)
def test_a_number_of_heads_is_plausible(field: str, value: int, message: str, tmp_path: Path) -> None:
    folder = edited(saved_encoder(tmp_path / "a", TEXTS), tmp_path / "b", field, value=value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if message:
            with pytest.raises(CheckpointError, match=message):
                load_encoder(folder)
        else:
            load_encoder(folder)


def test_what_the_weights_do_not_show_is_doubted(tmp_path: Path) -> None:
    saved = saved_encoder(tmp_path / "saved", TEXTS, hidden_size=48)
    folder = edited(saved, tmp_path / "heads", "num_attention_heads", value=4)
    with pytest.warns(CheckpointWarning, match="num_attention_heads is 4: heads of size 12 are unusual"):
        load_encoder(folder)
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    del fields["num_attention_heads"]
    (folder / "config.json").write_text(json.dumps(fields), "utf-8")
    with pytest.warns(CheckpointWarning, match="num_attention_heads is missing: 12 heads are assumed"):
        load_encoder(folder)
    fields["num_attention_headr"] = 4
    (folder / "config.json").write_text(json.dumps(fields), "utf-8")
    with pytest.raises(
        CheckpointError, match=r"unknown field 'num_attention_headr' \(did you mean num_attention_heads"
    ):
        load_encoder(folder)


def test_fields_of_published_configs_are_not_taken_for_misspelled_ones() -> None:
    fields = {"bos_token_id": 1, "model_type": "bert", "gradient_checkpointing": False, "layer_norm_eps": 1e-12}
    plausibility.check_field_names(fields, ["eos_token_id", "bos_token_id", "layer_norm_eps"], "config.json")
