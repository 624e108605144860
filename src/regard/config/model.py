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
