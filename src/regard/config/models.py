"""What all Transformers are made of: stacks of attention blocks.

The Transformer that reads one text and writes another.

The Transformer encoder, BERT and its relatives, with its heads.

The causal language model.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.settings import Config, knob
from regard.errors import ConfigError

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "quick_gelu")


@dataclass(frozen=True, kw_only=True)
class StackConfig(Config):
    """A stack of attention blocks."""

    num_layers: int = knob(4, "blocks in the stack", low=1, high=96)
    num_heads: int = knob(4, "attention heads of a block", low=1, high=256)
    feed_forward_size: int = knob(512, "inner width of the feed-forward part", low=1)


def check_head_size(name: str, hidden_size: int, num_heads: int, *, is_rotary: bool = False) -> None:
    """Raise where a width cannot be dealt out to so many heads; `name` is that of the setting.

    >>> check_head_size("stack.heads", 64, 5)
    Traceback (most recent call last):
    regard.errors.ConfigError: stack.heads (5) must divide width (64): try 1, 2, 4, 8, 16, 32, 64
    """
    if hidden_size % num_heads:
        fits = [str(count) for count in range(1, hidden_size + 1) if hidden_size % count == 0][:8]
        raise ConfigError(f"{name} ({num_heads}) must divide width ({hidden_size}): try {', '.join(fits)}")
    if is_rotary and (hidden_size // num_heads) % 2:
        raise ConfigError(f"rotary positions need an even head width, not {hidden_size // num_heads}")


POSITIONS = ("sinusoidal", "learned", "rotary", "none")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Config):
    """A Transformer encoder–decoder (Vaswani et al. 2017)."""

    family: str = knob("translator", "which model this is", choices=("translator",))
    source_vocab_size: int = knob(0, "token numbers of the source side; 0: from the tokenizer", low=0)
    target_vocab_size: int = knob(0, "token numbers of the target side; 0: from the tokenizer", low=0)
    share_embeddings: bool = knob(True, "one embedding for both sides")
    tie_embeddings: bool = knob(True, "the output projection is the target embedding")
    output_bias: bool = knob(False, "a bias on the output projection")
    hidden_size: int = knob(256, "width of the hidden states", low=2)
    encoder: StackConfig = knob(StackConfig, "the encoder's stack")
    decoder: StackConfig = knob(StackConfig, "the decoder's stack")
    norm: str = knob("before", "layer norm before or after each part", choices=("before", "after"))
    activation: str = knob("relu", "activation of the feed-forward part", choices=ACTIVATIONS)
    positions: str = knob("sinusoidal", "how places are told apart", choices=POSITIONS)
    max_positions: int = knob(512, "longest row the model takes", low=1)
    scale_embedding: bool = knob(True, "multiply embeddings by the root of the width")
    norm_eps: float = knob(1e-5, "added to the variance in layer norm", low=0)
    dropout: float = knob(0.1, "dropout on embeddings and on each part's result", low=0, high=0.95)
    attention_dropout: float = knob(0.0, "dropout on attention weights", low=0, high=0.95)
    activation_dropout: float = knob(0.0, "dropout inside the feed-forward part", low=0, high=0.95)
    pad_id: int = knob(0, "token number that fills rows; never looked at", low=0)
    eos_id: int = knob(1, "token number that ends a row", low=0)
    bos_id: int = knob(3, "token number that the decoder starts from", low=0)

    def check(self) -> None:
        for name, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            check_head_size(f"{name}.heads", self.hidden_size, stack.num_heads, is_rotary=self.positions == "rotary")
        if self.share_embeddings and self.source_vocab_size != self.target_vocab_size:
            raise ConfigError("a shared embedding needs equal vocabularies: set shared to false")

    def summary(self) -> str:
        """Say what it is in a few words."""
        encoder, decoder = self.encoder, self.decoder
        return (
            f"Transformer, {encoder.num_layers}+{decoder.num_layers} layers of {self.hidden_size}, {decoder.num_heads} heads, "
            f"feed-forward {encoder.feed_forward_size}, norm {self.norm}, {self.positions} positions"
        )


def _preset(layers: int, width: int, heads: int, feedforward: int, dropout: float) -> TransformerConfig:
    stack = StackConfig(num_layers=layers, num_heads=heads, feed_forward_size=feedforward)
    return TransformerConfig(hidden_size=width, encoder=stack, decoder=stack, dropout=dropout)


TRANSFORMER_PRESETS: dict[str, TransformerConfig] = {
    "micro": _preset(2, 128, 4, 256, 0.1),
    "tiny": _preset(4, 128, 4, 256, 0.3),
    "small": _preset(3, 256, 4, 1024, 0.2),
    "base": _preset(6, 512, 8, 2048, 0.1),
    "big": _preset(6, 1024, 16, 4096, 0.3),
}
ATTENTION_KINDS = ("full", "blocks")
POSITION_KINDS = ("learned", "rotary")
POOLING_KINDS = ("first", "mean")
ENCODER_HEADS = ("plain", "masked", "next", "pretraining", "label", "token", "span")


@dataclass(frozen=True, kw_only=True)
class BertConfig(Config):
    """A Transformer encoder that reads a text from both sides (Devlin et al. 2019); its relatives are settings."""

    family: str = knob("bert", "which model this is", choices=("bert",))
    vocab_size: int = knob(0, "token numbers; 0: from the tokenizer", low=0)
    hidden_size: int = knob(256, "width of the hidden states", low=2)
    stack: StackConfig = knob(StackConfig, "the stack of blocks")
    layer_groups: int = knob(0, "sets of weights that the layers share, in order (ALBERT); 0: each has its own", low=0)
    embedding_size: int = knob(0, "width of words, places and types, which are then widened; 0: as the states", low=0)
    norm: str = knob("after", "layer norm before or after each part", choices=("before", "after"))
    activation: str = knob("gelu", "activation of the feed-forward part", choices=ACTIVATIONS)
    gated: bool = knob(False, "the feed-forward part multiplies what is activated with as much that is not")
    bias: bool = knob(True, "linear layers and norms add a bias; the last one before scores always does")
    first_attention_norm: bool = knob(True, "the first block norms what it looks around with, where norms come before")
    positions: str = knob(
        "learned", "how places are told: by a table, or by turning queries and keys", choices=POSITION_KINDS
    )
    rope_theta: float = knob(
        10_000.0, "what the wavelengths of turns grow with, in layers that look at whole rows", low=1
    )
    local_rope_theta: float = knob(10_000.0, "what they grow with in layers that look near", low=1)
    attention_window: int = knob(
        0, "tokens to either side that layers look at which look near; 0: all look at whole rows", low=0
    )
    global_every: int = knob(3, "of so many layers the first looks at whole rows, the others near", low=1)
    max_positions: int = knob(512, "longest row the model takes", low=1)
    position_offset: int = knob(0, "row of the table of places that a text's first token has", low=0)
    num_token_types: int = knob(2, "kinds of tokens told apart, such as the two texts of a pair; 0: none", low=0)
    norm_eps: float = knob(1e-12, "added to the variance in layer norm", low=0)
    dropout: float = knob(0.1, "dropout on embeddings and on each part's result", low=0, high=0.95)
    attention_dropout: float = knob(0.1, "dropout on attention weights", low=0, high=0.95)
    attention: str = knob(
        "full",
        "who looks at whom in long texts: all at all, or blocks at few blocks (BigBird)",
        choices=ATTENTION_KINDS,
    )
    block_size: int = knob(64, "tokens of a block", low=1)
    num_random_blocks: int = knob(
        3, "blocks that a block looks at besides its neighbours, the first and the last", low=0
    )
    random_once: bool = knob(
        True, "those are drawn once for all; else the first block counts so often more, as published"
    )
    scale_embedding: bool = knob(False, "multiply words by the root of the width")
    dropout_before_norm: bool = knob(False, "dropout on embeddings comes before their norm")
    span_feed_forward: bool = knob(False, "a feed-forward part before the scores of a span head")
    head: str = knob("plain", "what is made of the states", choices=ENCODER_HEADS)
    num_labels: int = knob(0, "labels of a label or token head", low=0)
    tie_embeddings: bool = knob(True, "masked words are scored by the table of words itself")
    head_transform: bool = knob(False, "every head scores states that went through one more layer, as masked words do")
    pooling: str = knob(
        "first", "what that layer makes a label's state of: a text's first, their mean", choices=POOLING_KINDS
    )
    pooler: bool = knob(True, "a plain model has a state for the whole text too, made of the first token's")
    pooler_activation: str = knob("tanh", "activation of that state", choices=ACTIVATIONS)
    pooler_dropout: float = knob(0.0, "dropout on the first token before that state is made", low=0, high=0.95)
    classifier_dropout: float = knob(0.1, "dropout on what the head scores", low=0, high=0.95)
    pad_id: int = knob(0, "token number that fills rows; never looked at", low=0)

    def check(self) -> None:
        check_head_size("stack.heads", self.hidden_size, self.stack.num_heads, is_rotary=self.positions == "rotary")
        if self.attention_window and self.attention != "full":
            raise ConfigError(f"reach ({self.attention_window}) is for attention 'full', not {self.attention!r}")
        if self.layer_groups > self.stack.num_layers:
            raise ConfigError(f"groups ({self.layer_groups}) must be at most stack.layers ({self.stack.num_layers})")

    @property
    def embedding_dim(self) -> int:
        """Width of the table of words."""
        return self.embedding_size or self.hidden_size

    def layer_group(self, layer: int) -> int:
        """Return the number of the block whose weights a layer has.

        >>> [BertConfig(layer_groups=2, stack=StackConfig(num_layers=5)).layer_group(layer) for layer in range(5)]
        [0, 0, 0, 1, 1]
        """
        return layer * self.layer_groups // self.stack.num_layers if self.layer_groups else layer

    def is_local(self, layer: int) -> bool:
        """Whether a layer looks at what is near alone.

        >>> [BertConfig(attention_window=4, global_every=3).is_local(layer) for layer in range(4)]
        [False, True, True, False]
        """
        return self.attention_window > 0 and layer % self.global_every > 0

    @property
    def max_full_attention(self) -> int:
        """Up to how many tokens of a row everybody looks at everybody."""
        return (5 + 2 * self.num_random_blocks) * self.block_size if self.attention == "blocks" else self.max_positions

    @property
    def has_pooler(self) -> bool:
        """Whether there is a state for the whole text."""
        made = self.head in ("next", "pretraining") or (self.head == "label" and not self.head_transform)
        return made or (self.head == "plain" and self.pooler)

    @property
    def classifies_first_token(self) -> bool:
        """Whether the head scores a text by its first token's state, and needs no others."""
        return self.head == "label" and (self.has_pooler or self.pooling == "first")

    @property
    def num_outputs(self) -> int:
        """How many scores a label, token or span head gives."""
        return {"label": self.num_labels, "token": self.num_labels, "span": 2}.get(self.head, 0)

    def summary(self) -> str:
        """Say what it is in a few words."""
        stack = self.stack
        what = {"plain": "no head", "label": f"{self.num_labels} labels", "token": f"{self.num_labels} token labels"}
        return (
            f"Transformer encoder, {stack.num_layers} layers of {self.hidden_size}, {stack.num_heads} heads, feed-forward "
            f"{stack.feed_forward_size}, norm {self.norm}, {what.get(self.head, f'{self.head} head')}"
        )


