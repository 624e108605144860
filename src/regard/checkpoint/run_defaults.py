"""What a run's settings are where nobody says otherwise: those of its task, and of the model that it goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.checkpoint import atomic
from regard.config.defaults import in_own_names, task_defaults

# type in config.json → architecture; else bert
_OWN = {"regard-elmo": "elmo", "gpt2": "gpt", "gpt_neox": "gpt", "regard-gpt": "gpt"}


def apply_defaults(task: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given, by dotted path, and the task's usual settings; `--from` a model decides which it is.

    >>> apply_defaults("language", {"architecture": "bert"})["tokenizer.kind"]
    'wordpiece'
    """
    overrides = in_own_names(task, overrides)
    arch, start = (str(overrides.get(name, "")) for name in ("architecture", "pretrained"))
    if task == "language" and start and not arch:
        arch = _architecture(start)
    return {**task_defaults(task, arch, start_from=start), **({"architecture": arch} if arch else {}), **overrides}


def _architecture(folder: str) -> str:
    """Return the architecture of a folder's model; a published name is an encoder's."""
    place = (
        atomic.published_path(Path(folder)) / "config.json" if Path(folder).is_dir() else Path(folder) / "config.json"
    )
    return _OWN.get(str(atomic.read_json(place).get("model_type")), "bert") if place.is_file() else "bert"
