"""The Transformer that reads one text and writes another."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob
from regard.config.stack import ACTIVATIONS, StackConfig, check_heads
from regard.errors import ConfigError

POSITIONS = ("sinusoidal", "learned", "rotary", "none")


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
            check_heads(f"{name}.heads", self.width, stack.heads, rotary=self.positions == "rotary")
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
