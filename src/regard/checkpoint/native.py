"""A model of a family that others do not know, as a folder: our config under `regard`, weights under our own names.

config.json            a type of our own, `regard-…`, and our config
model.safetensors      weights
…                      what the family needs besides: a vocabulary, a tokenizer
task.json              the task and its settings
README.md              the model card
MANIFEST.json          size and digest of each file

A model that reads text by one tokenizer, as a folder (`own_folder`): language models, classifiers, taggers.

Beside a classifier's or tagger's own files, `features/` holds its frozen features: a whole folder of this kind.

A memory network as a folder (`own_folder`), with `vocabulary.json`: its words in their order, and the answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from regard.checkpoint import atomic, weights
from regard.checkpoint.locate import (
    CARD,
    CONFIG,
    TASK_FILE,
    read_task,
    resolve_model_path,
    retry_while_replaced,
    verify,
)
from regard.checkpoint.model_dir import FamilyConfig, check_weights, expected_shapes, publish_model, read_tensor_entries
from regard.checkpoint.tokenizer_files import TOKENIZER, check_vocabulary, read_tokenizer
from regard.config.rnn_models import ElmoConfig, MemoryNetworkConfig, RnnClassifierConfig, RnnTaggerConfig
from regard.config.settings import Config
from regard.errors import CheckpointError, ConfigError
from regard.text.tokenizer import Tokenizer

_MOST = 2**24  # of any size in a config
Kind = TypeVar("Kind", bound=Config)


class NativeConfig(FamilyConfig, Protocol):
    """The config of a family, as values for a file."""

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain JSON values."""
        ...


def native_type(family: str) -> str:
    """Return the type that a family has in `config.json`.

    >>> native_type("memory_network")
    'regard-memory-network'
    """
    return f"regard-{family.replace('_', '-')}"


def save_native(
    folder: str | Path,
    config: NativeConfig,
    model_weights: Mapping[str, Tensor],
    *,
    task: str,
    facts: Mapping[str, Any],
    card: str,
    extra_files: Mapping[str, bytes],
    weight_files: Mapping[str, atomic.Content] | None = None,
) -> None:
    """Write a model for a task so that readers find the old one or the new one whole; other files there stay.

    `facts` go into `task.json`, `besides` are the family's own files, `instead` those written instead of the weights.
    """
    fields = {"model_type": native_type(config.family), "regard": config.to_dict()}
    floats = check_weights(config, model_weights)
    publish_model(
        folder, fields, floats, task=task, metadata=facts, card=card, extra_files=extra_files, weight_files=weight_files
    )


def copy_native(source: str | Path, out: Path, names: Iterable[str]) -> None:
    """Put those of these files that a model's folder has into another one."""
    path = resolve_model_path(Path(source))
    atomic.write_folder(out, {name: (path / name).read_bytes() for name in names if (path / name).exists()})


def read_native_config(hf_config: Mapping[str, Any], types: Mapping[str, type[Kind]], where: str) -> Kind:
    """Return the config that a `config.json` of one of these types describes; none of its sizes is beyond all reason.

    >>> from regard.config.rnn_models import MemoryNetworkConfig
    >>> read_native_config({"model_type": "mine", "regard": {"hops": 2}}, {"mine": MemoryNetworkConfig}, "config.json").hops
    2
    """
    kind = hf_config.get("model_type")
    if not isinstance(kind, str) or kind not in types:
        raise CheckpointError(f"{where}: a model of type {kind!r:.60}; {' and '.join(types)} are read here")
    values = hf_config.get("regard")
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{where}: regard must be an object, not {values!r:.60}")
    try:
        config = types[kind].from_dict(values, where=where)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
    beyond = [number for number in _numbers(config.to_dict()) if number > _MOST]
    if beyond:
        raise CheckpointError(f"{where}: sizes beyond any model's: {beyond}")
    return config


def _numbers(values: Mapping[str, Any]) -> Iterator[float]:
    """Yield all numbers of a config, those of contained ones too."""
    for value in values.values():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield value


def read_native_weights(path: Path, config: FamilyConfig) -> dict[str, Tensor]:
    """Return a model's weights after comparing names and shapes with what the config asks for."""
    entries, expected = read_tensor_entries(path), expected_shapes(config)
    missing = [name for name in expected if name not in entries]
    if missing:
        some = ", ".join(missing[:5])
        raise CheckpointError(f"{path}: weights: {len(missing)} are missing, {some} among them")
    for name, shape in expected.items():
        if entries[name].shape != shape:
            found = list(entries[name].shape)
            raise CheckpointError(f"{path}: weights: {name} has shape {found}, {CONFIG} asks for {list(shape)}")
    wanted = {name: entries[name] for name in expected}
    return {name: tensor.float() for name, tensor in weights.read_entries(wanted).items()}


