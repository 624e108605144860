"""What a model is made of, family by family."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob
from regard.errors import ConfigError

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "quick_gelu")
POSITIONS = ("sinusoidal", "learned", "rotary", "none")


@dataclass(frozen=True, kw_only=True)
class StackConfig(Config):
    """A stack of attention blocks."""

    layers: int = knob(4, "blocks in the stack", low=1, high=96)
    heads: int = knob(4, "attention heads of a block", low=1, high=256)
    feedforward: int = knob(512, "inner width of the feed-forward part", low=1)


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig(Config):
    """A Transformer encoder–decoder (Vaswani et al. 2017)."""

    family: str = knob("translator", "which model this is", choices=("translator",))
    source_vocabulary: int = knob(0, "token numbers of the source side; 0: from the tokenizer", low=0)
    target_vocabulary: int = knob(0, "token numbers of the target side; 0: from the tokenizer", low=0)
    shared: bool = knob(True, "one embedding for both sides")
    tied: bool = knob(True, "the output projection is the target embedding")
    output_bias: bool = knob(False, "a bias on the output projection")
    width: int = knob(256, "width of the hidden states", low=2)
    encoder: StackConfig = knob(StackConfig, "the encoder's stack")
    decoder: StackConfig = knob(StackConfig, "the decoder's stack")
    norm: str = knob("before", "layer norm before or after each part", choices=("before", "after"))
    activation: str = knob("relu", "activation of the feed-forward part", choices=ACTIVATIONS)
    positions: str = knob("sinusoidal", "how places are told apart", choices=POSITIONS)
    places: int = knob(512, "longest row the model takes", low=1)
    scale_embedding: bool = knob(True, "multiply embeddings by the root of the width")
    epsilon: float = knob(1e-5, "added to the variance in layer norm", low=0)
    dropout: float = knob(0.1, "dropout on embeddings and on each part's result", low=0, high=0.95)
    attention_dropout: float = knob(0.0, "dropout on attention weights", low=0, high=0.95)
    activation_dropout: float = knob(0.0, "dropout inside the feed-forward part", low=0, high=0.95)
    pad: int = knob(0, "token number that fills rows; never looked at", low=0)
    end: int = knob(1, "token number that ends a row", low=0)
    start: int = knob(3, "token number that the decoder starts from", low=0)

    def check(self) -> None:
        for name, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            if self.width % stack.heads:
                fits = [str(heads) for heads in range(1, self.width + 1) if self.width % heads == 0][:8]
                raise ConfigError(
                    f"{name}.heads ({stack.heads}) must divide width ({self.width}): try {', '.join(fits)}"
                )
            if self.positions == "rotary" and (self.width // stack.heads) % 2:
                raise ConfigError(f"rotary positions need an even head width, not {self.width // stack.heads}")
        if self.shared and self.source_vocabulary != self.target_vocabulary:
            raise ConfigError("a shared embedding needs equal vocabularies: set shared to false")

    def summary(self) -> str:
        """Say what it is in a few words."""
        encoder, decoder = self.encoder, self.decoder
        return (
            f"Transformer, {encoder.layers}+{decoder.layers} layers of {self.width}, {decoder.heads} heads, "
            f"feed-forward {encoder.feedforward}, norm {self.norm}, {self.positions} positions"
        )


def _preset(layers: int, width: int, heads: int, feedforward: int, dropout: float) -> TranslatorConfig:
    stack = StackConfig(layers=layers, heads=heads, feedforward=feedforward)
    return TranslatorConfig(width=width, encoder=stack, decoder=stack, dropout=dropout)


TRANSLATOR_PRESETS: dict[str, TranslatorConfig] = {
    "micro": _preset(2, 128, 4, 256, 0.1),
    "tiny": _preset(4, 128, 4, 256, 0.3),
    "small": _preset(3, 256, 4, 1024, 0.2),
    "base": _preset(6, 512, 8, 2048, 0.1),
    "big": _preset(6, 1024, 16, 4096, 0.3),
}


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(Config):
    """An end-to-end memory network (Sukhbaatar et al. 2015)."""

    family: str = knob("memory_network", "which model this is", choices=("memory_network",))
    vocabulary: int = knob(0, "words the model knows; 0: from the training stories", low=0)
    longest: int = knob(0, "words of the longest sentence or question it holds; 0: from the training stories", low=0)
    memory: int = knob(50, "sentences it remembers, the last ones before the question", low=1)
    width: int = knob(0, "width of the embeddings; 0: as published, 20 for one task, 50 for several", low=0)
    hops: int = knob(3, "how many times it looks at its memory before it answers", low=1, high=32)
    encoding: str = knob(
        "position", "a sentence is the sum of its words, plain or weighted by position", choices=("bag", "position")
    )
    tying: str = knob(
        "adjacent",
        "adjacent: each hop's values are the next one's keys; layerwise: all hops share one pair of embeddings",
        choices=("adjacent", "layerwise"),
    )
    temporal: bool = knob(True, "sentences carry how long ago they were told")
    empties: bool = knob(True, "empty memories take part in the softmax, so that a hop may look at nothing")

    def summary(self) -> str:
        """Say what it is in a few words."""
        return (
            f"memory network, {self.hops} hop{'s' if self.hops > 1 else ''} of width {self.width} over the last "
            f"{self.memory} sentences, {self.encoding} encoding, {self.tying} tying"
        )


CELLS = ("lstm", "gru")
HARD = "hard"
SCORES = ("none", "additive", "dot", "bilinear", "concat", HARD)


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(Config):
    """A recurrent encoder–decoder, with attention (Bahdanau et al. 2015; Luong et al. 2015) or without."""

    family: str = knob("seq2seq", "which model this is", choices=("seq2seq",))
    source_vocabulary: int = knob(0, "token numbers of the source side; 0: from the tokenizer", low=0)
    target_vocabulary: int = knob(0, "token numbers of the target side; 0: from the tokenizer", low=0)
    shared: bool = knob(True, "one embedding for both sides")
    tied: bool = knob(True, "the output projection is the target embedding")
    output_bias: bool = knob(False, "a bias on the output projection")
    cell: str = knob("lstm", "what remembers from step to step", choices=CELLS)
    embedding: int = knob(256, "width of the embeddings", low=1)
    width: int = knob(256, "width of a cell's state", low=1)
    layers: int = knob(1, "cells above one another, in the encoder and in the decoder", low=1, high=16)
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
    choice: str = knob(
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
    context: str = knob(
        "start", "without attention: the source is told at the start or at every step", choices=("start", "every")
    )
    places: int = knob(512, "longest row the model takes", low=1)
    scale_embedding: bool = knob(True, "multiply embeddings by the root of their width")
    dropout: float = knob(0.2, "dropout on embeddings, between cells and on the output", low=0, high=0.95)
    pad: int = knob(0, "token number that fills rows; never looked at", low=0)
    end: int = knob(1, "token number that ends a row", low=0)
    start: int = knob(3, "token number that the decoder starts from", low=0)

    def check(self) -> None:
        if self.shared and self.source_vocabulary != self.target_vocabulary:
            raise ConfigError("a shared embedding needs equal vocabularies: set shared to false")
        if self.bridge == "copy" and self.sides == 2:
            raise ConfigError("a state of both directions is too wide to be copied: set bridge to dense")
        if self.attention == "dot" and self.directions == "both":
            raise ConfigError("dot compares states of one width: set directions to one, or attention to bilinear")
        if self.attention == "none":
            for name, none in (("input_feeding", "none"), ("choice", "soft")):
                if getattr(self, name) != none:
                    raise ConfigError(f"{name} ({getattr(self, name)}) needs attention: set it to {none}")
        elif self.context == "every":
            raise ConfigError("context is for a model without attention: drop it, or set attention to none")

    @property
    def sides(self) -> int:
        """From how many sides the encoder reads."""
        return 1 if self.directions == "one" or (self.directions == "auto" and self.attention == "dot") else 2

    @property
    def score(self) -> str:
        """How states are compared, whether places are then mixed or one is chosen."""
        return "additive" if self.attention == HARD else self.attention

    @property
    def look(self) -> str:
        """Whether places are mixed, or how the choice of one is trained."""
        return "straight_through" if self.attention == HARD and self.choice == "soft" else self.choice

    def summary(self) -> str:
        """Say what it is in a few words."""
        looking = "no attention" if self.attention == "none" else f"{self.look} {self.score} attention"
        return f"recurrent, {self.cell}, {self.layers}+{self.layers} layers of {self.width}, {looking}"


def _recurrent(width: int, layers: int, dropout: float) -> RecurrentConfig:
    return RecurrentConfig(embedding=width, width=width, layers=layers, dropout=dropout, input_feeding="context")


WritingConfig = TranslatorConfig | RecurrentConfig  # models that read one text and write another

RECURRENT_PRESETS: dict[str, RecurrentConfig] = {
    "micro": _recurrent(128, 1, 0.1),
    "tiny": _recurrent(256, 1, 0.3),
    "small": _recurrent(512, 1, 0.3),
    "base": _recurrent(512, 2, 0.3),
}


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(Config):
    """Two recurrent language models, one from each end, whose layers are features (Peters et al. 2018)."""

    family: str = knob("elmo", "which model this is", choices=("elmo",))
    vocabulary: int = knob(0, "token numbers; 0: from the tokenizer", low=0)
    cell: str = knob("lstm", "what remembers from token to token", choices=CELLS)
    width: int = knob(256, "width of the embeddings and of a cell's state", low=1)
    layers: int = knob(2, "cells above one another, in each direction", low=1, high=16)
    dropout: float = knob(0.1, "dropout on embeddings, between cells and on the output", low=0, high=0.95)
    boundary: int = knob(1, "token number before the first and after the last token of a text", low=0)

    def summary(self) -> str:
        """Say what it is in a few words."""
        return (
            f"two language models, {self.cell}, from the left and from the right, {self.layers} layers of {self.width}"
        )


ELMO_PRESETS: dict[str, ElmoConfig] = {
    "micro": ElmoConfig(width=64),
    "tiny": ElmoConfig(width=128),
    "small": ElmoConfig(width=256),
    "base": ElmoConfig(width=512),
}


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(Config):
    """Words of a text, with frozen features beside them where there are any, read both ways by recurrent layers."""

    vocabulary: int = knob(0, "token numbers; 0: from the tokenizer", low=0)
    embedding: int = knob(128, "width of the embeddings", low=1)
    cell: str = knob("lstm", "what remembers from token to token", choices=CELLS)
    width: int = knob(128, "width of a cell's state, in each direction", low=1)
    layers: int = knob(1, "cells above one another, in each direction", low=1, high=16)
    dropout: float = knob(0.3, "dropout on what goes in and between cells", low=0, high=0.95)
    feature_layers: int = knob(0, "layers of frozen features, which are mixed; 0: from --features, if given", low=0)
    feature_width: int = knob(0, "width of those layers; 0: from --features, if given", low=0)

    def check(self) -> None:
        if bool(self.feature_layers) != bool(self.feature_width):
            raise ConfigError("feature_layers and feature_width are both 0, or both are not")


POOLINGS = ("attention", "mean", "max")


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(Config):
    """An encoder that gives a state for each token, one state made of them all, and a score for each label."""

    family: str = knob("classifier", "which model this is", choices=("classifier",))
    labels: int = knob(0, "labels to choose from; 0: from the data", low=0)
    pooling: str = knob("attention", "how the states of all tokens become one", choices=POOLINGS)
    dropout: float = knob(0.3, "dropout on that one state", low=0, high=0.95)
    encoder: ReaderConfig = knob(ReaderConfig, "what reads the text")

    def summary(self) -> str:
        """Say what it is in a few words."""
        reader = self.encoder
        words = f"words of {reader.embedding}"
        if reader.feature_layers:
            words += f" and {reader.feature_layers} frozen layers of {reader.feature_width}"
        layers = f"{reader.layers} layer{'s' if reader.layers > 1 else ''} of {reader.width} over {words}"
        return f"{reader.cell} both ways, {layers}, {self.pooling} pooling, {self.labels} labels"


def _classifier(width: int) -> ClassifierConfig:
    return ClassifierConfig(encoder=ReaderConfig(embedding=width, width=width))


CLASSIFIER_PRESETS: dict[str, ClassifierConfig] = {
    "tiny": _classifier(64),
    "small": _classifier(128),
    "base": _classifier(256),
}


SIGHTS = ("full", "blocks")
ENCODER_HEADS = ("plain", "masked", "next", "pretraining", "label", "token", "span")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """A Transformer encoder that reads a text from both sides (Devlin et al. 2019); its relatives are settings."""

    family: str = knob("bert", "which model this is", choices=("bert",))
    vocabulary: int = knob(0, "token numbers; 0: from the tokenizer", low=0)
    width: int = knob(256, "width of the hidden states", low=2)
    stack: StackConfig = knob(StackConfig, "the stack of blocks")
    norm: str = knob("after", "layer norm before or after each part", choices=("before", "after"))
    activation: str = knob("gelu", "activation of the feed-forward part", choices=ACTIVATIONS)
    places: int = knob(512, "longest row the model takes", low=1)
    first_place: int = knob(0, "row of the table of places that a text's first token has", low=0)
    types: int = knob(2, "kinds of tokens told apart, such as the two texts of a pair; 0: none", low=0)
    epsilon: float = knob(1e-12, "added to the variance in layer norm", low=0)
    dropout: float = knob(0.1, "dropout on embeddings and on each part's result", low=0, high=0.95)
    attention_dropout: float = knob(0.1, "dropout on attention weights", low=0, high=0.95)
    attention: str = knob(
        "full", "who looks at whom in long texts: all at all, or blocks at few blocks (BigBird)", choices=SIGHTS
    )
    block: int = knob(64, "tokens of a block", low=1)
    random_blocks: int = knob(3, "blocks that a block looks at besides its neighbours, the first and the last", low=0)
    drawn: bool = knob(True, "those are drawn once for all; else the first block counts so often more, as published")
    scale_embedding: bool = knob(False, "multiply words by the root of the width")
    drop_first: bool = knob(False, "dropout on embeddings comes before their norm")
    span_feedforward: bool = knob(False, "a feed-forward part before the scores of a span head")
    head: str = knob("plain", "what is made of the states", choices=ENCODER_HEADS)
    labels: int = knob(0, "labels of a label or token head", low=0)
    tied: bool = knob(True, "masked words are scored by the table of words itself")
    pooler: bool = knob(True, "a plain model has a state for the whole text too, made of the first token's")
    pooler_activation: str = knob("tanh", "activation of that state", choices=ACTIVATIONS)
    pooler_dropout: float = knob(0.0, "dropout on the first token before that state is made", low=0, high=0.95)
    head_dropout: float = knob(0.1, "dropout on what the head scores", low=0, high=0.95)
    pad: int = knob(0, "token number that fills rows; never looked at", low=0)

    def check(self) -> None:
        if self.width % self.stack.heads:
            fits = [str(heads) for heads in range(1, self.width + 1) if self.width % heads == 0][:8]
            raise ConfigError(
                f"stack.heads ({self.stack.heads}) must divide width ({self.width}): try {', '.join(fits)}"
            )

    @property
    def longest_full(self) -> int:
        """Up to how many tokens of a row everybody looks at everybody."""
        return (5 + 2 * self.random_blocks) * self.block if self.attention == "blocks" else self.places

    @property
    def pools(self) -> bool:
        """Whether there is a state for the whole text."""
        return self.head in ("next", "pretraining", "label") or (self.head == "plain" and self.pooler)

    @property
    def outputs(self) -> int:
        """How many scores a label, token or span head gives."""
        return {"label": self.labels, "token": self.labels, "span": 2}.get(self.head, 0)

    def summary(self) -> str:
        """Say what it is in a few words."""
        stack = self.stack
        what = {"plain": "no head", "label": f"{self.labels} labels", "token": f"{self.labels} token labels"}
        return (
            f"Transformer encoder, {stack.layers} layers of {self.width}, {stack.heads} heads, feed-forward "
            f"{stack.feedforward}, norm {self.norm}, {what.get(self.head, f'{self.head} head')}"
        )


def _encoder(layers: int, width: int, heads: int) -> EncoderConfig:
    stack = StackConfig(layers=layers, heads=heads, feedforward=4 * width)
    return EncoderConfig(width=width, stack=stack, dropout=0.0, attention_dropout=0.0)


ENCODER_PRESETS: dict[str, EncoderConfig] = {
    "tiny": _encoder(2, 128, 2),
    "mini": _encoder(4, 256, 4),
    "small": _encoder(4, 512, 8),
    "medium": _encoder(8, 512, 8),
    "base": _encoder(12, 768, 12),
    "large": _encoder(24, 1024, 16),
}


UNSEEN = ("refuse", "wrong")


@dataclass(frozen=True, kw_only=True)
class MemoryTrainingConfig(Config):
    """How memory networks are trained: plain gradient descent from several starts at once, the best one is kept."""

    seed: int = knob(1, "seed of order, noise and the first start's weights; the next start has the next seed", low=0)
    starts: int = knob(10, "networks trained side by side; the one with the least training error is kept", low=1)
    batch: int = knob(32, "questions of one batch; their losses are added up", low=1)
    epochs: int = knob(0, "passes over the questions; 0: as published, 100 for one task, 60 for several", low=0)
    halve_every: int = knob(0, "passes after which the learning rate is halved; 0: a quarter of all", low=0)
    learning_rate: float = knob(0.0, "first learning rate; 0: as published, 0.01, or 0.005 with a linear start", low=0)
    clip: float = knob(40.0, "largest norm of the gradient of each embedding; 0: no limit", low=0)
    linear_start: bool = knob(True, "first train without the softmax of the hops, then with it")
    linear_epochs: int = knob(
        0, "most passes of the linear start; 0: as published, 20 for one task, 30 for several", low=0
    )
    patience: int = knob(30, "the linear start ends after N passes without a lower held-out loss", low=1)
    noise: float = knob(0.1, "share of empty memories put between sentences while training", low=0, high=1)
    held_out: float = knob(0.1, "share of the questions that is not learned but ends the linear start", low=0, high=0.9)
    unseen: str = knob(
        "refuse", "validation questions whose answer is unseen in training: refuse, or count as wrong", choices=UNSEEN
    )
