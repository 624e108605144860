"""What all Transformers are made of: stacks of attention blocks."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob
from regard.errors import ConfigError

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "quick_gelu")


@dataclass(frozen=True, kw_only=True)
class StackConfig(Config):
    """A stack of attention blocks."""

    layers: int = knob(4, "blocks in the stack", low=1, high=96)
    heads: int = knob(4, "attention heads of a block", low=1, high=256)
    feedforward: int = knob(512, "inner width of the feed-forward part", low=1)


def check_heads(name: str, width: int, heads: int, *, rotary: bool = False) -> None:
    """Raise where a width cannot be dealt out to so many heads; `name` is that of the setting.

    >>> check_heads("stack.heads", 64, 5)
    Traceback (most recent call last):
    regard.errors.ConfigError: stack.heads (5) must divide width (64): try 1, 2, 4, 8, 16, 32, 64
    """
    if width % heads:
        fits = [str(count) for count in range(1, width + 1) if width % count == 0][:8]
        raise ConfigError(f"{name} ({heads}) must divide width ({width}): try {', '.join(fits)}")
    if rotary and (width // heads) % 2:
        raise ConfigError(f"rotary positions need an even head width, not {width // heads}")