def _encoder(layers: int, width: int, heads: int) -> BertConfig:
    stack = StackConfig(num_layers=layers, num_heads=heads, feed_forward_size=4 * width)
    return BertConfig(hidden_size=width, stack=stack, dropout=0.0, attention_dropout=0.0)


BERT_PRESETS: dict[str, BertConfig] = {
    "tiny": _encoder(2, 128, 2),
    "mini": _encoder(4, 256, 4),
    "small": _encoder(4, 512, 8),
    "medium": _encoder(8, 512, 8),
    "base": _encoder(12, 768, 12),
    "large": _encoder(24, 1024, 16),
}


@dataclass(frozen=True, kw_only=True)
class GptConfig(Config):
    """A Transformer that tells each next token from those before it (Radford et al. 2018, 2019)."""

    family: str = knob("gpt", "which model this is", choices=("gpt",))
    vocab_size: int = knob(0, "token numbers; 0: from the tokenizer", low=0)
    hidden_size: int = knob(256, "width of the hidden states", low=2)
    stack: StackConfig = knob(StackConfig, "the stack of blocks")
    activation: str = knob("gelu_tanh", "activation of the feed-forward part", choices=ACTIVATIONS)
    positions: str = knob(
        "rotary",
        "how places are told apart; rotary ones learn fastest; others read them as gpt_neox, learned ones as gpt2",
        choices=("learned", "rotary", "sinusoidal"),
    )
    max_positions: int = knob(256, "longest row the model takes; while it writes, it forgets what came earlier", low=2)
    tie_embeddings: bool = knob(True, "the output projection is the table of words")
    norm_eps: float = knob(1e-5, "added to the variance in layer norm", low=0)
    dropout: float = knob(0.1, "dropout on embeddings and on each part's result", low=0, high=0.95)
    attention_dropout: float = knob(0.0, "dropout on attention weights", low=0, high=0.95)
    eos_id: int = knob(1, "token number between two documents, which ends a text; -1: none", low=-1)

    def check(self) -> None:
        check_head_size("stack.heads", self.hidden_size, self.stack.num_heads, is_rotary=self.positions == "rotary")

    def summary(self) -> str:
        """Say what it is in a few words."""
        stack = self.stack
        return (
            f"causal Transformer, {stack.num_layers} layers of {self.hidden_size}, {stack.num_heads} heads, feed-forward "
            f"{stack.feed_forward_size}, {self.positions} positions, rows of {self.max_positions}"
        )


def _gpt(layers: int, width: int, heads: int) -> GptConfig:
    return GptConfig(
        hidden_size=width, stack=StackConfig(num_layers=layers, num_heads=heads, feed_forward_size=4 * width)
    )


GPT_PRESETS: dict[str, GptConfig] = {
    "micro": _gpt(3, 128, 4),
    "tiny": _gpt(4, 192, 4),
    "small": _gpt(4, 256, 4),
    "medium": _gpt(6, 384, 6),
    "base": _gpt(12, 768, 12),
}
