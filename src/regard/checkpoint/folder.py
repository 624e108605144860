"""What reading any model folder shares, whatever the model: where it is, whose task it is, whether it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from regard.checkpoint import files, hf_encoders, hf_gpt, weights
from regard.config.tasks import USED_BY
from regard.errors import CheckpointError
from regard.models import FAMILIES
from regard.models.base import unfilled

_PATIENCE = 20  # times that a folder is read again because it was being replaced meanwhile
VERSION = 1
CONFIG, TASK_FILE, CARD = "config.json", "task.json", "README.md"

Read = TypeVar("Read")


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


def patiently(folder: Path, read: Callable[[Path], Read]) -> Read:
    """Return what is read from a folder; one that a training run replaces at this moment is read again."""
    for _ in range(_PATIENCE):
        before = _version(folder)
        try:
            return read(folder)
        except CheckpointError:
            if _version(folder) == before:
                raise
    return read(folder)


def _version(folder: Path) -> list[tuple[int, int]]:
    """Return what changes whenever a folder's model is replaced, even by one with the same content."""
    seen = []
    for manifest in (folder / files.MANIFEST, folder / files.NEW / files.MANIFEST):
        try:
            found = manifest.stat()
        except OSError:
            seen.append((0, 0))
        else:
            seen.append((found.st_ino, found.st_mtime_ns))
    return seen


def opened(folder: Path) -> Path:
    """Return where to read a folder's model from, or say what is there instead."""
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise CheckpointError(f"{folder}: {what}; a run's or model's folder is needed")
    path = files.published(folder)
    if (path / CONFIG).is_file():
        return path
    if (folder / "run.json").exists():
        raise CheckpointError(f"{folder}: a run that has not written its model yet: go on with the same train command")
    raise CheckpointError(f"{folder}: no {CONFIG} in it; a run's or model's folder is needed")


def task_of(folder: str | Path) -> str:
    """Return the task that a folder's model was trained for; one from elsewhere has its head's, or translates."""
    return patiently(Path(folder), lambda place: _task_at(opened(place)))


def is_encoder_folder(folder: str | Path) -> bool:
    """Whether a folder holds an encoder; a name that is no folder may be a published one's."""
    if not Path(folder).is_dir():
        return not Path(folder).exists()
    return patiently(Path(folder), lambda place: hf_encoders.is_encoder(files.read_json(opened(place) / CONFIG)))


def _task_at(path: Path) -> str:
    task, fields = _task(path), files.read_json(path / CONFIG)
    if not task and fields.get("model_type") == hf_gpt.KIND:
        return "generate"
    if task or not hf_encoders.is_encoder(fields):
        return str(task.get("task", "translate"))
    return hf_encoders.TASKS[hf_encoders.head_of(fields, headers(path), str(path / CONFIG))[0]]


def read_task(path: Path, wanted: str) -> dict[str, Any]:
    """Return what task.json holds, if the folder has one and it is of the wanted task."""
    task = _task(path)
    if not task:
        return {}
    found = task.get("task")
    if found != wanted:
        use = f" (`{USED_BY[found]}` uses this one)" if found in USED_BY else ""
        raise CheckpointError(f"{path}: a model for the task {found!r:.60}; one for {wanted!r} is needed{use}")
    version = task.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise CheckpointError(
            f"{path / TASK_FILE}: version {version!r:.60}; up to {VERSION} is read here: use a newer Regard"
        )
    return task


def _task(path: Path) -> dict[str, Any]:
    return files.read_json(path / TASK_FILE) if (path / TASK_FILE).exists() else {}


def verify(path: Path, read: Iterable[str]) -> None:
    """Compare what will be read with the manifest, if there is one."""
    if not (path / files.MANIFEST).exists():
        return
    try:
        files.verify_folder(path, read)
    except CheckpointError as error:
        advice = f"copy the folder again, or delete {files.MANIFEST} if the change was meant"
        raise CheckpointError(f"{error}: {advice}") from None


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
