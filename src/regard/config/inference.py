"""How a model's answers are searched for.

How texts are continued by a causal language model.

How texts become vectors.

What is put into a record of an answer: how attention is kept, how many candidates, the numbers inside a head.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.settings import Config, knob
from regard.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DecodingConfig(Config):
    """How translations are searched for."""

    beam: int = knob(5, "hypotheses kept at each step; 1: greedy", low=1, high=64)
    nbest: int = knob(1, "translations given for each sentence", low=1, high=64)
    length_penalty: float = knob(1.0, "scores are divided by length to this power", low=0, high=4)
    coverage_penalty: float = knob(0.0, "weight of the penalty for source words never looked at", low=0, high=10)
    sample: bool = knob(False, "draw tokens instead of searching for the best")
    temperature: float = knob(1.0, "sharpness when sampling: below 1 sharper, above 1 flatter", low=0.01, high=100)
    top_k: int = knob(0, "sample among this many best tokens; 0: all", low=0)
    top_p: float = knob(1.0, "sample among the tokens holding this share of probability", low=0.0, high=1)
    seed: int = knob(1, "seed of sampling", low=0)
    diversity_penalty: float = knob(
        0.0, "penalty for tokens that earlier alternatives used at the same step", low=0, high=100
    )
    no_repeat_ngram: int = knob(0, "forbid repeated runs of this many tokens; 0: allow", low=0)
    max_length_a: float = knob(2.0, "longest translation: source tokens times this …", low=0.1, high=50)
    max_length_b: int = knob(20, "… plus this many", low=0)
    whole_vocabulary: bool = knob(False, "choose among all words, also where the folder has a shortlist")
    batch_tokens: int = knob(2048, "source tokens searched together", low=1)
    batch_size: int = knob(64, "most sentences searched together", low=1)

    def check(self) -> None:
        if self.nbest > self.beam and not self.sample:
            raise ConfigError(f"nbest ({self.nbest}) must not exceed beam ({self.beam}): raise --beam")
        if self.diversity_penalty and self.sample:
            raise ConfigError("diverse is for beam search: drop --sample or --diversity-penalty")


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(Config):
    """How texts are continued."""

    max_new_tokens: int = knob(200, "most tokens written", low=1)
    samples: int = knob(1, "continuations of each text, drawn with different luck", low=1, high=1000)
    greedy: bool = knob(False, "always take the likeliest token instead of drawing")
    temperature: float = knob(1.0, "sharpness: below 1 sharper, above 1 flatter", low=0.01, high=100)
    top_k: int = knob(0, "draw among this many best tokens; 0: all", low=0)
    top_p: float = knob(1.0, "draw among the tokens holding this share of probability", low=0.0, high=1)
    no_repeat_ngram: int = knob(0, "forbid repeated runs of this many tokens; 0: allow", low=0)
    seed: int = knob(1, "seed of drawing", low=0)

    def check(self) -> None:
        if self.greedy and self.samples > 1:
            raise ConfigError(f"the likeliest tokens make one text, not {self.samples}: drop --greedy or --samples")


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(Config):
    """How one vector is made of a text; what is not said here, the model's folder says."""

    pooling: str = knob(
        "folder",
        "mean or max of all tokens, the first token (cls), or as the model's folder says",
        choices=("folder", "mean", "cls", "max"),
    )
    normalize: str = knob(
        "folder", "vectors of length 1, or as the model's folder says", choices=("folder", "yes", "no")
    )
    long_texts: str = knob(
        "cut",
        "texts that are too long: cut them and say so, take the mean of windows, or refuse",
        choices=("cut", "windows", "refuse"),
    )
    max_length: int = knob(0, "tokens of a text that are read, special ones counted; 0: as the folder says", low=0)
    batch_tokens: int = knob(1024, "tokens computed together", low=1)


MAX_STORED_BYTES = 64 * 2**20  # bytes of weights in half precision beyond which queries and keys are kept instead


@dataclass(frozen=True, kw_only=True)
class RecordConfig(Config):
    """What is put into a record."""

    store: str = knob(
        "auto",
        "weights, or queries and keys that weights are computed from when looked at; auto: by size",
        choices=("auto", "weights", "queries"),
    )
    store_qkv: str = knob("", "heads whose numbers are kept for the Maths view: encoder.3.self:2, or best")
    top_k: int = knob(10, "likeliest tokens kept of each step", low=0, high=1000)
    no_beams: bool = knob(False, "leave out the tree of beams, for which a text is searched once more")

    def storage(self, size: int) -> str:
        """Return what a trace keeps of so many weights.

        >>> RecordConfig().storage(1000), RecordConfig().storage(10**9), RecordConfig(store="weights").storage(10**9)
        ('weights', 'queries', 'weights')
        """
        if self.store != "auto":
            return self.store
        return "queries" if 2 * size > MAX_STORED_BYTES else "weights"
