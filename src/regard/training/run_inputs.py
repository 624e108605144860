"""Whether the data and the models that a run reads are those that it began with, by their digests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from regard.checkpoint.hub import is_on_disk
from regard.config.runs import RunConfig
from regard.errors import UsageError


def check_digests(recorded: Mapping[str, str], current: Mapping[str, str], config: RunConfig, folder: Path) -> None:
    """Raise `UsageError` that names the data, or the model, that changed since the run in `folder` began."""
    changed = [name for name, digest in recorded.items() if current.get(name) != digest]
    if not changed:
        return
    sources = {"valid": config.data.train, **config.files, **{name: (model,) for name, model in config.models.items()}}
    names = "; ".join(f"{name}: {', '.join(sources[name])}" if name in sources else name for name in changed)
    raise UsageError(
        f"the data changed since {folder} began ({names}): train on the same files, or choose another --out"
    )


def find_missing_files(config: RunConfig) -> list[str]:
    """Data files of a run that no longer exist."""
    return [path for paths in config.files.values() for path in paths if not Path(path).exists()]


def find_missing_models(config: RunConfig) -> dict[str, str]:
    """Models of a run that are no longer on this machine, by the name of their digest."""
    return {name: model for name, model in config.models.items() if not is_on_disk(model)}
