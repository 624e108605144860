"""Default settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.config.defaults import move_shared_settings, task_defaults


def apply_defaults(task: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge overrides, by dotted path, into the task's defaults.

    >>> apply_defaults("masked-lm", {})["tokenizer.kind"]
    'wordpiece'
    """
    overrides = move_shared_settings(task, overrides)
    architecture = str(overrides.get("architecture", ""))
    pretrained = str(overrides.get("pretrained", ""))
    settings = task_defaults(task, architecture, pretrained=pretrained)
    if architecture:
        settings = {**settings, "architecture": architecture}
    return {**settings, **overrides}
