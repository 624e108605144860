"""How a model's answers are searched for."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob
from regard.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DecodingConfig(Config):
    """How translations are searched for."""

    beam: int = knob(5, "hypotheses kept at each step; 1: greedy", low=1, high=64)
    nbest: int = knob(1, "translations given for each sentence", low=1, high=64)
    length_power: float = knob(1.0, "scores are divided by length to this power", low=0, high=4)
    coverage: float = knob(0.0, "weight of the penalty for source words never looked at", low=0, high=10)
    sample: bool = knob(False, "draw tokens instead of searching for the best")
    temperature: float = knob(1.0, "sharpness when sampling: below 1 sharper, above 1 flatter", low=0.01, high=100)
    top_k: int = knob(0, "sample among this many best tokens; 0: all", low=0)
    top_p: float = knob(1.0, "sample among the tokens holding this share of probability", low=0.0, high=1)
    seed: int = knob(1, "seed of sampling", low=0)
    diverse: float = knob(0.0, "penalty for tokens that earlier alternatives used at the same step", low=0, high=100)
    no_repeat: int = knob(0, "forbid repeated runs of this many tokens; 0: allow", low=0)
    max_ratio: float = knob(2.0, "longest translation: source tokens times this …", low=0.1, high=50)
    max_extra: int = knob(20, "… plus this many", low=0)
    whole_vocabulary: bool = knob(False, "choose among all words, also where the folder has a shortlist")
    batch_tokens: int = knob(2048, "source tokens searched together", low=1)
    batch_size: int = knob(64, "most sentences searched together", low=1)

    def check(self) -> None:
        if self.nbest > self.beam and not self.sample:
            raise ConfigError(f"nbest ({self.nbest}) must not exceed beam ({self.beam}): raise --beam")
        if self.diverse and self.sample:
            raise ConfigError("diverse is for beam search: drop --sample or --diverse")
