"""Configs of recurrent models (seq2seq, ELMo, RNN classifier and tagger) and of the memory network."""

from __future__ import annotations

from dataclasses import dataclass

from regard.components import SCORES, Choices
from regard.config.attention import AttentionWeightsConfig
from regard.config.models import TransformerConfig
from regard.config.settings import AUTO, MAX_SIZE, Config, knob
from regard.errors import ConfigError

CELLS = ("lstm", "gru")
ATTENTION_SCORES = Choices("none", SCORES)
HARD_ATTENTION = ("none", "straight-through", "reinforce")


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(AttentionWeightsConfig):
    """A recurrent encoder–decoder, with attention (Bahdanau et al. 2015; Luong et al. 2015) or without."""

    family: str = knob("seq2seq", "Model family.", choices=("seq2seq",))
    source_vocab_size: int = knob(AUTO, "Source vocabulary size; auto: from the tokenizer.", low=1, high=MAX_SIZE)
    target_vocab_size: int = knob(AUTO, "Target vocabulary size; auto: from the tokenizer.", low=1, high=MAX_SIZE)
    share_embeddings: bool = knob(True, "One embedding for source and target.")
    tie_embeddings: bool = knob(True, "Use the target embedding as output projection.")
    output_bias: bool = knob(False, "Bias on the output projection.")
    cell: str = knob("lstm", "Recurrent cell (--arch rnn).", choices=CELLS)
    embedding_size: int = knob(256, "Embedding size.", low=1, high=MAX_SIZE)
    hidden_size: int = knob(256, "Hidden size of a cell.", low=1, high=MAX_SIZE)
    num_layers: int = knob(1, "Recurrent layers of encoder and decoder.", low=1, high=16)
    directions: str = knob(
        "auto",
        "Directions of the encoder: forward only (one) or both; auto: both, but one with dot attention.",
        choices=("auto", "one", "both"),
    )
    bridge: str = knob(
        "dense",
        "Initialise the decoder from the encoder's last state, projected (dense) or copied.",
        choices=("dense", "copy"),
    )
    attention: str = knob(
        "additive",
        "Attention score of --arch rnn (Bahdanau: additive; Luong: dot, bilinear, concat).",
        choices=ATTENTION_SCORES,
    )
    hard_attention: str = knob(
        "none",
        "Hard attention of --arch rnn to one position, with this gradient estimator; none: soft attention.",
        choices=HARD_ATTENTION,
    )
    attention_window: int = knob(
        0,
        "Source tokens on each side of a target token's own position that it attends to (Luong et al. 2015, local-m); "
        "0 disables local attention.",
        low=0,
        high=MAX_SIZE,
    )
    input_feeding: str = knob(
        "none",
        "Extra input of the decoder cell (--arch rnn): the last context vector (context: Bahdanau) or the last "
        "attentional state (output: Luong).",
        choices=("none", "context", "output"),
        bare="output",
    )
    source_context: str = knob(
        "start",
        "Without attention: feed the source state to the decoder at the start, or at every step.",
        choices=("start", "every"),
    )
    max_positions: int = knob(512, "Longest sequence that the model accepts, in tokens.", low=1, high=MAX_SIZE)
    scale_embedding: bool = knob(True, "Multiply embeddings by √embedding_size.")
    dropout: float = knob(0.2, "Dropout on embeddings, between layers and on the output.", low=0, high=0.95)
    pad_id: int = knob(0, "Padding token id.", low=0)
    eos_id: int = knob(1, "End-of-sequence token id.", low=0)
    bos_id: int = knob(3, "Token id that the decoder starts from.", low=0)

    def check(self) -> None:
        super().check()
        if self.share_embeddings and self.source_vocab_size != self.target_vocab_size:
            raise ConfigError(
                f"a shared embedding needs equal vocabulary sizes, not {self.source_vocab_size} and "
                f"{self.target_vocab_size}: set share_embeddings to false"
            )
        if self.bridge == "copy" and self.num_directions == 2:
            raise ConfigError("a bidirectional encoder's state is too large to be copied: set bridge to dense")
        if self.attention == "dot" and self.directions == "both":
            raise ConfigError("dot attention needs states of one size: set directions to one, or attention to bilinear")
        if self.attention == "none":
            self._check_without_attention()
        elif self.source_context == "every":
            raise ConfigError(
                "source_context (every) is for a model without attention: drop it, or set attention to none"
            )
        if self.hard_attention != "none" and not self.has_plain_softmax:
            changed = ", ".join(super().changed_parts())
            raise ConfigError(
                f"hard attention ({self.hard_attention}) selects a position by the softmax of its scores: leave out "
                f"{changed}"
            )

    def _check_without_attention(self) -> None:
        if self.changed_parts():
            raise ConfigError(f"{self.changed_parts()[0]} needs attention: leave it out, or choose an attention score")
        for name in ("input_feeding", "hard_attention"):
            if getattr(self, name) != "none":
                raise ConfigError(f"{name} ({getattr(self, name)}) needs attention: set it to none")

    @property
    def num_directions(self) -> int:
        """Number of directions of the encoder."""
        if self.directions == "auto":
            return 1 if self.attention == "dot" else 2
        return 1 if self.directions == "one" else 2

    def changed_parts(self) -> list[str]:
        """Parts of attention that are changed, as `setting value`."""
        window = [f"attention_window {self.attention_window}"] if self.attention_window else []
        return [*window, *super().changed_parts()]

    def summary(self) -> str:
        """Describe the model in one line."""
        mode = "soft" if self.hard_attention == "none" else f"hard ({self.hard_attention})"
        attention = "no attention" if self.attention == "none" else f"{mode} {self.attention} attention"
        layers = f"{self.num_layers}+{self.num_layers} layers of {self.hidden_size}"
        return ", ".join(["RNN seq2seq", self.cell.upper(), layers, attention, *self.changed_parts()])