FEATURES = "features"  # the folder in a classifier's or tagger's folder
RNN_TEXT_TYPES = {native_type(kind().family): kind for kind in (ElmoConfig, RnnClassifierConfig, RnnTaggerConfig)}
_READ = (CONFIG, weights.FILE, TOKENIZER, TASK_FILE)
Family = TypeVar("Family", ElmoConfig, RnnClassifierConfig, RnnTaggerConfig)


@dataclass(frozen=True)
class LoadedRnnText(Generic[Family]):
    """A model as its folder holds it."""

    config: Family
    weights: dict[str, Tensor]  # float32
    tokenizer: Tokenizer
    task: dict[str, Any]  # task.json
    digest: str  # of config, weights and tokenizer
    path: Path  # where it was read


def save_rnn_text(
    folder: str | Path,
    config: ElmoConfig | RnnClassifierConfig | RnnTaggerConfig,
    model_weights: Mapping[str, Tensor],
    *,
    tokenizer: Tokenizer,
    task: str,
    facts: Mapping[str, Any],
    card: str,
) -> None:
    """Write a model for a task so that readers find the old one or the new one whole."""
    besides = {TOKENIZER: tokenizer.to_json().encode()}
    save_native(folder, config, model_weights, task=task, facts=facts, card=card, extra_files=besides)


def load_rnn_text(folder: str | Path, config_type: type[Family], task: str) -> LoadedRnnText[Family]:
    """Return the model of a folder after checking all of it; one for another task is refused."""
    return retry_while_replaced(Path(folder), lambda place: _load_rnn_text(place, config_type, task))


def _load_rnn_text(folder: Path, kind: type[Family], name: str) -> LoadedRnnText[Family]:
    path = resolve_model_path(folder)
    task = read_task(path, name)
    config = read_native_config(atomic.read_json(path / CONFIG), {native_type(kind().family): kind}, str(path / CONFIG))
    verify(path, _READ)
    loaded, tokenizer = read_native_weights(path, config), read_tokenizer(path / TOKENIZER)
    size = config.vocab_size if isinstance(config, ElmoConfig) else config.encoder.vocab_size
    check_vocabulary(path, tokenizer, size)
    return LoadedRnnText(config, loaded, tokenizer, task, _digest(path), path)


def _digest(path: Path) -> str:
    """Return the SHA-256 of what decides a model's answers: its config, weights and tokenizer."""
    digest = hashlib.sha256()
    for name in (CONFIG, weights.FILE, TOKENIZER):
        with open(path / name, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def copy_features(source: str | Path, folder: str | Path) -> None:
    """Put a whole copy of the features' folder into a classifier's folder, so that it can be moved."""
    copy_native(source, Path(folder) / FEATURES, (*_READ, CARD))


TASK, VOCABULARY = "stories", "vocabulary.json"
MEMORY_NETWORK_TYPES = {native_type(MemoryNetworkConfig().family): MemoryNetworkConfig}


@dataclass(frozen=True)
class LoadedMemoryNetwork:
    """A memory network as its folder holds it."""

    config: MemoryNetworkConfig
    weights: dict[str, Tensor]
    vocabulary: dict[str, Any]  # as its file has it
    task: dict[str, Any]  # task.json
    path: Path  # where it was read


def save_memory_network(
    folder: str | Path,
    config: MemoryNetworkConfig,
    model_weights: Mapping[str, Tensor],
    *,
    vocabulary: Mapping[str, Any],
    facts: Mapping[str, Any],
    card: str,
) -> None:
    """Write a memory network so that readers find the old one or the new one whole."""
    besides = {VOCABULARY: atomic.json_bytes(vocabulary)}
    save_native(folder, config, model_weights, task=TASK, facts=facts, card=card, extra_files=besides)


def load_memory_network(folder: str | Path) -> LoadedMemoryNetwork:
    """Return the memory network of a folder after checking all of it."""
    return retry_while_replaced(Path(folder), _load_memory_network)


def _load_memory_network(folder: Path) -> LoadedMemoryNetwork:
    path = resolve_model_path(folder)
    task = read_task(path, TASK)
    config = read_native_config(atomic.read_json(path / CONFIG), MEMORY_NETWORK_TYPES, str(path / CONFIG))
    verify(path, (CONFIG, weights.FILE, VOCABULARY, TASK_FILE))
    vocabulary = atomic.read_json(path / VOCABULARY)
    words = vocabulary.get("words")
    if not isinstance(words, list) or len(words) != config.vocab_size:
        raise CheckpointError(f"{path / VOCABULARY}: not the {config.vocab_size} words that {CONFIG} speaks of")
    return LoadedMemoryNetwork(config, read_native_weights(path, config), vocabulary, task, path)
