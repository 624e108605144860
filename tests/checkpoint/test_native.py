"""Folders of memory networks: a saved model is read back; damaged and inconsistent files are named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.checkpoint.atomic import MANIFEST
from regard.checkpoint.model_dir import folder_task, load_translator
from regard.checkpoint.native import load_memory_network, save_memory_network
from regard.config.rnn_models import MemoryNetworkConfig
from regard.errors import CheckpointError
from regard.models.memory_network import MemoryNetwork

WORDS = ["mary", "went", "home", "where", "is", "john", "slept"]
CONFIG = MemoryNetworkConfig(vocab_size=7, max_sentence_words=3, memory_size=5, embedding_size=11, hops=2)


def save_model(folder: Path, config: MemoryNetworkConfig = CONFIG) -> MemoryNetwork:
    """Save a small memory network with random weights and return it."""
    model = MemoryNetwork(config)
    model.initialize(seed=3)
    vocabulary = {"words": WORDS, "answers": ["home"]}
    save_memory_network(
        folder, config, model.state_dict(), vocabulary=vocabulary, metadata={"step": 13}, card="# Small\n"
    )
    return model


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file and remove the manifest, which would report the change as damage."""
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, **changes}))
    (path.parent / MANIFEST).unlink(missing_ok=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"tying": "adjacent"},
        {"tying": "layerwise"},
        {"tying": "layerwise", "state_map": "none"},
        {"state_map": "linear", "time_encoding": "sinusoidal"},
        {"time_encoding": "none", "empty_memories": False},
    ],
    ids=str,
)
def test_a_saved_model_is_read_back(tmp_path: Path, changes: dict[str, object]) -> None:
    model = save_model(tmp_path, CONFIG.override(changes))
    loaded = load_memory_network(tmp_path)
    assert loaded.config == model.config
    assert loaded.vocabulary == {"words": WORDS, "answers": ["home"]}
    assert loaded.metadata == {"task": "story-qa", "version": 2, "step": 13}
    assert loaded.weights.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.weights[name], tensor), name
    assert folder_task(tmp_path) == "story-qa"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocabulary.json", "task.json", MANIFEST])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    save_model(tmp_path)
    data = bytearray((tmp_path / name).read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=re.escape(name)):
        load_memory_network(tmp_path)


def test_inconsistent_files_are_named(tmp_path: Path) -> None:
    save_model(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())["regard"]
    for changes, message in (
        ({"embedding_size": 12}, r"embeddings.0 has shape \[12, 1, 11\], config.json asks for \[12, 1, 12\]"),
        ({"hops": 4}, r"2 are missing, embeddings.3, embeddings.4 among them"),
        ({"hops": 0}, r"config.json: hops \(0\) must be at least 1"),
        ({"hobs": 2}, r"unknown setting 'hobs' \(did you mean hops\?\)"),
        (
            {"vocab_size": 2**40, "embedding_size": 2**40},
            r"_size \(1099511627776\) must be at most 16777216",
        ),
        ({"vocab_size": 8}, "vocabulary.json: must have 8 words"),
    ):
        edit(tmp_path / "config.json", regard={**values, **changes})
        with pytest.raises(CheckpointError, match=message):
            load_memory_network(tmp_path)
    edit(tmp_path / "config.json", regard="none")
    with pytest.raises(CheckpointError, match="regard must be an object"):
        load_memory_network(tmp_path)
    edit(tmp_path / "config.json", model_type="bert")
    with pytest.raises(CheckpointError, match="a model of type 'bert'; must be regard-memory-network"):
        load_memory_network(tmp_path)


def test_a_folder_of_another_task_is_named_with_its_verb(tmp_path: Path) -> None:
    save_model(tmp_path)
    with pytest.raises(CheckpointError, match=r"task 'story-qa'; one for 'translate' is needed \(`regard answer` uses"):
        load_translator(tmp_path)
    edit(tmp_path / "task.json", task="translate")
    with pytest.raises(CheckpointError, match=r"'translate'; one for 'story-qa' is needed \(`regard translate` uses"):
        load_memory_network(tmp_path)