def _seq2seq_preset(hidden_size: int, num_layers: int, dropout: float) -> Seq2SeqConfig:
    return Seq2SeqConfig(
        embedding_size=hidden_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        dropout=dropout,
        input_feeding="context",
    )


SEQ2SEQ_PRESETS: dict[str, Seq2SeqConfig] = {
    "micro": _seq2seq_preset(128, 1, 0.1),
    "tiny": _seq2seq_preset(256, 1, 0.3),
    "small": _seq2seq_preset(512, 1, 0.3),
    "base": _seq2seq_preset(512, 2, 0.3),
}


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(Config):
    """A forward and a backward recurrent language model whose layers serve as features (Peters et al. 2018)."""

    family: str = knob("elmo", "Model family.", choices=("elmo",))
    vocab_size: int = knob(AUTO, "Vocabulary size; auto: from the tokenizer.", low=1, high=MAX_SIZE)
    cell: str = knob("lstm", "Recurrent cell.", choices=CELLS)
    hidden_size: int = knob(256, "Embedding and hidden size.", low=1, high=MAX_SIZE)
    num_layers: int = knob(2, "Recurrent layers per direction.", low=1, high=16)
    dropout: float = knob(0.1, "Dropout on embeddings, between layers and on the output.", low=0, high=0.95)
    boundary_id: int = knob(1, "Token id before and after every document.", low=0)

    def summary(self) -> str:
        """Describe the model in one line."""
        return f"bidirectional language model, {self.cell.upper()}, {self.num_layers} layers of {self.hidden_size}"


ELMO_PRESETS: dict[str, ElmoConfig] = {
    "micro": ElmoConfig(hidden_size=64),
    "tiny": ElmoConfig(hidden_size=128),
    "small": ElmoConfig(hidden_size=256),
    "base": ElmoConfig(hidden_size=512),
}


