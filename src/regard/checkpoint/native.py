"""Folders of families that only Regard has: RNN text encoders, ELMo, memory networks, and those of plugins.

config.json            a model type of our own, `regard-…`, and our config under `regard`
model.safetensors      weights under our own names
tokenizer.json         tokenizer; a memory network has none
vocabulary.json        words of a memory network in order, and its answers
features/              folder of the frozen features of an RNN classifier or tagger, if it has any
task.json              task and its settings
README.md              model card
MANIFEST.json          size and digest of each file
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from regard.checkpoint import atomic, weights
from regard.checkpoint.locate import CONFIG, read_task, read_verified, resolve_model_path
from regard.checkpoint.model_dir import (
    FamilyConfig,
    ShapeReader,
    check_weights,
    expected_shapes,
    publish_model,
    read_tensor_entries,
)
from regard.checkpoint.model_files import folder_digest
from regard.checkpoint.model_types import native_family, native_type
from regard.checkpoint.tokenizer_files import TOKENIZER, check_vocabulary, read_tokenizer
from regard.checkpoint.unused_weights import check_unused_weights
from regard.components import FAMILIES
from regard.config.rnn_models import MemoryNetworkConfig
from regard.config.settings import MAX_SIZE, Config, flatten
from regard.errors import CheckpointError, ConfigError
from regard.registry import resolve
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARY = "vocabulary.json"
STORY_TASK = "story-qa"
ConfigType = TypeVar("ConfigType", bound=Config)


class NativeConfig(FamilyConfig, Protocol):
    """Config of a family that can be written to a file."""

    def to_dict(self) -> dict[str, Any]:
        """The config as plain JSON values."""
        ...


class TextModelConfig(NativeConfig, Protocol):
    """Config of a model with a vocabulary of its own."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    def summary(self) -> str: ...


TextConfig = TypeVar("TextConfig", bound=TextModelConfig)


def save_native(
    folder: str | Path,
    config: NativeConfig,
    model_weights: Mapping[str, Tensor],
    *,
    task: str,
    metadata: Mapping[str, Any],
    card: str,
    extra_files: Mapping[str, bytes],
    weight_files: Mapping[str, atomic.Content] | None = None,
) -> None:
    """Write a model of our own type atomically; other files of the folder stay.

    The metadata goes into `task.json`. `extra_files` are the family's own, `weight_files` replace the safetensors file.
    """
    publish_model(
        folder,
        {"model_type": native_type(config.family), "regard": config.to_dict()},
        check_weights(config, model_weights),
        task=task,
        metadata=metadata,
        card=card,
        extra_files=extra_files,
        weight_files=weight_files,
        config=config,
    )


def copy_native(source: str | Path, out: Path, names: Iterable[str]) -> None:
    """Copy those of the named files that a model folder has into a new folder."""
    path = resolve_model_path(Path(source))
    atomic.write_folder(out, {name: (path / name).read_bytes() for name in names if (path / name).exists()})


def read_native_config(hf_config: Mapping[str, Any], config_type: type[ConfigType], where: str) -> ConfigType:
    """Config of a `config.json` of our own type, with plausible sizes; one of another class than asked for is an error.

    >>> hf_config = {"model_type": "regard-memory-network", "regard": {"hops": 2}}
    >>> read_native_config(hf_config, Config, "config.json").hops
    2
    """
    model_type = hf_config.get("model_type")
    family = native_family(model_type)
    config_class = resolve(FAMILIES[family].config) if family else None
    if config_class is None or not issubclass(config_class, config_type):
        allowed = [native_type(name) for name in FAMILIES if issubclass(resolve(FAMILIES[name].config), config_type)]
        raise CheckpointError(f"{where}: a model of type {model_type!r:.60}; must be {' or '.join(allowed)}")
    values = hf_config.get("regard")
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{where}: regard must be an object, not {values!r:.60}")
    try:
        config: ConfigType = config_class.from_dict(values, where=where)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
    for name, value in flatten(config.to_dict()).items():
        if isinstance(value, int | float) and value > MAX_SIZE:
            raise CheckpointError(f"{where}: {name} ({value}) must be at most {MAX_SIZE}")
    return config


