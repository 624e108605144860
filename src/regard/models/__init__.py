"""Model families, one per file; `build_model` builds a model from its config."""

from __future__ import annotations

from typing import Any, overload

from regard.components import FAMILIES
from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.config.rnn_models import (
    ElmoConfig,
    MemoryNetworkConfig,
    RnnClassifierConfig,
    RnnTaggerConfig,
    Seq2SeqConfig,
)
from regard.models.base import ModelConfig
from regard.models.bert import Bert
from regard.models.elmo import Elmo
from regard.models.gpt import Gpt
from regard.models.memory_network import MemoryNetwork
from regard.models.rnn_text import RnnClassifier, RnnTagger
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer
from regard.registry import resolve


@overload
def build_model(config: TransformerConfig) -> Transformer: ...
@overload
def build_model(config: Seq2SeqConfig) -> Seq2Seq: ...
@overload
def build_model(config: MemoryNetworkConfig) -> MemoryNetwork: ...
@overload
def build_model(config: ElmoConfig) -> Elmo: ...
@overload
def build_model(config: RnnClassifierConfig) -> RnnClassifier: ...
@overload
def build_model(config: RnnTaggerConfig) -> RnnTagger: ...
@overload
def build_model(config: BertConfig) -> Bert: ...
@overload
def build_model(config: GptConfig) -> Gpt: ...
@overload
def build_model(config: ModelConfig) -> Any: ...
def build_model(config: ModelConfig) -> Any:
    """Build the model of a config, with freshly initialised weights.

    >>> from regard.config.models import TRANSFORMER_PRESETS
    >>> build_model(TRANSFORMER_PRESETS["tiny"].override({"source_vocab_size": 9, "target_vocab_size": 9})).vocab_size
    9
    """
    return resolve(FAMILIES[config.family].model)(config)
