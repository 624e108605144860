"""Config of a Transformer block; masks, windows and positions are those of a layer, not of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from regard.config.attention import DEFAULT_TOP_K, NORMALIZATIONS
from regard.config.models import ACTIVATIONS, NORM_PLACEMENTS, check_head_size
from regard.config.settings import MAX_SIZE, Config, knob
from regard.errors import ConfigError

NORMS = ("layer", "rms", "rms_plus_one")


@dataclass(frozen=True, kw_only=True)
class BiasConfig(Config):
    """Which layers of a block have a bias."""

    qkv: bool = knob(True, "Bias of the query, key and value projections.")
    output: bool = knob(True, "Bias of the output projection of attention.")
    feed_forward: bool = knob(True, "Biases of the feed-forward layer.")
    norm: bool = knob(True, "Bias of layer norms; RMS norms have none.")

    @classmethod
    def uniform(cls, has_bias: bool) -> Self:
        """A bias everywhere, or nowhere.

        >>> BiasConfig.uniform(False).to_dict()
        {'qkv': False, 'output': False, 'feed_forward': False, 'norm': False}
        """
        return cls(qkv=has_bias, output=has_bias, feed_forward=has_bias, norm=has_bias)


@dataclass(frozen=True, kw_only=True)
class BlockConfig(Config):
    """Settings that all blocks of a stack share.

    >>> llama = BlockConfig(
    ...     hidden_size=64, num_heads=8, num_kv_heads=2, feed_forward_size=172, activation="silu", gated=True,
    ...     norm="rms", bias=BiasConfig.uniform(False),
    ... )
    >>> llama.key_dim, llama.value_dim, llama.kv_heads, llama.qkv_widths
    (8, 8, 2, (64, 16, 16))
    """

    hidden_size: int = knob(256, "Hidden size.", low=1, high=MAX_SIZE)
    num_heads: int = knob(4, "Attention heads.", low=1)
    num_kv_heads: int = knob(
        0, "Heads of keys and values, each shared by several queries; 0: num_heads.", low=0, high=MAX_SIZE
    )
    head_size: int = knob(0, "Size of a query or key (d_k); 0: hidden_size / num_heads.", low=0, high=MAX_SIZE)
    value_size: int = knob(0, "Size of a value (d_v); 0: as head_size.", low=0, high=MAX_SIZE)
    feed_forward_size: int = knob(512, "Inner size of the feed-forward layer.", low=1, high=MAX_SIZE)
    activation: str = knob("relu", "Activation of the feed-forward layer.", choices=ACTIVATIONS)
    gated: bool = knob(False, "Gated feed-forward layer (GeGLU, SwiGLU by the activation).")
    bias: BiasConfig = knob(BiasConfig, "Which layers have a bias.")
    norm: str = knob("layer", "Layer norm, RMS norm, or RMS norm with weight 1 + w (Gemma).", choices=NORMS)
    norm_placement: str = knob("pre", "Norms before or after sublayers, both, or none.", choices=NORM_PLACEMENTS)
    norm_eps: float = knob(1e-5, "Epsilon of the norms.", low=0)
    first_attention_norm: bool = knob(True, "Whether the first block normalises the input of its attention.")
    residual: bool = knob(True, "Residual connection around each sublayer.")
    qk_norm: bool = knob(False, "Norm of each head's queries and keys.")
    attention_scale: float = knob(0.0, "Factor of the attention scores (T5: 1); 0: 1 / √head_size.", low=0)
    attention_bias_scale: float = knob(1.0, "Factor of what positions add to the attention scores.", low=0)
    attention_normalization: str = knob("softmax", "From scores to attention weights.", choices=NORMALIZATIONS)
    attention_top_k: int = knob(
        DEFAULT_TOP_K, "Keys that a query attends to with top-k attention.", low=1, high=MAX_SIZE
    )
    cross_attention: bool = knob(False, "Cross-attention to a source after self-attention.")
    dropout: float = knob(0.0, "Dropout after each sublayer.", low=0, high=0.95)
    attention_dropout: float = knob(0.0, "Dropout on attention weights.", low=0, high=0.95)
    activation_dropout: float = knob(0.0, "Dropout inside the feed-forward layer.", low=0, high=0.95)

    def check(self) -> None:
        if not self.head_size:
            check_head_size("num_heads", self.hidden_size, self.num_heads)
        if self.num_heads % self.kv_heads:
            divisors = [str(count) for count in range(1, self.num_heads + 1) if self.num_heads % count == 0]
            raise ConfigError(
                f"num_kv_heads ({self.num_kv_heads}) must divide num_heads ({self.num_heads}): "
                f"try {', '.join(divisors)}"
            )

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def key_dim(self) -> int:
        """Size of a query or key, d_k."""
        return self.head_size or self.hidden_size // self.num_heads

    @property
    def value_dim(self) -> int:
        """Size of a value, d_v."""
        return self.value_size or self.key_dim

    @property
    def query_width(self) -> int:
        """Width of all queries of a token."""
        return self.num_heads * self.key_dim

    @property
    def qkv_widths(self) -> tuple[int, int, int]:
        """Rows of query, key and value in their fused matrix."""
        return self.query_width, *self.key_value_widths

    @property
    def key_value_widths(self) -> tuple[int, int]:
        """Rows of key and value in their fused matrix."""
        return self.kv_heads * self.key_dim, self.kv_heads * self.value_dim

    @property
    def output_width(self) -> int:
        """Width of the merged heads."""
        return self.num_heads * self.value_dim

    @property
    def has_input_norms(self) -> bool:
        """Whether sublayers read normalised hidden states; the stack then ends with a norm."""
        return self.norm_placement in ("pre", "both")