@dataclass(frozen=True, kw_only=True)
class RnnTextConfig(Config):
    """A recurrent text encoder over token embeddings and, optionally, frozen features."""

    vocab_size: int = knob(AUTO, "Vocabulary size; auto: from the tokenizer.", low=1, high=MAX_SIZE)
    embedding_size: int = knob(128, "Embedding size.", low=1, high=MAX_SIZE)
    cell: str = knob("lstm", "Recurrent cell.", choices=CELLS)
    hidden_size: int = knob(128, "Hidden size of a cell, per direction.", low=1, high=MAX_SIZE)
    num_layers: int = knob(1, "Recurrent layers per direction.", low=1, high=16)
    directions: str = knob("both", "Read texts forwards only (one), or in both directions.", choices=("one", "both"))
    dropout: float = knob(0.3, "Dropout on the input and between layers.", low=0, high=0.95)
    num_feature_layers: int = knob(AUTO, "Layers of the frozen features; auto: from --features.", low=1, high=97)
    feature_size: int = knob(AUTO, "Size of the frozen features; auto: from --features.", low=1, high=MAX_SIZE)

    def check(self) -> None:
        if bool(self.num_feature_layers) != bool(self.feature_size):
            raise ConfigError(
                f"num_feature_layers ({self.num_feature_layers}) and feature_size ({self.feature_size}) must both be 0 "
                "or both be positive"
            )

    @property
    def num_directions(self) -> int:
        """Number of directions."""
        return 1 if self.directions == "one" else 2

    def summary(self) -> str:
        """Describe the model in one line."""
        direction = "bidirectional" if self.directions == "both" else "unidirectional"
        inputs = f"embeddings of {self.embedding_size}"
        if self.num_feature_layers:
            inputs += f" and {self.num_feature_layers} frozen layers of {self.feature_size}"
        layers = "layers" if self.num_layers > 1 else "layer"
        return f"{direction} {self.cell.upper()}, {self.num_layers} {layers} of {self.hidden_size} over {inputs}"


RNN_TEXT_PRESETS: dict[str, RnnTextConfig] = {
    "tiny": RnnTextConfig(embedding_size=64, hidden_size=64),
    "small": RnnTextConfig(embedding_size=128, hidden_size=128),
    "base": RnnTextConfig(embedding_size=256, hidden_size=256),
}
RNN_POOLING_KINDS = ("attention", "mean", "max", "last")


@dataclass(frozen=True, kw_only=True)
class RnnClassifierConfig(AttentionWeightsConfig):
    """RNN text encoder, pooling over its hidden states, and a linear classifier.

    The settings of attention are those of attention pooling.
    """

    family: str = knob("rnn_classifier", "Model family.", choices=("rnn_classifier",))
    num_labels: int = knob(AUTO, "Number of labels; auto: from the data.", low=1, high=MAX_SIZE)
    pooling: str = knob(
        "attention",
        "Pooling over the hidden states; last: the last state of each direction.",
        choices=RNN_POOLING_KINDS,
    )
    dropout: float = knob(0.3, "Dropout on the pooled state.", low=0, high=0.95)
    encoder: RnnTextConfig = knob(RnnTextConfig, "RNN text encoder.")

    def check(self) -> None:
        super().check()
        if self.pooling != "attention" and self.changed_parts():
            raise ConfigError(f"{self.changed_parts()[0]} is for attention pooling: leave it out with {self.pooling}")

    @property
    def vocab_size(self) -> int:
        """Vocabulary size."""
        return self.encoder.vocab_size

    @property
    def hidden_size(self) -> int:
        """Hidden size of a cell, per direction."""
        return self.encoder.hidden_size

    def summary(self) -> str:
        """Describe the model in one line."""
        pooling = ", ".join([f"{self.pooling} pooling", *self.changed_parts()])
        return f"{self.encoder.summary()}, {pooling}, {self.num_labels} labels"


