"""Default settings of a run: those of its task, and the architecture of the pretrained model it starts from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.checkpoint import atomic
from regard.config.defaults import move_shared_settings, task_defaults

_DEFAULT_ARCHITECTURE = "bert"
_ARCHITECTURES = {  # model type in config.json → architecture, where it is not the default
    "regard-elmo": "elmo",
    "gpt2": "gpt",
    "gpt_neox": "gpt",
    "regard-gpt": "gpt",
}


def apply_defaults(task: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge overrides, by dotted path, into the task's defaults; `pretrained` decides the architecture if none is set.

    >>> apply_defaults("language", {"architecture": "bert"})["tokenizer.kind"]
    'wordpiece'
    """
    overrides = move_shared_settings(task, overrides)
    architecture = str(overrides.get("architecture", ""))
    pretrained = str(overrides.get("pretrained", ""))
    if task == "language" and pretrained and not architecture:
        architecture = _detect_architecture(pretrained)
    settings = task_defaults(task, architecture, pretrained=pretrained)
    if architecture:
        settings = {**settings, "architecture": architecture}
    return {**settings, **overrides}


def _detect_architecture(folder: str) -> str:
    """Architecture of a folder's model; a name from the hub is taken for an encoder."""
    path = Path(folder)
    if path.is_dir():
        path = atomic.published_path(path)
    config_file = path / "config.json"
    if not config_file.is_file():
        return _DEFAULT_ARCHITECTURE
    model_type = str(atomic.read_json(config_file).get("model_type"))
    return _ARCHITECTURES.get(model_type, _DEFAULT_ARCHITECTURE)
