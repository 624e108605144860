"""The causal language model: what it is made of, and how texts are generated with it."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob
from regard.config.model import ACTIVATIONS, StackConfig
from regard.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class GptConfig(Config):
    """A Transformer that tells each next token from those before it (Radford et al. 2018, 2019)."""

    family: str = knob("gpt", "which model this is", choices=("gpt",))
    vocabulary: int = knob(0, "token numbers; 0: from the tokenizer", low=0)
    width: int = knob(256, "width of the hidden states", low=2)
    stack: StackConfig = knob(StackConfig, "the stack of blocks")
    activation: str = knob("gelu_tanh", "activation of the feed-forward part", choices=ACTIVATIONS)
    positions: str = knob(
        "rotary",
        "how places are told apart; rotary ones learn fastest, learned ones make a folder that others read as gpt2",
        choices=("learned", "rotary", "sinusoidal"),
    )
    places: int = knob(256, "longest row the model takes; while it writes, it forgets what came earlier", low=2)
    tied: bool = knob(True, "the output projection is the table of words")
    epsilon: float = knob(1e-5, "added to the variance in layer norm", low=0)
    dropout: float = knob(0.1, "dropout on embeddings and on each part's result", low=0, high=0.95)
    attention_dropout: float = knob(0.0, "dropout on attention weights", low=0, high=0.95)
    end: int = knob(1, "token number between two documents, which ends a text; -1: none", low=-1)

    def check(self) -> None:
        if self.width % self.stack.heads:
            fits = [str(heads) for heads in range(1, self.width + 1) if self.width % heads == 0][:8]
            raise ConfigError(
                f"stack.heads ({self.stack.heads}) must divide width ({self.width}): try {', '.join(fits)}"
            )
        if self.positions == "rotary" and (self.width // self.stack.heads) % 2:
            raise ConfigError(f"rotary positions need an even head width, not {self.width // self.stack.heads}")

    def summary(self) -> str:
        """Say what it is in a few words."""
        stack = self.stack
        return (
            f"causal Transformer, {stack.layers} layers of {self.width}, {stack.heads} heads, feed-forward "
            f"{stack.feedforward}, {self.positions} positions, rows of {self.places}"
        )


def _gpt(layers: int, width: int, heads: int) -> GptConfig:
    return GptConfig(width=width, stack=StackConfig(layers=layers, heads=heads, feedforward=4 * width))


GPT_PRESETS: dict[str, GptConfig] = {
    "micro": _gpt(3, 128, 4),
    "tiny": _gpt(4, 192, 4),
    "small": _gpt(4, 256, 4),
    "medium": _gpt(6, 384, 6),
    "base": _gpt(12, 768, 12),
}


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(Config):
    """How texts are continued."""

    most: int = knob(200, "most tokens written", low=1)
    count: int = knob(1, "continuations of each text, drawn with different luck", low=1, high=1000)
    greedy: bool = knob(False, "always take the likeliest token instead of drawing")
    temperature: float = knob(1.0, "sharpness: below 1 sharper, above 1 flatter", low=0.01, high=100)
    top_k: int = knob(0, "draw among this many best tokens; 0: all", low=0)
    top_p: float = knob(1.0, "draw among the tokens holding this share of probability", low=0.0, high=1)
    no_repeat: int = knob(0, "forbid repeated runs of this many tokens; 0: allow", low=0)
    seed: int = knob(1, "seed of drawing", low=0)

    def check(self) -> None:
        if self.greedy and self.count > 1:
            raise ConfigError(f"the likeliest tokens make one text, not {self.count}: drop --greedy or --count")
