"""A memory network as a folder (`own_folder`), with `vocabulary.json`: its words in their order, and the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.checkpoint import files, weights
from regard.checkpoint.location import CONFIG, TASK_FILE, opened, patiently, read_task, verify
from regard.checkpoint.own_folder import own_config, own_type, own_weights, save_own
from regard.config.model import MemoryConfig
from regard.errors import CheckpointError

TASK, VOCABULARY = "stories", "vocabulary.json"
KINDS = {own_type(MemoryConfig().family): MemoryConfig}


@dataclass(frozen=True)
class LoadedMemory:
    """A memory network as its folder holds it."""

    config: MemoryConfig
    weights: dict[str, Tensor]
    vocabulary: dict[str, Any]  # as its file has it
    task: dict[str, Any]  # task.json
    path: Path  # where it was read


def save_memory(
    folder: str | Path,
    config: MemoryConfig,
    model_weights: Mapping[str, Tensor],
    *,
    vocabulary: Mapping[str, Any],
    facts: Mapping[str, Any],
    card: str,
) -> None:
    """Write a memory network so that readers find the old one or the new one whole."""
    besides = {VOCABULARY: files.json_bytes(vocabulary)}
    save_own(folder, config, model_weights, task=TASK, facts=facts, card=card, besides=besides)


def load_memory(folder: str | Path) -> LoadedMemory:
    """Return the memory network of a folder after checking all of it."""
    return patiently(Path(folder), _load)


def _load(folder: Path) -> LoadedMemory:
    path = opened(folder)
    task = read_task(path, TASK)
    config = own_config(files.read_json(path / CONFIG), KINDS, str(path / CONFIG))
    verify(path, (CONFIG, weights.FILE, VOCABULARY, TASK_FILE))
    vocabulary = files.read_json(path / VOCABULARY)
    words = vocabulary.get("words")
    if not isinstance(words, list) or len(words) != config.vocabulary:
        raise CheckpointError(f"{path / VOCABULARY}: not the {config.vocabulary} words that {CONFIG} speaks of")
    return LoadedMemory(config, own_weights(path, config), vocabulary, task, path)
