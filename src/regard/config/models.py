"""Transformer configs: stacks of blocks, the encoder–decoder, BERT-style encoders with their heads, and GPT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from regard.components import POSITIONS
from regard.config.attention import AttentionWeightsConfig
from regard.config.settings import AUTO, MAX_SIZE, Config, knob
from regard.errors import ConfigError

NORM_PLACEMENTS = ("pre", "post", "both", "none")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "quick_gelu")
BIAS_POSITIONS = ("alibi", "relative")  # schemes that add to attention scores
_MAX_SUGGESTED_HEADS = 1024
_MAX_SUGGESTIONS = 8


@dataclass(frozen=True, kw_only=True)
class StackConfig(AttentionWeightsConfig):
    """A stack of Transformer blocks."""

    num_layers: int = knob(4, "Number of Transformer blocks.", low=1, high=96)
    num_heads: int = knob(4, "Attention heads per block.", low=1, high=256)
    feed_forward_size: int = knob(512, "Inner size of the feed-forward layer.", low=1, high=MAX_SIZE)
    head_size: int = knob(
        AUTO, "Size of a head's queries and keys (d_k); auto: hidden_size / num_heads.", low=1, high=MAX_SIZE
    )
    value_size: int = knob(AUTO, "Size of a head's values (d_v); auto: as head_size.", low=1, high=MAX_SIZE)
    residual: bool = knob(True, "Residual connection around each sublayer.")
    attention_scale: float = knob(
        AUTO, "Factor of the attention scores; auto: 1 / √head_size; 1 leaves scaling out.", low=0, high=1e6
    )

    def check(self) -> None:
        super().check()
        if self.attention_scale and self.attention_normalization == "uniform":
            raise ConfigError(
                f"attention_scale ({self.attention_scale:g}) means nothing to equal weights: set it to auto, or "
                "attention_normalization to another value than uniform"
            )

    def changed_parts(self) -> list[str]:
        """Parts of the published block that are changed or left out, as `setting value`.

        >>> StackConfig(residual=False, attention_scale=1).changed_parts()
        ['residual false', 'attention_scale 1']
        """
        usual = StackConfig().to_dict()
        values = self.to_dict()
        relevant = [name for name in _BLOCK_PARTS if values[name] != usual[name]]
        return [*(f"{name} {_format_value(values[name])}" for name in relevant), *super().changed_parts()]

    def check_model(self, name: str, hidden_size: int, positions: str) -> None:
        """Raise `ConfigError` where the stack does not fit its model; `name` is the setting of this stack."""
        is_rotary = positions == "rotary"
        if not self.head_size:
            check_head_size(f"{name}.num_heads", hidden_size, self.num_heads, is_rotary=is_rotary)
        elif is_rotary and self.head_size % 2:
            raise ConfigError(f"rotary positions need an even head size, not {name}.head_size {self.head_size}")
        if self.attention_normalization == "uniform" and positions in BIAS_POSITIONS:
            raise ConfigError(
                f"{positions} positions add to attention scores, which mean nothing to equal weights: set positions to "
                f"another value, or {name}.attention_normalization to another than uniform"
            )


_BLOCK_PARTS = (
    "head_size",
    "value_size",
    "residual",
    "attention_scale",
)


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _describe_parts(stacks: Mapping[str, StackConfig], window: int) -> str:
    """Changed parts of stacks and local attention, to append to a summary; empty for the published block.

    A part that not all stacks have follows the name of its stack.
    """
    parts_by_stack = {name: stack.changed_parts() for name, stack in stacks.items()}
    shared = set.intersection(*map(set, parts_by_stack.values()))
    descriptions = dict.fromkeys(
        part if part in shared else f"{name} {part}" for name, parts in parts_by_stack.items() for part in parts
    )
    local = [f"attention_window {window}"] if window else []
    return "".join(f", {description}" for description in [*descriptions, *local])


def check_head_size(name: str, hidden_size: int, num_heads: int, *, is_rotary: bool = False) -> None:
    """Raise `ConfigError` where the hidden size does not divide into heads; `name` is the setting of the heads.

    >>> check_head_size("stack.num_heads", 64, 5)
    Traceback (most recent call last):
    regard.errors.ConfigError: stack.num_heads (5) must divide hidden_size (64): try 1, 2, 4, 8, 16, 32, 64
    """
    if hidden_size % num_heads:
        counts = range(1, min(hidden_size, _MAX_SUGGESTED_HEADS) + 1)  # bounded: a file may name any hidden size
        divisors = [str(count) for count in counts if hidden_size % count == 0]
        suggestion = ", ".join(divisors[:_MAX_SUGGESTIONS])
        raise ConfigError(f"{name} ({num_heads}) must divide hidden_size ({hidden_size}): try {suggestion}")
    head_size = hidden_size // num_heads
    if is_rotary and head_size % 2:
        raise ConfigError(f"rotary positions need an even head size, not {head_size}: change {name} or hidden_size")


def _describe_norms(placement: str) -> str:
    return {"both": "pre- and post-norm", "none": "no norms"}.get(placement, f"{placement}-norm")


def _describe_positions(kind: str) -> str:
    return "no positions" if kind == "none" else f"{kind} positions"


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Config):
    """A Transformer encoder–decoder (Vaswani et al. 2017)."""

    family: str = knob("transformer", "Model family.", choices=("transformer",))
    source_vocab_size: int = knob(AUTO, "Source vocabulary size; auto: from the tokenizer.", low=1, high=MAX_SIZE)
    target_vocab_size: int = knob(AUTO, "Target vocabulary size; auto: from the tokenizer.", low=1, high=MAX_SIZE)
    share_embeddings: bool = knob(True, "One embedding for source and target.")
    tie_embeddings: bool = knob(True, "Use the target embedding as output projection.")
    output_bias: bool = knob(False, "Bias on the output projection.")
    hidden_size: int = knob(256, "Hidden size.", low=2, high=MAX_SIZE)
    encoder: StackConfig = knob(StackConfig, "Encoder stack.")
    decoder: StackConfig = knob(StackConfig, "Decoder stack.")
    norm_placement: str = knob("pre", "Norms before or after sublayers, both, or none.", choices=NORM_PLACEMENTS)
    activation: str = knob("relu", "Activation of the feed-forward layer.", choices=ACTIVATIONS)
    positions: str = knob("sinusoidal", "Positional encoding.", choices=POSITIONS)
    attention_window: int = knob(
        0,
        "Tokens on each side that self-attention sees, earlier ones in the decoder; 0 disables local attention.",
        low=0,
        high=MAX_SIZE,
    )
    max_positions: int = knob(512, "Longest sequence that the model accepts, in tokens.", low=1, high=MAX_SIZE)
    scale_embedding: bool = knob(True, "Multiply embeddings by √hidden_size.")
    norm_eps: float = knob(1e-5, "Epsilon of layer norm.", low=0)
    dropout: float = knob(0.1, "Dropout on embeddings and after each sub-layer.", low=0, high=0.95)
    attention_dropout: float = knob(0.0, "Dropout on attention weights.", low=0, high=0.95)
    activation_dropout: float = knob(0.0, "Dropout inside the feed-forward layer.", low=0, high=0.95)
    pad_id: int = knob(0, "Padding token id.", low=0)
    eos_id: int = knob(1, "End-of-sequence token id.", low=0)
    bos_id: int = knob(3, "Token id that the decoder starts from.", low=0)

    def check(self) -> None:
        self.encoder.check_model("encoder", self.hidden_size, self.positions)
        self.decoder.check_model("decoder", self.hidden_size, self.positions)
        if self.share_embeddings and self.source_vocab_size != self.target_vocab_size:
            raise ConfigError(
                f"a shared embedding needs equal vocabulary sizes, not {self.source_vocab_size} and "
                f"{self.target_vocab_size}: set share_embeddings to false"
            )

    def summary(self) -> str:
        """Describe the model in one line."""
        return (
            f"Transformer, {self.encoder.num_layers}+{self.decoder.num_layers} layers of {self.hidden_size}, "
            f"{self.decoder.num_heads} heads, feed-forward {self.encoder.feed_forward_size}, "
            f"{_describe_norms(self.norm_placement)}, {_describe_positions(self.positions)}"
            f"{_describe_parts({'encoder': self.encoder, 'decoder': self.decoder}, self.attention_window)}"
        )


def _transformer_preset(
    num_layers: int, hidden_size: int, num_heads: int, feed_forward_size: int, dropout: float
) -> TransformerConfig:
    stack = StackConfig(num_layers=num_layers, num_heads=num_heads, feed_forward_size=feed_forward_size)
    return TransformerConfig(hidden_size=hidden_size, encoder=stack, decoder=stack, dropout=dropout)


TRANSFORMER_PRESETS: dict[str, TransformerConfig] = {
    "micro": _transformer_preset(2, 128, 4, 256, 0.1),
    "tiny": _transformer_preset(4, 128, 4, 256, 0.3),
    "small": _transformer_preset(3, 256, 4, 1024, 0.2),
    "base": _transformer_preset(6, 512, 8, 2048, 0.1),
    "big": _transformer_preset(6, 1024, 16, 4096, 0.3),
}
STACK_SIZES = ("hidden_size", "stack.num_layers", "stack.num_heads", "stack.feed_forward_size")  # of a preset
ATTENTION_KINDS = ("full", "blocks")
POOLING_KINDS = ("first", "last", "mean", "attention")
ENCODER_HEADS = ("plain", "masked", "next", "pretraining", "label", "token", "span")
HEAD_PREFIXES = (  # of the names of an encoder's weights that belong to a head
    *("classifier", "pooler", "pooling", "mlm_head", "next_sentence"),
    *("span_feed_forward", "span_norm"),
)


@dataclass(frozen=True, kw_only=True)
class BertConfig(Config):
    """A Transformer encoder (Devlin et al. 2019). Its relatives, also GPT with a task's head, differ in settings."""

    family: str = knob("bert", "Model family.", choices=("bert",))
    vocab_size: int = knob(AUTO, "Vocabulary size; auto: from the tokenizer.", low=1, high=MAX_SIZE)
    hidden_size: int = knob(256, "Hidden size.", low=2, high=MAX_SIZE)
    stack: StackConfig = knob(StackConfig, "Stack of Transformer blocks.")
    layer_groups: int = knob(0, "Groups of layers that share weights (ALBERT); 0 disables sharing.", low=0)
    embedding_size: int = knob(
        AUTO,
        "Embedding size, projected to the hidden size (ALBERT, ELECTRA); auto: the hidden size.",
        low=1,
        high=MAX_SIZE,
    )
    norm_placement: str = knob("post", "Norms before or after sublayers, both, or none.", choices=NORM_PLACEMENTS)
    activation: str = knob("gelu", "Activation of the feed-forward layer.", choices=ACTIVATIONS)
    gated: bool = knob(False, "Gated feed-forward layer (GeGLU, SwiGLU by the activation).")
    bias: bool = knob(True, "Biases in linear layers and norms; the classifier always has one.")
    first_attention_norm: bool = knob(
        True, "Norm before the first attention where norms come before sub-layers (ModernBERT has none)."
    )
    positions: str = knob("learned", "Positional encoding.", choices=POSITIONS)
    rope_theta: float = knob(10_000.0, "RoPE base of layers with global attention.", low=1)
    local_rope_theta: float = knob(10_000.0, "RoPE base of layers with local attention.", low=1)
    attention_window: int = knob(
        0, "Tokens on each side that local-attention layers see; 0 disables local attention.", low=0, high=MAX_SIZE
    )
    global_every: int = knob(3, "Every n-th layer, from the first on, has global attention.", low=1, high=MAX_SIZE)
    max_positions: int = knob(512, "Longest sequence that the model accepts, in tokens.", low=1, high=MAX_SIZE)
    position_offset: int = knob(0, "Position id of the first token (RoBERTa: 2).", low=0, high=MAX_SIZE)
    causal: bool = knob(False, "Tokens attend to themselves and earlier tokens alone, as in a decoder.")
    num_token_types: int = knob(2, "Number of token types (segments); 0 for none.", low=0, high=MAX_SIZE)
    embedding_norm: bool = knob(True, "Norm of the embeddings before the first layer (GPT has none).")
    norm_eps: float = knob(1e-12, "Epsilon of layer norm.", low=0)
    dropout: float = knob(0.1, "Dropout on embeddings and after each sub-layer.", low=0, high=0.95)
    attention_dropout: float = knob(0.1, "Dropout on attention weights.", low=0, high=0.95)
    token_dropout: float = knob(
        0.0, "Share of tokens that training reads without their embedding (word dropout).", low=0, high=0.95
    )
    attention: str = knob(
        "full",
        "Full attention, or block-sparse attention on long texts (BigBird).",
        choices=ATTENTION_KINDS,
    )
    block_size: int = knob(64, "Tokens per block of block-sparse attention.", low=1, high=MAX_SIZE)
    num_random_blocks: int = knob(
        3,
        "Random blocks that each block attends to, besides its neighbours, the first and the last.",
        low=0,
        high=MAX_SIZE,
    )
    random_once: bool = knob(
        True,
        "Draw the random blocks once, for all layers; otherwise count the first block as often again, as the "
        "published BigBird inference does.",
    )
    scale_embedding: bool = knob(False, "Multiply token embeddings by √hidden_size.")
    dropout_before_norm: bool = knob(False, "Dropout on the embeddings before their norm.")
    span_feed_forward: bool = knob(False, "Feed-forward layer before the span head (BigBird).")
    head: str = knob("plain", "Task head.", choices=ENCODER_HEADS)
    num_labels: int = knob(0, "Labels of a label or token head.", low=0, high=MAX_SIZE)
    tie_embeddings: bool = knob(True, "Use the token embedding as masked-LM output projection.")
    head_transform: bool = knob(False, "Dense layer, activation and norm before every head (ModernBERT).")
    pooling: str = knob(
        "first",
        "Pooling of a label head: first or last token, mean, or attention with a learned query.",
        choices=POOLING_KINDS,
    )
    pooler: bool = knob(True, "Dense layer over the pooled token, in a model without a head or with a label head.")
    classifier_bias: bool = knob(True, "Bias of the classifier.")
    pooler_activation: str = knob("tanh", "Activation of the pooler.", choices=ACTIVATIONS)
    pooler_dropout: float = knob(0.0, "Dropout before the pooler.", low=0, high=0.95)
    classifier_dropout: float = knob(0.1, "Dropout before the head.", low=0, high=0.95)
    pad_id: int = knob(0, "Padding token id.", low=0)

    def check(self) -> None:
        self.stack.check_model("stack", self.hidden_size, self.positions)
        self._check_attention()
        if self.head == "label":
            self.check_pooling()
        if self.layer_groups > self.stack.num_layers:
            raise ConfigError(
                f"layer_groups ({self.layer_groups}) must be at most stack.num_layers ({self.stack.num_layers})"
            )

    def _check_attention(self) -> None:
        if self.attention_window and self.attention != "full":
            raise ConfigError(
                f"attention_window ({self.attention_window}) needs attention 'full', not {self.attention!r}"
            )
        if self.causal and self.attention != "full":
            raise ConfigError(
                f"a causal encoder needs attention 'full': {self.attention!r} attends to later tokens, too"
            )
        if self.attention_window and not any(self.is_local(layer) for layer in range(self.stack.num_layers)):
            raise ConfigError(
                f"attention_window ({self.attention_window}) has no effect: the first layer is global, and with "
                f"stack.num_layers {self.stack.num_layers} and global_every {self.global_every} no other is local; "
                "set it to 0, or both of these to at least 2"
            )

    def check_pooling(self) -> None:
        """Raise `ConfigError` where a label head would pool a token that attends to no other."""
        if self.causal and self.pooling == "first":
            raise ConfigError(
                "the first token of a causal encoder attends to itself alone, so pooling 'first' knows nothing of the "
                "text: set pooling to last, mean or attention"
            )

    @property
    def embedding_dim(self) -> int:
        """Width of the embedding table."""
        return self.embedding_size or self.hidden_size

    def layer_group(self, layer: int) -> int:
        """Index of the block whose weights a layer uses.

        >>> [BertConfig(layer_groups=2, stack=StackConfig(num_layers=5)).layer_group(layer) for layer in range(5)]
        [0, 0, 0, 1, 1]
        """
        return layer * self.layer_groups // self.stack.num_layers if self.layer_groups else layer

    def is_local(self, layer: int) -> bool:
        """Whether a layer has local attention.

        >>> [BertConfig(attention_window=4, global_every=3).is_local(layer) for layer in range(4)]
        [False, True, True, False]
        """
        return self.attention_window > 0 and layer % self.global_every > 0

    @property
    def max_full_attention(self) -> int:
        """Longest sequence, in tokens, with full attention."""
        if self.attention == "blocks":
            return (5 + 2 * self.num_random_blocks) * self.block_size
        return self.max_positions

    @property
    def has_pooler(self) -> bool:
        """Whether a dense pooler follows the first token's hidden state."""
        if self.head == "plain":
            return self.pooler
        if self.head == "label":
            return self.pooler and not self.head_transform
        return self.head in ("next", "pretraining")

    @property
    def pooled_token(self) -> str:
        """The token whose hidden state is all that a label head needs: first or last; empty where it needs more."""
        return self.pooling if self.head == "label" and self.pooling in ("first", "last") else ""

    @property
    def num_outputs(self) -> int:
        """Number of logits of a label, token or span head."""
        return {"label": self.num_labels, "token": self.num_labels, "span": 2}.get(self.head, 0)

    def summary(self) -> str:
        """Describe the model in one line."""
        stack = self.stack
        pooling = "" if self.pooling == "first" else f"{self.pooling} pooling, "
        heads = {
            "plain": "no head",
            "label": f"{pooling}{self.num_labels} labels",
            "token": f"{self.num_labels} token labels",
        }
        head = heads.get(self.head, f"{self.head} head")
        kind = "causal Transformer" if self.causal else "Transformer encoder"
        return (
            f"{kind}, {stack.num_layers} layers of {self.hidden_size}, {stack.num_heads} heads, "
            f"feed-forward {stack.feed_forward_size}, {_describe_norms(self.norm_placement)}, "
            f"{_describe_positions(self.positions)}, {head}{_describe_parts({'stack': stack}, self.attention_window)}"
        )


