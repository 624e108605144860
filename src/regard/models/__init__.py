"""Models: one family a file; `build` makes one from its config."""

from __future__ import annotations

from typing import Any, overload

from regard.config.model import MemoryConfig, RecurrentConfig, TranslatorConfig
from regard.errors import ConfigError, nearest
from regard.models.memory_network import MemoryNetwork
from regard.models.seq2seq import Recurrent
from regard.models.translator import Translator

FAMILIES: dict[str, tuple[Any, Any]] = {
    "translator": (TranslatorConfig, Translator),
    "seq2seq": (RecurrentConfig, Recurrent),
    "memory_network": (MemoryConfig, MemoryNetwork),
}


@overload
def build(config: TranslatorConfig) -> Translator: ...
@overload
def build(config: RecurrentConfig) -> Recurrent: ...
@overload
def build(config: MemoryConfig) -> MemoryNetwork: ...
def build(config: TranslatorConfig | RecurrentConfig | MemoryConfig) -> Translator | Recurrent | MemoryNetwork:
    """Return the model of this config with fresh weights.

    >>> from regard.config.model import TRANSLATOR_PRESETS
    >>> build(TRANSLATOR_PRESETS["tiny"].override({"source_vocabulary": 9, "target_vocabulary": 9})).vocabulary
    9
    """
    if config.family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ConfigError(f"family must be one of {known}, not {config.family}{nearest(config.family, FAMILIES)}")
    model: Translator | Recurrent | MemoryNetwork = FAMILIES[config.family][1](config)
    return model
