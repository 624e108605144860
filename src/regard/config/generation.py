"""How texts are continued by a causal language model."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob
from regard.errors import ConfigError


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
