"""What a run's settings are where nobody says otherwise: those of its task, and of the model that it goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.checkpoint import files
from regard.config.tasks import in_own_names, usual

# type in config.json → architecture; else bert
_OWN = {"regard-elmo": "elmo", "gpt2": "gpt", "gpt_neox": "gpt", "regard-gpt": "gpt"}


def with_usual(task: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given, by dotted path, and the task's usual settings; `--from` a model decides which it is.

    >>> with_usual("language", {"arch": "bert"})["tokenizer.kind"]
    'wordpiece'
    """
    given = in_own_names(task, given)
    arch, start = (str(given.get(name, "")) for name in ("arch", "start_from"))
    if task == "language" and start and not arch:
        arch = _architecture(start)
    return {**usual(task, arch, start_from=start), **({"arch": arch} if arch else {}), **given}


def _architecture(folder: str) -> str:
    """Return the architecture of a folder's model; a published name is an encoder's."""
    place = files.published(Path(folder)) / "config.json" if Path(folder).is_dir() else Path(folder) / "config.json"
    return _OWN.get(str(files.read_json(place).get("model_type")), "bert") if place.is_file() else "bert"
