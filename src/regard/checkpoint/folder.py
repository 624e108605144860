"""What reading any model folder shares, whatever the model: where it is, whose task it is, whether it is whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from regard.checkpoint import files, hf_encoders, hf_gpt_kinds, weights
from regard.checkpoint.location import CARD, CONFIG, TASK_FILE, VERSION, any_task, opened, patiently
from regard.checkpoint.published import local_folder
from regard.errors import CheckpointError
from regard.models import FAMILIES
from regard.models.base import unfilled


class FamilyConfig(Protocol):
    """The config of a model of some family."""

    @property
    def family(self) -> str:
        """Which model it is: a name of `FAMILIES`."""
        ...


def expected_shapes(config: FamilyConfig) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a config's weights without making them."""
    with unfilled():
        return {name: tuple(tensor.shape) for name, tensor in FAMILIES[config.family][1](config).state_dict().items()}


def task_of(folder: str | Path) -> str:
    """Return the task of a folder's, or published, model: what it was trained for, its head's, or to translate."""
    return patiently(local_folder(folder), lambda place: _task_at(opened(place)))


def is_encoder_folder(folder: str | Path) -> bool:
    """Whether a folder, or what is published under this name, holds an encoder."""
    return patiently(
        local_folder(folder), lambda place: hf_encoders.is_encoder(files.read_json(opened(place) / CONFIG))
    )


def _task_at(path: Path) -> str:
    task, fields = any_task(path), files.read_json(path / CONFIG)
    if not task and fields.get("model_type") in hf_gpt_kinds.KINDS:
        return "generate"
    if task or not hf_encoders.is_encoder(fields):
        return str(task.get("task", "translate"))
    return hf_encoders.TASKS[hf_encoders.head_of(fields, headers(path), str(path / CONFIG))[0]]


def has_only_old_weights(folder: Path) -> bool:
    """Whether a folder's weights are pickled and nothing else."""
    safe = any((folder / name).exists() for name in (weights.FILE, weights.INDEX))
    return not safe and any((folder / name).exists() for name in (weights.OLD_FILE, weights.OLD_INDEX))


def headers(path: Path) -> dict[str, weights.Entry]:
    """Return the entries of all weight files of a folder."""
    if (path / weights.FILE).exists():
        return weights.read_header(path / weights.FILE)
    if (path / weights.INDEX).exists():
        placed = files.read_json(path / weights.INDEX).get("weight_map")
        plain = isinstance(placed, dict) and all(isinstance(name, str) for name in placed.values())
        shards = sorted(set(placed.values())) if plain and placed else []
        if not shards or any(Path(name).name != name for name in shards):
            raise CheckpointError(f"{path / weights.INDEX}: weight_map must name files of this folder")
        return {name: entry for shard in shards for name, entry in weights.read_header(path / shard).items()}
    if has_only_old_weights(path):
        raise CheckpointError(
            f"{path}: only old pickled weights ({weights.OLD_FILE}), which are not opened here: "
            f"turn the folder into a safe one with `regard convert {path} OUT --to regard`"
        )
    raise CheckpointError(f"{path / weights.FILE}: no such file; the folder holds no weights")


@contextmanager
def naming_weights(path: Path) -> Iterator[None]:
    """Name the folder in whatever is wrong with its weights."""
    try:
        yield
    except CheckpointError as error:
        message = str(error)
        raise CheckpointError(message if str(path) in message else f"{path}: weights: {message}") from None


def checked_floats(config: FamilyConfig, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's weights as they are written, after comparing them with what its config asks for."""
    floats = {name: tensor.detach().cpu().float() for name, tensor in named.items()}
    expected = expected_shapes(config)
    if {name: tuple(tensor.shape) for name, tensor in floats.items()} != expected:
        different = sorted(expected.keys() ^ floats.keys())[:5]
        raise ValueError(f"the weights are not those of the config; names that differ: {different}")
    return floats


def publish_model(
    folder: str | Path,
    fields: Mapping[str, Any],
    named: Mapping[str, Tensor],
    *,
    task: str,
    facts: Mapping[str, Any],
    card: str,
    besides: Mapping[str, bytes],
    instead: Mapping[str, files.Content] | None = None,
) -> None:
    """Write a model so that readers find the old one or the new one whole; other files there stay.

    `fields` is its `config.json`, weights are under the names there; `facts` go into `task.json` (without a task there
    is none), `besides` are the family's own files, `instead` those that are written instead of the weights.
    """
    held: Mapping[str, files.Content] = {weights.FILE: weights.content(named)} if instead is None else instead
    contents: dict[str, files.Content] = {**held, **besides, CARD: card.encode()}
    if task:
        contents[TASK_FILE] = files.json_bytes({"task": task, "version": VERSION, **facts})
    contents[CONFIG] = files.json_bytes(fields)
    files.publish(Path(folder), contents, size=weights.size(named))
