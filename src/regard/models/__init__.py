"""Models: one family a file; `build` makes one from its config."""

from __future__ import annotations

from regard.config.model import TranslatorConfig
from regard.errors import ConfigError, nearest
from regard.models.translator import Translator

FAMILIES = {"translator": (TranslatorConfig, Translator)}


def build(config: TranslatorConfig) -> Translator:
    """Return the model of this config with fresh weights.

    >>> from regard.config.model import TRANSLATOR_PRESETS
    >>> build(TRANSLATOR_PRESETS["tiny"].override({"source_vocabulary": 9, "target_vocabulary": 9})).vocabulary
    9
    """
    if config.family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ConfigError(f"family must be one of {known}, not {config.family}{nearest(config.family, FAMILIES)}")
    return FAMILIES[config.family][1](config)
