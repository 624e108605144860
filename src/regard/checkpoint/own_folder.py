"""A model of a family that others do not know, as a folder: our config under `regard`, weights under our own names.

config.json            a type of our own, `regard-…`, and our config
model.safetensors      weights
…                      what the family needs besides: a vocabulary, a tokenizer
task.json              the task and its settings
README.md              the model card
MANIFEST.json          size and digest of each file
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor

from regard.checkpoint import files, weights
from regard.checkpoint.folder import FamilyConfig, checked_floats, expected_shapes, headers, publish_model
from regard.checkpoint.location import CONFIG, opened
from regard.config.knob import Config
from regard.errors import CheckpointError, ConfigError

_MOST = 2**24  # of any size in a config

Kind = TypeVar("Kind", bound=Config)


class OwnConfig(FamilyConfig, Protocol):
    """The config of a family, as values for a file."""

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain JSON values."""
        ...


def own_type(family: str) -> str:
    """Return the type that a family has in `config.json`.

    >>> own_type("memory_network")
    'regard-memory-network'
    """
    return f"regard-{family.replace('_', '-')}"


def save_own(
    folder: str | Path,
    config: OwnConfig,
    model_weights: Mapping[str, Tensor],
    *,
    task: str,
    facts: Mapping[str, Any],
    card: str,
    besides: Mapping[str, bytes],
    instead: Mapping[str, files.Content] | None = None,
) -> None:
    """Write a model for a task so that readers find the old one or the new one whole; other files there stay.

    `facts` go into `task.json`, `besides` are the family's own files, `instead` those written instead of the weights.
    """
    fields = {"model_type": own_type(config.family), "regard": config.to_dict()}
    floats = checked_floats(config, model_weights)
    publish_model(folder, fields, floats, task=task, facts=facts, card=card, besides=besides, instead=instead)


def copy_own(source: str | Path, out: Path, names: Iterable[str]) -> None:
    """Put those of these files that a model's folder has into another one."""
    path = opened(Path(source))
    files.write_folder(out, {name: (path / name).read_bytes() for name in names if (path / name).exists()})


def own_config(fields: Mapping[str, Any], kinds: Mapping[str, type[Kind]], where: str) -> Kind:
    """Return the config that a `config.json` of one of these types describes; none of its sizes is beyond all reason.

    >>> from regard.config.model import MemoryConfig
    >>> own_config({"model_type": "mine", "regard": {"hops": 2}}, {"mine": MemoryConfig}, "config.json").hops
    2
    """
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in kinds:
        raise CheckpointError(f"{where}: a model of type {kind!r:.60}; {' and '.join(kinds)} are read here")
    values = fields.get("regard")
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{where}: regard must be an object, not {values!r:.60}")
    try:
        config = kinds[kind].from_dict(values, where=where)
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


def own_weights(path: Path, config: FamilyConfig) -> dict[str, Tensor]:
    """Return a model's weights after comparing names and shapes with what the config asks for."""
    entries, expected = headers(path), expected_shapes(config)
    missing = [name for name in expected if name not in entries]
    if missing:
        some = ", ".join(missing[:5])
        raise CheckpointError(f"{path}: weights: {len(missing)} are missing, {some} among them")
    for name, shape in expected.items():
        if entries[name].shape != shape:
            found = list(entries[name].shape)
            raise CheckpointError(f"{path}: weights: {name} has shape {found}, {CONFIG} asks for {list(shape)}")
    wanted = {name: entries[name] for name in expected}
    return {name: tensor.float() for name, tensor in weights.read_some(wanted).items()}
