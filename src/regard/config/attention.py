"""How attention scores become weights: settings that Transformers, recurrent decoders and pooling share."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.settings import MAX_SIZE, Config, knob
from regard.errors import ConfigError

NORMALIZATIONS = ("softmax", "sparsemax", "top-k", "uniform")
DEFAULT_TOP_K = 8


@dataclass(frozen=True, kw_only=True)
class AttentionWeightsConfig(Config):
    """Temperature and normalisation of attention scores."""

    attention_temperature: float = knob(
        1.0,
        "Divisor of the attention scores, biases by distance included; below 1 attention is sharper.",
        low=0.001,
        high=1000,
    )
    attention_normalization: str = knob(
        "softmax",
        "From scores to attention weights: softmax, sparsemax (Martins and Astudillo 2016), softmax of the top-k "
        "scores, or equal weights of all keys.",
        choices=NORMALIZATIONS,
    )
    attention_top_k: int = knob(
        DEFAULT_TOP_K, "Keys that a query attends to with top-k attention.", low=1, high=MAX_SIZE
    )

    def check(self) -> None:
        if self.attention_normalization == "uniform" and self.attention_temperature != 1:
            raise ConfigError(
                f"attention_temperature ({self.attention_temperature:g}) means nothing to equal weights: set it to 1, "
                "or attention_normalization to another value than uniform"
            )
        if self.attention_normalization != "top-k" and self.attention_top_k != DEFAULT_TOP_K:
            raise ConfigError(
                f"attention_top_k ({self.attention_top_k}) is for top-k attention: set attention_normalization to "
                f"top-k, not {self.attention_normalization}"
            )

    @property
    def has_plain_softmax(self) -> bool:
        """Whether weights are the softmax of the scores, as published."""
        return self.attention_normalization == "softmax" and self.attention_temperature == 1

    def changed_parts(self) -> list[str]:
        """Parts that are changed, as `setting value`.

        >>> AttentionWeightsConfig(attention_normalization="top-k", attention_top_k=3).changed_parts()
        ['attention_normalization top-k', 'attention_top_k 3']
        """
        parts = []
        if self.attention_temperature != 1:
            parts.append(f"attention_temperature {self.attention_temperature:g}")
        if self.attention_normalization != "softmax":
            parts.append(f"attention_normalization {self.attention_normalization}")
        if self.attention_normalization == "top-k":
            parts.append(f"attention_top_k {self.attention_top_k}")
        return parts
