"""Self-attention over single sentences, with the characters of each token: what `regard heads --links` reads.

An encoder, a causal language model or the encoder of a translation model reads sentences as its pipeline does, with its
special tokens, in torch or in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.attention.trace import trace
from regard.data.batching import length_sorted_batches
from regard.interpret.subjects import ATTENTION_BATCH_TOKENS
from regard.packed_tokens import Tokens
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.translation import TranslationPipeline

Span = tuple[int, int]
SiteWeights = dict[str, NDArray[np.float32]]  # site → weights [heads, queries, keys]


@dataclass(frozen=True)
class SentenceTokens:
    """Token ids of a sentence, and the characters of each; special tokens have none."""

    ids: list[int]
    spans: list[Span]

    def overlapping(self, span: Span) -> NDArray[np.int64]:
        """Indices of the tokens that share a character with the span.

        >>> SentenceTokens([5, 6, 7], [(0, 0), (0, 3), (3, 6)]).overlapping((2, 4)).tolist()
        [1, 2]
        """
        start, stop = span
        return np.array(
            [index for index, (first, last) in enumerate(self.spans) if max(first, start) < min(last, stop)],
            dtype=np.int64,
        )


@dataclass(frozen=True)
class SentenceAttention:
    """A model that reads sentences, and the sites of its self-attention over them."""

    sites: dict[str, int]  # the first layer first, with their number of heads
    is_causal: bool  # whether a token attends to earlier ones only
    max_length: int  # tokens of a sentence
    backend_name: str
    encode: Callable[[str], SentenceTokens]
    run: Callable[[Tokens], object]  # the model, while a trace is open

    def weights(self, sentences: Sequence[SentenceTokens]) -> Iterator[tuple[int, SiteWeights]]:
        """Yield the index and the attention weights of each sentence, in batches of similar length."""
        lengths = np.array([[len(sentence.ids)] for sentence in sentences], dtype=np.int64).reshape(-1, 1)
        for indices in length_sorted_batches(lengths, max_tokens=ATTENTION_BATCH_TOKENS):
            with trace(",".join(self.sites), full_precision=True) as captured:
                self.run(Tokens.from_rows([sentences[index].ids for index in indices]))
            site_weights = {site: captured[site].weights for site in self.sites}
            for row, index in enumerate(indices):
                length = len(sentences[index].ids)
                yield int(index), {site: values[row, :, :length, :length] for site, values in site_weights.items()}


def encoder_attention(pipeline: EmbeddingPipeline) -> SentenceAttention:
    """Self-attention of an encoder, whatever its head."""
    model = pipeline.model

    def encode(sentence: str) -> SentenceTokens:
        encoded = pipeline.special_tokens.encode(sentence)
        return SentenceTokens(encoded.ids, encoded.spans)

    return SentenceAttention(
        {site: heads for site, heads in model.attention_sites().items() if site.endswith(".self")},
        is_causal=model.config.causal,
        max_length=pipeline.max_positions,
        backend_name=model.backend_name,
        encode=encode,
        run=model.encode,
    )


def causal_attention(pipeline: GenerationPipeline) -> SentenceAttention:
    """Self-attention of a causal language model."""
    generator = pipeline.model.generator()

    def encode(sentence: str) -> SentenceTokens:
        encoding = pipeline.tokenizer.encode(sentence)
        return SentenceTokens(encoding.ids, encoding.spans)

    return SentenceAttention(
        generator.attention_sites(),
        is_causal=True,
        max_length=pipeline.model.config.max_positions,
        backend_name=generator.backend_name,
        encode=encode,
        run=generator.read,
    )


def translator_attention(pipeline: TranslationPipeline) -> SentenceAttention:
    """Self-attention of the encoder of a translation model."""
    (generator,) = pipeline.models_of()
    tokenizer = pipeline.source

    def encode(sentence: str) -> SentenceTokens:
        encoding = tokenizer.encode(sentence)
        return SentenceTokens([*encoding.ids, tokenizer.eos_id], spans=[*encoding.spans, (0, 0)])

    def run(source: Tokens) -> None:
        # the decoder reads its first token alone
        generator.target_logprobs(source, Tokens.from_rows([[] for _ in range(len(source))]))

    return SentenceAttention(
        {site: heads for site, heads in generator.attention_sites().items() if site.startswith("encoder.")},
        is_causal=False,
        max_length=pipeline.max_source_length,
        backend_name=generator.backend_name,
        encode=encode,
        run=run,
    )
