"""Models: one family a file; `build` makes one from its config."""

from __future__ import annotations

from typing import Any, overload

from regard.config.gpt import GptConfig
from regard.config.model import (
    ClassifierConfig,
    ElmoConfig,
    EncoderConfig,
    MemoryConfig,
    RecurrentConfig,
    TaggerConfig,
    TranslatorConfig,
)
from regard.errors import ConfigError, nearest
from regard.models.classifier import Classifier
from regard.models.elmo import Elmo
from regard.models.encoder import Encoder
from regard.models.gpt import Gpt
from regard.models.memory_network import MemoryNetwork
from regard.models.seq2seq import Recurrent
from regard.models.tagger import Tagger
from regard.models.translator import Translator

FAMILIES: dict[str, tuple[Any, Any]] = {
    "translator": (TranslatorConfig, Translator),
    "seq2seq": (RecurrentConfig, Recurrent),
    "memory_network": (MemoryConfig, MemoryNetwork),
    "elmo": (ElmoConfig, Elmo),
    "classifier": (ClassifierConfig, Classifier),
    "tagger": (TaggerConfig, Tagger),
    "bert": (EncoderConfig, Encoder),
    "gpt": (GptConfig, Gpt),
}
AnyConfig = (
    TranslatorConfig
    | RecurrentConfig
    | MemoryConfig
    | ElmoConfig
    | ClassifierConfig
    | TaggerConfig
    | EncoderConfig
    | GptConfig
)
AnyModel = Translator | Recurrent | MemoryNetwork | Elmo | Classifier | Tagger | Encoder | Gpt


@overload
def build(config: TranslatorConfig) -> Translator: ...
@overload
def build(config: RecurrentConfig) -> Recurrent: ...
@overload
def build(config: MemoryConfig) -> MemoryNetwork: ...
@overload
def build(config: ElmoConfig) -> Elmo: ...
@overload
def build(config: ClassifierConfig) -> Classifier: ...
@overload
def build(config: TaggerConfig) -> Tagger: ...
@overload
def build(config: EncoderConfig) -> Encoder: ...
@overload
def build(config: GptConfig) -> Gpt: ...
def build(config: AnyConfig) -> AnyModel:
    """Return the model of this config with fresh weights.

    >>> from regard.config.model import TRANSLATOR_PRESETS
    >>> build(TRANSLATOR_PRESETS["tiny"].override({"source_vocabulary": 9, "target_vocabulary": 9})).vocabulary
    9
    """
    if config.family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ConfigError(f"family must be one of {known}, not {config.family}{nearest(config.family, FAMILIES)}")
    model: AnyModel = FAMILIES[config.family][1](config)
    return model
