"""Presets of a model family: which one suits the data, and what it decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from regard.config.models import STACK_SIZES
from regard.errors import ConfigError


@dataclass(frozen=True)
class PresetTable:
    """Presets by name, each for less training data than its limit."""

    presets: Mapping[str, Any]
    limits: Sequence[tuple[int, str]]  # amounts of data below which each preset is chosen, in ascending order
    largest: str  # chosen above all limits
    sizes: Sequence[str] = STACK_SIZES  # dotted paths of what a preset decides of a model
    unit: str = "tokens"  # of an amount of data

    def choose(self, name: str, amount: int, where: str) -> tuple[dict[str, Any], str]:
        """Sizes of the requested preset by dotted path, and why it was chosen; `auto` chooses by the amount of data.

        With `custom` there are none: the settings define the sizes.

        >>> from regard.config.models import GPT_PRESETS
        >>> presets = PresetTable(GPT_PRESETS, ((100, "tiny"),), largest="base", sizes=("hidden_size",))
        >>> presets.choose("auto", 50, "here"), presets.choose("custom", 50, "here")
        (({'hidden_size': 192}, 'tiny, for 50 tokens'), ({}, 'custom sizes'))
        """
        if name == "custom":
            return {}, "custom sizes"
        reason = "requested"
        if name == "auto":
            name = next((preset for limit, preset in self.limits if amount < limit), self.largest)
            reason = f"{name}, for {amount:,} {self.unit}"
        if name not in self.presets:
            raise ConfigError(f"preset must be one of {', '.join(self.presets)} {where}, not {name}")
        return {path: attrgetter(path)(self.presets[name]) for path in self.sizes}, reason