@dataclass(frozen=True, kw_only=True)
class RnnTaggerConfig(Config):
    """RNN text encoder and a linear classifier on the first token of each word."""

    family: str = knob("rnn_tagger", "Model family.", choices=("rnn_tagger",))
    num_labels: int = knob(AUTO, "Number of tags; auto: from the data.", low=1, high=MAX_SIZE)
    dropout: float = knob(0.3, "Dropout on the hidden states of words.", low=0, high=0.95)
    encoder: RnnTextConfig = knob(RnnTextConfig, "RNN text encoder.")

    @property
    def vocab_size(self) -> int:
        """Vocabulary size."""
        return self.encoder.vocab_size

    @property
    def hidden_size(self) -> int:
        """Hidden size of a cell, per direction."""
        return self.encoder.hidden_size

    @property
    def num_outputs(self) -> int:
        """Number of logits of a word."""
        return self.num_labels

    def summary(self) -> str:
        """Describe the model in one line."""
        return f"{self.encoder.summary()}, {self.num_labels} tags"


UNKNOWN_ANSWERS = ("wrong", "error")
_NETWORK_PARTS = ("time_encoding", "state_map", "empty_memories")  # of a memory network, which may be left out


@dataclass(frozen=True, kw_only=True)
class MemoryNetworkConfig(Config):
    """An end-to-end memory network (Sukhbaatar et al. 2015)."""

    family: str = knob("memory_network", "Model family.", choices=("memory_network",))
    vocab_size: int = knob(AUTO, "Vocabulary size; auto: from the training stories.", low=1, high=MAX_SIZE)
    max_sentence_words: int = knob(
        AUTO, "Words of the longest sentence or question; auto: from the training stories.", low=1, high=MAX_SIZE
    )
    memory_size: int = knob(50, "Sentences kept in memory, the last before the question.", low=1, high=MAX_SIZE)
    embedding_size: int = knob(
        AUTO, "Embedding size; auto: as published, 20 for one task, 50 for several.", low=1, high=MAX_SIZE
    )
    hops: int = knob(3, "Attention hops over the memory.", low=1, high=32)
    sentence_encoding: str = knob(
        "position", "Sentence encoding: bag of words, or position encoding.", choices=("bag", "position")
    )
    tying: str = knob(
        "adjacent",
        "Weight tying between hops; adjacent: the output embedding of a hop is the input embedding of the next; "
        "layerwise: all hops share their embeddings.",
        choices=("adjacent", "layerwise"),
    )
    time_encoding: str = knob(
        "learned",
        "Encoding of the age of each sentence of a story: an embedding per age (learned), fixed sinusoids, or none.",
        choices=("learned", "sinusoidal", "none"),
    )
    state_map: str = knob(
        "auto",
        "Linear map H of the state in its update between hops, or none; auto: as published, linear with layerwise "
        "tying.",
        choices=("auto", "linear", "none"),
    )
    empty_memories: bool = knob(True, "Empty memories take part in the softmax, so that a hop can attend to nothing.")

    @property
    def has_state_map(self) -> bool:
        """Whether the state passes through a linear map in each update."""
        return self.state_map == "linear" or (self.state_map == "auto" and self.tying == "layerwise")

    def changed_parts(self) -> list[str]:
        """Parts of the published network that are changed or left out, as `setting value`.

        >>> MemoryNetworkConfig(time_encoding="none", state_map="none").changed_parts()
        ['time_encoding none']
        """
        published = MemoryNetworkConfig(tying=self.tying)
        parts = [name for name in _NETWORK_PARTS if getattr(self, name) != getattr(published, name)]
        if self.has_state_map == published.has_state_map and "state_map" in parts:
            parts.remove("state_map")
        return [f"{name} {str(getattr(self, name)).lower()}" for name in parts]

    def summary(self) -> str:
        """Describe the model in one line."""
        hops = "hops" if self.hops > 1 else "hop"
        parts = "".join(f", {part}" for part in self.changed_parts())
        return (
            f"memory network, {self.hops} {hops} over the last {self.memory_size} sentences, "
            f"embedding size {self.embedding_size}, {self.sentence_encoding} encoding, {self.tying} tying{parts}"
        )


TranslationModelConfig = TransformerConfig | Seq2SeqConfig
