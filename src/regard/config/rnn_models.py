"""The recurrent models that read one text and write another, with attention or without.

Recurrent language models from both ends of a text, whose layers are features.

Recurrent readers with words of their own, and what is made of their states: a label for a text, a tag for a word.

The memory network that answers questions about stories, and how it is trained.

What a model is made of: the config of every family, each declared in a file of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.models import TransformerConfig
from regard.config.settings import Config, knob
from regard.errors import ConfigError

CELLS = ("lstm", "gru")
HARD = "hard"
SCORES = ("none", "additive", "dot", "bilinear", "concat", HARD)


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(Config):
    """A recurrent encoder–decoder, with attention (Bahdanau et al. 2015; Luong et al. 2015) or without."""

    family: str = knob("seq2seq", "which model this is", choices=("seq2seq",))
    source_vocab_size: int = knob(0, "token numbers of the source side; 0: from the tokenizer", low=0)
    target_vocab_size: int = knob(0, "token numbers of the target side; 0: from the tokenizer", low=0)
    share_embeddings: bool = knob(True, "one embedding for both sides")
    tie_embeddings: bool = knob(True, "the output projection is the target embedding")
    output_bias: bool = knob(False, "a bias on the output projection")
    cell: str = knob("lstm", "what remembers from step to step", choices=CELLS)
    embedding_size: int = knob(256, "width of the embeddings", low=1)
    hidden_size: int = knob(256, "width of a cell's state", low=1)
    num_layers: int = knob(1, "cells above one another, in the encoder and in the decoder", low=1, high=16)
    directions: str = knob(
        "auto",
        "how the encoder reads: forwards, or both ways; auto: both ways, for dot forwards",
        choices=("auto", "one", "both"),
    )
    bridge: str = knob(
        "dense",
        "how the decoder starts from the encoder's last state: projected or as it is",
        choices=("dense", "copy"),
    )
    attention: str = knob(
        "additive",
        "how the decoder compares its state with the source's; hard: as additive, but one place is chosen",
        choices=SCORES,
    )
    hard_attention: str = knob(
        "soft",
        "mix all places, or choose one: trained as if it were soft, or by rewards",
        choices=("soft", "straight_through", "reinforce"),
    )
    input_feeding: str = knob(
        "none",
        "what goes into the cell beside a token: nothing, what the last state sees (Bahdanau), the last output (Luong)",
        choices=("none", "context", "output"),
        bare="output",
    )
    source_context: str = knob(
        "start", "without attention: the source is told at the start or at every step", choices=("start", "every")
    )
    max_positions: int = knob(512, "longest row the model takes", low=1)
    scale_embedding: bool = knob(True, "multiply embeddings by the root of their width")
    dropout: float = knob(0.2, "dropout on embeddings, between cells and on the output", low=0, high=0.95)
    pad_id: int = knob(0, "token number that fills rows; never looked at", low=0)
    eos_id: int = knob(1, "token number that ends a row", low=0)
    bos_id: int = knob(3, "token number that the decoder starts from", low=0)

    def check(self) -> None:
        if self.share_embeddings and self.source_vocab_size != self.target_vocab_size:
            raise ConfigError("a shared embedding needs equal vocabularies: set shared to false")
        if self.bridge == "copy" and self.num_directions == 2:
            raise ConfigError("a state of both directions is too wide to be copied: set bridge to dense")
        if self.attention == "dot" and self.directions == "both":
            raise ConfigError("dot compares states of one width: set directions to one, or attention to bilinear")
        if self.attention == "none":
            for name, none in (("input_feeding", "none"), ("hard_attention", "soft")):
                if getattr(self, name) != none:
                    raise ConfigError(f"{name} ({getattr(self, name)}) needs attention: set it to {none}")
        elif self.source_context == "every":
            raise ConfigError("context is for a model without attention: drop it, or set attention to none")

    @property
    def num_directions(self) -> int:
        """From how many sides the encoder reads."""
        return 1 if self.directions == "one" or (self.directions == "auto" and self.attention == "dot") else 2

    @property
    def score(self) -> str:
        """How states are compared, whether places are then mixed or one is chosen."""
        return "additive" if self.attention == HARD else self.attention

    @property
    def attention_mode(self) -> str:
        """Whether places are mixed, or how the choice of one is trained."""
        return "straight_through" if self.attention == HARD and self.hard_attention == "soft" else self.hard_attention

    def summary(self) -> str:
        """Say what it is in a few words."""
        looking = "no attention" if self.attention == "none" else f"{self.attention_mode} {self.score} attention"
        return f"recurrent, {self.cell}, {self.num_layers}+{self.num_layers} layers of {self.hidden_size}, {looking}"


def _recurrent(width: int, layers: int, dropout: float) -> Seq2SeqConfig:
    return Seq2SeqConfig(
        embedding_size=width, hidden_size=width, num_layers=layers, dropout=dropout, input_feeding="context"
    )


SEQ2SEQ_PRESETS: dict[str, Seq2SeqConfig] = {
    "micro": _recurrent(128, 1, 0.1),
    "tiny": _recurrent(256, 1, 0.3),
    "small": _recurrent(512, 1, 0.3),
    "base": _recurrent(512, 2, 0.3),
}


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(Config):
    """Two recurrent language models, one from each end, whose layers are features (Peters et al. 2018)."""

    family: str = knob("elmo", "which model this is", choices=("elmo",))
    vocab_size: int = knob(0, "token numbers; 0: from the tokenizer", low=0)
    cell: str = knob("lstm", "what remembers from token to token", choices=CELLS)
    hidden_size: int = knob(256, "width of the embeddings and of a cell's state", low=1)
    num_layers: int = knob(2, "cells above one another, in each direction", low=1, high=16)
    dropout: float = knob(0.1, "dropout on embeddings, between cells and on the output", low=0, high=0.95)
    boundary_id: int = knob(1, "token number before the first and after the last token of a text", low=0)

    def summary(self) -> str:
        """Say what it is in a few words."""
        return f"two language models, {self.cell}, from the left and from the right, {self.num_layers} layers of {self.hidden_size}"


ELMO_PRESETS: dict[str, ElmoConfig] = {
    "micro": ElmoConfig(hidden_size=64),
    "tiny": ElmoConfig(hidden_size=128),
    "small": ElmoConfig(hidden_size=256),
    "base": ElmoConfig(hidden_size=512),
}


@dataclass(frozen=True, kw_only=True)
class RnnTextConfig(Config):
    """Words of a text, with frozen features beside them where there are any, read both ways by recurrent layers."""

    vocab_size: int = knob(0, "token numbers; 0: from the tokenizer", low=0)
    embedding_size: int = knob(128, "width of the embeddings", low=1)
    cell: str = knob("lstm", "what remembers from token to token", choices=CELLS)
    hidden_size: int = knob(128, "width of a cell's state, in each direction", low=1)
    num_layers: int = knob(1, "cells above one another, in each direction", low=1, high=16)
    dropout: float = knob(0.3, "dropout on what goes in and between cells", low=0, high=0.95)
    num_feature_layers: int = knob(0, "layers of frozen features, which are mixed; 0: from --features, if given", low=0)
    feature_size: int = knob(0, "width of those layers; 0: from --features, if given", low=0)

    def check(self) -> None:
        if bool(self.num_feature_layers) != bool(self.feature_size):
            raise ConfigError("feature_layers and feature_width are both 0, or both are not")

    def summary(self) -> str:
        """Say what it is in a few words."""
        words = f"words of {self.embedding_size}"
        if self.num_feature_layers:
            words += f" and {self.num_feature_layers} frozen layers of {self.feature_size}"
        layers = f"{self.num_layers} layer{'s' if self.num_layers > 1 else ''} of {self.hidden_size} over {words}"
        return f"{self.cell} both ways, {layers}"


RNN_TEXT_PRESETS: dict[str, RnnTextConfig] = {
    "tiny": RnnTextConfig(embedding_size=64, hidden_size=64),
    "small": RnnTextConfig(embedding_size=128, hidden_size=128),
    "base": RnnTextConfig(embedding_size=256, hidden_size=256),
}
RNN_POOLING_KINDS = ("attention", "mean", "max")


@dataclass(frozen=True, kw_only=True)
class RnnClassifierConfig(Config):
    """An encoder that gives a state for each token, one state made of them all, and a score for each label."""

    family: str = knob("classifier", "which model this is", choices=("classifier",))
    num_labels: int = knob(0, "labels to choose from; 0: from the data", low=0)
    pooling: str = knob("attention", "how the states of all tokens become one", choices=RNN_POOLING_KINDS)
    dropout: float = knob(0.3, "dropout on that one state", low=0, high=0.95)
    encoder: RnnTextConfig = knob(RnnTextConfig, "what reads the text")

    def summary(self) -> str:
        """Say what it is in a few words."""
        return f"{self.encoder.summary()}, {self.pooling} pooling, {self.num_labels} labels"


@dataclass(frozen=True, kw_only=True)
class RnnTaggerConfig(Config):
    """A reader that gives a state for each token, and a score for each tag at the first token of a word."""

    family: str = knob("tagger", "which model this is", choices=("tagger",))
    num_labels: int = knob(0, "tags to choose from; 0: from the data", low=0)
    dropout: float = knob(0.3, "dropout on the states of words", low=0, high=0.95)
    encoder: RnnTextConfig = knob(RnnTextConfig, "what reads the sentence")

    @property
    def num_outputs(self) -> int:
        """How many scores a word has."""
        return self.num_labels

    def summary(self) -> str:
        """Say what it is in a few words."""
        return f"{self.encoder.summary()}, {self.num_labels} tags"


UNKNOWN_ANSWERS = ("refuse", "wrong")


@dataclass(frozen=True, kw_only=True)
class MemoryNetworkConfig(Config):
    """An end-to-end memory network (Sukhbaatar et al. 2015)."""

    family: str = knob("memory_network", "which model this is", choices=("memory_network",))
    vocab_size: int = knob(0, "words the model knows; 0: from the training stories", low=0)
    max_sentence_words: int = knob(
        0, "words of the longest sentence or question it holds; 0: from the training stories", low=0
    )
    memory_size: int = knob(50, "sentences it remembers, the last ones before the question", low=1)
    embedding_size: int = knob(0, "width of the embeddings; 0: as published, 20 for one task, 50 for several", low=0)
    hops: int = knob(3, "how many times it looks at its memory before it answers", low=1, high=32)
    sentence_encoding: str = knob(
        "position", "a sentence is the sum of its words, plain or weighted by position", choices=("bag", "position")
    )
    tying: str = knob(
        "adjacent",
        "adjacent: each hop's values are the next one's keys; layerwise: all hops share one pair of embeddings",
        choices=("adjacent", "layerwise"),
    )
    temporal_encoding: bool = knob(True, "sentences carry how long ago they were told")
    empty_memories: bool = knob(True, "empty memories take part in the softmax, so that a hop may look at nothing")

    def summary(self) -> str:
        """Say what it is in a few words."""
        return (
            f"memory network, {self.hops} hop{'s' if self.hops > 1 else ''} of width {self.embedding_size} over the last "
            f"{self.memory_size} sentences, {self.sentence_encoding} encoding, {self.tying} tying"
        )


TranslationModelConfig = TransformerConfig | Seq2SeqConfig  # models that read one text and write another
