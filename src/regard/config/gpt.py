"""The causal language model."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob
from regard.config.stack import ACTIVATIONS, StackConfig, check_heads


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
        "how places are told apart; rotary ones learn fastest; others read them as gpt_neox, learned ones as gpt2",
        choices=("learned", "rotary", "sinusoidal"),
    )
    places: int = knob(256, "longest row the model takes; while it writes, it forgets what came earlier", low=2)
    tied: bool = knob(True, "the output projection is the table of words")
    epsilon: float = knob(1e-5, "added to the variance in layer norm", low=0)
    dropout: float = knob(0.1, "dropout on embeddings and on each part's result", low=0, high=0.95)
    attention_dropout: float = knob(0.0, "dropout on attention weights", low=0, high=0.95)
    end: int = knob(1, "token number between two documents, which ends a text; -1: none", low=-1)

    def check(self) -> None:
        check_heads("stack.heads", self.width, self.stack.heads, rotary=self.positions == "rotary")

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
