"""Pipelines are pickled as the folders that they were loaded from and the options, and loaded again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from regard.errors import CheckpointError, UsageError
from regard.registry import resolve

P = ParamSpec("P")
PipelineT = TypeVar("PipelineT")


@dataclass(frozen=True)
class Origin:
    """How a pipeline was loaded."""

    loader: str  # import string of a function
    folders: tuple[str, ...]  # absolute paths, or hub names
    options: dict[str, Any]

    def load(self) -> Any:
        """Load the pipeline again."""
        for folder in self.folders:
            if Path(folder).is_absolute() and not Path(folder).is_dir():
                raise CheckpointError(
                    f"{folder}: no such folder; a pickled pipeline is loaded from its folder again: "
                    "put it back, or load the model from where it is now"
                )
        folders = self.folders[0] if len(self.folders) == 1 else list(self.folders)
        return resolve(self.loader)(folders, **self.options)


class PicklablePipeline:
    """Base class of pipelines; what a pipeline has counted since it was loaded is not pickled."""

    origin: Origin | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is None:
            raise UsageError(
                f"this {type(self).__name__} was not loaded from a folder, so it cannot be pickled: save the model, "
                "and pickle what regard.load returns"
            )
        return Origin.load, (self.origin,)


def reloadable(load: Callable[P, PipelineT]) -> Callable[P, PipelineT]:
    """Let the pipelines that a function loads be pickled; its first argument is a folder, or several."""

    @wraps(load)
    def wrapper(*args: P.args, **options: P.kwargs) -> PipelineT:
        pipeline = load(*args, **options)
        if isinstance(pipeline, PicklablePipeline):
            named: dict[str, Any] = dict(options)
            folder: Any = args[0] if args else named.pop("folder")
            folders = [folder] if isinstance(folder, str | Path) else list(folder)
            folders += named.pop("ensemble", ())
            paths = tuple(str(Path(name).absolute()) if Path(name).exists() else str(name) for name in folders)
            pipeline.origin = Origin(f"{load.__module__}:{load.__qualname__}", paths, options=named)
        return pipeline

    return wrapper
