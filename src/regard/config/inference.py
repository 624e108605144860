"""Inference: decoding of translations, text generation, text embeddings, and what a record stores."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.settings import AUTO, Config, knob
from regard.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DecodingConfig(Config):
    """How translations are decoded."""

    beam: int = knob(5, "Beam size; 1 is greedy search.", low=1, high=64)
    nbest: int = knob(1, "Translations per sentence; at most --beam, unless sampled.", low=1, high=64)
    length_penalty: float = knob(1.0, "Exponent of the length by which scores are divided.", low=0, high=4)
    coverage_penalty: float = knob(0.0, "Weight of the coverage penalty (Wu et al. 2016).", low=0, high=10)
    sample: bool = knob(False, "Sample instead of searching.")
    temperature: float = knob(1.0, "Sampling temperature: below 1 is sharper, above 1 is flatter.", low=0.01, high=100)
    top_k: int = knob(0, "Sample from the k most likely tokens; 0 samples from all.", low=0)
    top_p: float = knob(
        1.0, "Nucleus sampling: sample from the smallest set of tokens with this probability mass.", low=0.0, high=1
    )
    seed: int = knob(1, "Seed of sampling.", low=0)
    diversity_penalty: float = knob(
        0.0,
        "Diverse beam search with --nbest groups: subtracted from a token's log-probability for each use at the same "
        "step by the groups before; 0: plain beam search.",
        low=0,
        high=100,
    )
    no_repeat_ngram: int = knob(0, "Never repeat n-grams of this size; 0 allows repetition.", low=0)
    max_length_a: float = knob(2.0, "Longest translation: a × source tokens + b; this is a.", low=0.1, high=50)
    max_length_b: int = knob(20, "Longest translation: a × source tokens + b; this is b.", low=0)
    shortlist: bool = knob(
        True,
        "Search only the shortlist of output tokens, where the model has one.",
        negated="Disable the lexical shortlist: search the whole vocabulary.",
    )
    batch_tokens: int = knob(2048, "Source tokens per batch.", low=1)
    batch_size: int = knob(64, "Maximum number of sentences per batch.", low=1)

    def check(self) -> None:
        if self.nbest > self.beam and not self.sample:
            raise ConfigError(f"nbest ({self.nbest}) must not exceed beam ({self.beam}): raise --beam")
        if self.diversity_penalty and self.sample:
            raise ConfigError(
                f"diversity_penalty ({self.diversity_penalty:g}) is for beam search: drop --sample or "
                "--diversity-penalty"
            )


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(Config):
    """How a causal language model continues texts."""

    max_new_tokens: int = knob(200, "Maximum number of tokens to generate.", low=1)
    samples: int = knob(1, "Continuations per prompt, sampled independently.", low=1, high=1000)
    greedy: bool = knob(False, "Greedy search instead of sampling.")
    temperature: float = knob(1.0, "Sampling temperature: below 1 is sharper, above 1 is flatter.", low=0.01, high=100)
    top_k: int = knob(0, "Sample from the k most likely tokens; 0 samples from all.", low=0)
    top_p: float = knob(
        1.0, "Nucleus sampling: sample from the smallest set of tokens with this probability mass.", low=0.0, high=1
    )
    no_repeat_ngram: int = knob(0, "Never repeat n-grams of this size; 0 allows repetition.", low=0)
    seed: int = knob(1, "Seed of sampling.", low=0)

    def check(self) -> None:
        if self.greedy and self.samples > 1:
            raise ConfigError(f"greedy search has one continuation, not {self.samples}: drop --greedy or --samples")


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(Config):
    """How a text becomes one vector. Settings of the model's folder are the defaults."""

    pooling: str = knob(
        "auto",
        "Pooling: mean or max over all tokens, or the first token (cls); auto: as the model folder specifies.",
        choices=("auto", "mean", "cls", "max"),
    )
    normalize: str = knob(
        "auto",
        "Normalise embeddings to length 1; auto: as the model folder specifies.",
        choices=("auto", "yes", "no"),
    )
    long_texts: str = knob(
        "truncate",
        "Texts over the maximum length: truncate with a warning, average over windows, or stop with an error.",
        choices=("truncate", "window", "error"),
    )
    max_length: int = knob(
        AUTO, "Maximum tokens of a text, special tokens included; auto: as the model folder specifies.", low=1
    )
    batch_tokens: int = knob(1024, "Tokens per batch.", low=1)


MAX_STORED_BYTES = 64 * 2**20  # of attention weights at 2 bytes each; above it, queries and keys are stored instead


@dataclass(frozen=True, kw_only=True)
class RecordConfig(Config):
    """What a record stores."""

    store: str = knob(
        "auto",
        "What the record holds of attention: weights, or queries and keys to recompute them from; auto: by size.",
        choices=("auto", "weights", "queries"),
    )
    store_qkv: str = knob(
        "",
        "Heads whose queries, keys and values the record holds, too, for the view math; best: the "
        "alignment head of a translation model, otherwise head 0 of the last layer.",
        metavar="HEAD,…|best",
    )
    candidates: int = knob(10, "Most likely tokens or tags stored for each step.", low=0, high=1000)
    beam_tree: bool = knob(
        True,
        "Store the tree of the beam search, which needs a second search.",
        negated="Leave out the tree of the beam search, which needs a second search.",
    )

    def storage(self, size: int) -> str:
        """Choose what a trace stores of `size` attention weights.

        >>> RecordConfig().storage(1000), RecordConfig().storage(10**9), RecordConfig(store="weights").storage(10**9)
        ('weights', 'queries', 'weights')
        """
        if self.store != "auto":
            return self.store
        return "queries" if 2 * size > MAX_STORED_BYTES else "weights"