def read_native_weights(
    path: Path, config: FamilyConfig, read_shapes: ShapeReader = expected_shapes
) -> tuple[weights.Arrays, weights.WeightReport]:
    """Read a model's weights after comparing names and shapes with the config; report which tensors are not used."""
    entries = read_tensor_entries(path)
    expected = read_shapes(config)
    missing = [name for name in expected if name not in entries]
    if missing:
        raise CheckpointError(f"{path}: weights: {len(missing)} are missing, {', '.join(missing[:5])} among them")
    for name, shape in expected.items():
        stored_shape = entries[name].shape
        if stored_shape != shape:
            raise CheckpointError(
                f"{path}: weights: {name} has shape {list(stored_shape)}, {CONFIG} asks for {list(shape)}"
            )
    arrays = weights.read_arrays({name: entries[name] for name in expected})
    report = weights.WeightReport(loaded=[*expected], ignored=[name for name in entries if name not in expected])
    return {name: array.astype(np.float32, copy=False) for name, array in arrays.items()}, report


def _read_torch_weights(path: Path, config: FamilyConfig) -> dict[str, Tensor]:
    arrays, report = read_native_weights(path, config)
    check_unused_weights(path, report)
    return weights.to_tensors(arrays)


@dataclass(frozen=True)
class LoadedTextModel(Generic[TextConfig]):
    """Content of the folder of a model with a vocabulary of its own: ELMo, an RNN, a plugin's family."""

    config: TextConfig
    weights: dict[str, Tensor]  # float32
    tokenizer: Tokenizer
    metadata: dict[str, Any]  # task.json
    digest: str  # of config, weights and tokenizer
    path: Path  # folder it was read from


def save_text_model(
    folder: str | Path,
    config: NativeConfig,
    model_weights: Mapping[str, Tensor],
    *,
    tokenizer: Tokenizer,
    task: str,
    metadata: Mapping[str, Any],
    card: str,
) -> None:
    """Write a model with a vocabulary of its own atomically."""
    extra_files = {TOKENIZER: tokenizer.to_json().encode()}
    save_native(folder, config, model_weights, task=task, metadata=metadata, card=card, extra_files=extra_files)


def load_text_model(folder: str | Path, config_type: type[TextConfig], task: str) -> LoadedTextModel[TextConfig]:
    """Load and validate a model with a vocabulary of its own; one for another task, or of another config, is rejected.

    `config_type` is the config class of a family, or a base class of several.
    """
    return read_verified(Path(folder), lambda path: _read_text_model(path, config_type, task))


def _read_text_model(path: Path, config_type: type[TextConfig], task: str) -> LoadedTextModel[TextConfig]:
    metadata = read_task(path, task)
    config: Any = read_native_config(atomic.read_json(path / CONFIG), config_type, str(path / CONFIG))  # type: ignore[type-var]
    model_weights = _read_torch_weights(path, config)
    tokenizer = read_tokenizer(path / TOKENIZER)
    check_vocabulary(path, tokenizer, config.vocab_size)
    return LoadedTextModel(
        config,
        model_weights,
        tokenizer=tokenizer,
        metadata=metadata,
        digest=folder_digest(path),
        path=path,
    )


@dataclass(frozen=True)
class LoadedMemoryNetwork:
    """Content of a memory network's folder."""

    config: MemoryNetworkConfig
    weights: dict[str, Tensor]
    vocabulary: dict[str, Any]  # content of vocabulary.json
    metadata: dict[str, Any]  # task.json
    path: Path  # folder it was read from


def save_memory_network(
    folder: str | Path,
    config: MemoryNetworkConfig,
    model_weights: Mapping[str, Tensor],
    *,
    vocabulary: Mapping[str, Any],
    metadata: Mapping[str, Any],
    card: str,
) -> None:
    """Write a memory network atomically."""
    extra_files = {VOCABULARY: atomic.json_bytes(vocabulary)}
    save_native(folder, config, model_weights, task=STORY_TASK, metadata=metadata, card=card, extra_files=extra_files)


def load_memory_network(folder: str | Path) -> LoadedMemoryNetwork:
    """Load and validate a memory network."""
    return read_verified(Path(folder), _read_memory_network)


def _read_memory_network(path: Path) -> LoadedMemoryNetwork:
    metadata = read_task(path, STORY_TASK)
    config = read_native_config(atomic.read_json(path / CONFIG), MemoryNetworkConfig, str(path / CONFIG))
    vocabulary = atomic.read_json(path / VOCABULARY)
    words = vocabulary.get("words")
    if not isinstance(words, list) or len(words) != config.vocab_size:
        raise CheckpointError(f"{path / VOCABULARY}: must have {config.vocab_size} words, as {CONFIG} says")
    model_weights = _read_torch_weights(path, config)
    return LoadedMemoryNetwork(config, model_weights, vocabulary=vocabulary, metadata=metadata, path=path)