def _bert_preset(num_layers: int, hidden_size: int, num_heads: int) -> BertConfig:
    stack = StackConfig(num_layers=num_layers, num_heads=num_heads, feed_forward_size=4 * hidden_size)
    return BertConfig(hidden_size=hidden_size, stack=stack, dropout=0.0, attention_dropout=0.0)


BERT_PRESETS: dict[str, BertConfig] = {
    "tiny": _bert_preset(2, 128, 2),
    "mini": _bert_preset(4, 256, 4),
    "small": _bert_preset(4, 512, 8),
    "medium": _bert_preset(8, 512, 8),
    "base": _bert_preset(12, 768, 12),
    "large": _bert_preset(24, 1024, 16),
}


FRESH_ENCODER_PRESETS: dict[str, BertConfig] = {  # of encoders that are trained on labelled texts from scratch
    "tiny": _bert_preset(2, 64, 4),
    "small": _bert_preset(2, 128, 4),
    "base": _bert_preset(4, 256, 4),
}


@dataclass(frozen=True, kw_only=True)
class GptConfig(Config):
    """A causal Transformer language model (Radford et al. 2018, 2019)."""

    family: str = knob("gpt", "Model family.", choices=("gpt",))
    vocab_size: int = knob(AUTO, "Vocabulary size; auto: from the tokenizer.", low=1, high=MAX_SIZE)
    hidden_size: int = knob(256, "Hidden size.", low=2, high=MAX_SIZE)
    stack: StackConfig = knob(StackConfig, "Stack of Transformer blocks.")
    activation: str = knob("gelu_tanh", "Activation of the feed-forward layer.", choices=ACTIVATIONS)
    positions: str = knob(
        "rotary",
        "Positional encoding; exports as gpt_neox with rotary, as gpt2 with learned positions.",
        choices=POSITIONS,
    )
    norm_placement: str = knob("pre", "Norms before or after sublayers, both, or none.", choices=NORM_PLACEMENTS)
    attention_window: int = knob(
        0, "Earlier tokens that a token sees; 0 disables local attention.", low=0, high=MAX_SIZE
    )
    max_positions: int = knob(256, "Context length in tokens; generation slides beyond it.", low=2, high=MAX_SIZE)
    tie_embeddings: bool = knob(True, "Use the token embedding as output projection.")
    norm_eps: float = knob(1e-5, "Epsilon of layer norm.", low=0)
    dropout: float = knob(0.1, "Dropout on embeddings and after each sub-layer.", low=0, high=0.95)
    attention_dropout: float = knob(0.0, "Dropout on attention weights.", low=0, high=0.95)
    eos_id: int = knob(1, "End-of-text token id, also between documents; -1 for none.", low=-1)

    def check(self) -> None:
        self.stack.check_model("stack", self.hidden_size, self.positions)

    def summary(self) -> str:
        """Describe the model in one line."""
        stack = self.stack
        return (
            f"causal Transformer, {stack.num_layers} layers of {self.hidden_size}, {stack.num_heads} heads, "
            f"feed-forward {stack.feed_forward_size}, {_describe_norms(self.norm_placement)}, "
            f"{_describe_positions(self.positions)}, context of {self.max_positions}"
            f"{_describe_parts({'stack': stack}, self.attention_window)}"
        )


def _gpt_preset(num_layers: int, hidden_size: int, num_heads: int) -> GptConfig:
    stack = StackConfig(num_layers=num_layers, num_heads=num_heads, feed_forward_size=4 * hidden_size)
    return GptConfig(hidden_size=hidden_size, stack=stack)


GPT_PRESETS: dict[str, GptConfig] = {
    "micro": _gpt_preset(3, 128, 4),
    "tiny": _gpt_preset(4, 192, 4),
    "small": _gpt_preset(4, 256, 4),
    "medium": _gpt_preset(6, 384, 6),
    "base": _gpt_preset(12, 768, 12),
}
