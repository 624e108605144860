"""Search and sampling over any model that predicts one token after another.

    beam_search       the most probable texts: beam search, greedy with a beam of 1
    sample            random texts: temperature, top-k, nucleus
    Generator         what a model implements: `start` and `step`, and a state whose rows can be selected
    PrefixGenerator   a generator from a function of source and prefix, without a cache
    Candidates        next tokens with their log-probabilities: what `step` returns
    Hypothesis        one generated text: what a search returns

These names are stable; the modules they come from are not. Models may compute with torch, NumPy or anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.config.inference import DecodingConfig
from regard.decoding.generator import Generator, S
from regard.decoding.search import Hypothesis
from regard.decoding.search import search as _search
from regard.errors import UsageError
from regard.packed_tokens import Candidates, Ids, Tokens

__all__ = ["Candidates", "Generator", "Hypothesis", "PrefixGenerator", "beam_search", "sample"]

NextLogits = Callable[[list[list[int]], Ids], ArrayLike]  # sources of R rows and prefixes [R, T] → logits [R, V]


def beam_search(
    generator: Generator[S],
    sources: Sequence[Sequence[int]],
    *,
    max_length: int,
    beam: int = 5,
    nbest: int = 1,
    length_penalty: float = 1.0,
    diversity_penalty: float = 0.0,
    no_repeat_ngram: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Search the `nbest` best texts of each source, best first; a beam of 1 is greedy search.

    Texts have at most `max_length` tokens. Scores are log-probabilities divided by length to the power of
    `length_penalty`. `prefixes` are token ids that the texts begin with. A text does not depend on the other sources.

    >>> def count_up(sources, prefixes):  # after t comes t + 1; 0 ends, 1 begins
    ...     return -np.abs(np.arange(6) - (prefixes[:, -1:] + 1) % 6)
    >>> generator = PrefixGenerator(count_up, vocab_size=6, bos_id=1, eos_id=0)
    >>> [hypothesis.ids for hypothesis in beam_search(generator, [[1]], max_length=9)[0]]
    [[2, 3, 4, 5]]
    """
    config = DecodingConfig(
        beam=beam,
        nbest=nbest,
        length_penalty=length_penalty,
        diversity_penalty=diversity_penalty,
        no_repeat_ngram=no_repeat_ngram,
    )
    return _generate(generator, sources, config, max_length, prefixes)


def sample(
    generator: Generator[S],
    sources: Sequence[Sequence[int]],
    *,
    max_length: int,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    no_repeat_ngram: int = 0,
    seed: int = 1,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Sample texts for each source; they depend on the source and the seed alone.

    Tokens are sampled from the `top_k` most likely ones (0: all) or from the smallest set with the probability mass
    `top_p`, at this temperature.

    >>> def uniform(sources, prefixes):
    ...     return np.zeros((len(prefixes), 8))
    >>> generator = PrefixGenerator(uniform, vocab_size=8, bos_id=1, eos_id=0)
    >>> first, second = (sample(generator, [[1]], max_length=5, samples=3, seed=7) for _ in range(2))
    >>> len(first[0]), first == second
    (3, True)
    """
    config = DecodingConfig(
        sample=True,
        nbest=samples,
        length_penalty=0.0,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        no_repeat_ngram=no_repeat_ngram,
        seed=seed,
    )
    return _generate(generator, sources, config, max_length, prefixes)


def _generate(
    generator: Generator[S],
    sources: Sequence[Sequence[int]],
    config: DecodingConfig,
    max_length: int,
    prefixes: Sequence[Sequence[int]] | None,
) -> list[list[Hypothesis]]:
    if max_length < 1:
        raise UsageError(f"max_length must be at least 1, not {max_length}")
    for row, source in enumerate(sources):
        if np.ndim(source) != 1:
            raise UsageError(f"source {row} must be a sequence of token ids, not {source!r}: pass a list of lists")
    for row, prefix in enumerate(prefixes or []):
        outside = [token for token in prefix if not 0 <= token < generator.vocab_size]
        if outside:
            raise UsageError(f"prefix {row} has the token id {outside[0]}; ids go from 0 to {generator.vocab_size - 1}")
    tokens = Tokens.from_rows(sources)
    max_lengths = [max_length] * len(tokens)
    return _search(generator, tokens, config, max_lengths=max_lengths, prefixes=prefixes)


@dataclass(frozen=True)
class PrefixState:
    """Source and tokens so far of each row."""

    sources: list[list[int]]
    prefixes: Ids  # [R, T]

    def select(self, rows: NDArray[np.int64]) -> PrefixState:
        """State of these rows in this order."""
        return PrefixState([self.sources[row] for row in rows.tolist()], self.prefixes[rows])


class PrefixGenerator:
    """A generator from a function of source and prefix: no state, no cache; every step reads the whole prefix.

    `next_logits(sources, prefixes)` gets a list of R sources and the tokens so far, [R, T] with `bos_id` first, and
    returns logits or log-probabilities of the next token, [R, V]: an array or a tensor.

    >>> def repeat(sources, prefixes):
    ...     return np.eye(4)[prefixes[:, -1]]
    >>> generator = PrefixGenerator(repeat, vocab_size=4, bos_id=2, eos_id=0)
    >>> candidates, _ = generator.step(np.array([3], np.int32), generator.start(Tokens.from_rows([[2]]), 5), k=2)
    >>> candidates.ids.tolist()
    [[3, 0]]
    """

    def __init__(
        self, next_logits: NextLogits, *, vocab_size: int, bos_id: int, eos_id: int, pad_id: int | None = None
    ) -> None:
        """`bos_id` and `pad_id` are never generated; without a `pad_id`, `bos_id` alone."""
        self.next_logits = next_logits
        self.vocab_size = vocab_size
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.pad_id = bos_id if pad_id is None else pad_id
        for name in ("bos_id", "eos_id", "pad_id"):
            if not 0 <= getattr(self, name) < vocab_size:
                raise UsageError(f"{name} must be from 0 to {vocab_size - 1}, not {getattr(self, name)}")

    def start(self, source: Tokens, max_length: int) -> PrefixState:
        """State before the first token."""
        return PrefixState([row.tolist() for row in source], np.zeros((len(source), 0), np.int32))

    def step(self, tokens: Ids, state: PrefixState, k: int) -> tuple[Candidates, PrefixState]:
        """Append one token to each row; return the k most likely next tokens, with k = 0 the whole vocabulary."""
        state = replace(state, prefixes=np.concatenate([state.prefixes, tokens[:, None]], axis=1))
        logprobs = self._logprobs(state)
        all_ids = np.broadcast_to(np.arange(self.vocab_size, dtype=np.int32), logprobs.shape)
        if k == 0:
            return Candidates(all_ids, logprobs), state
        ids = np.argsort(-logprobs, axis=1, kind="stable")[:, :k].astype(np.int32)
        top_logprobs = np.take_along_axis(logprobs, ids, axis=1)
        return Candidates(ids, top_logprobs, eos_logprobs=logprobs[:, self.eos_id]), state

    def _logprobs(self, state: PrefixState) -> NDArray[np.float32]:
        """Normalised log-probabilities of the next token, [R, V]."""
        output: Any = self.next_logits(state.sources, state.prefixes)
        if hasattr(output, "detach"):  # a tensor, perhaps with gradients
            output = output.detach().float().cpu().numpy()
        logits = np.asarray(output, dtype=np.float32)
        expected = (len(state.sources), self.vocab_size)
        if logits.shape != expected:
            raise UsageError(
                f"next_logits must return {list(expected)}, rows × vocabulary, but returned {list(logits.shape)}"
            )
        if np.isnan(logits).any() or np.isposinf(logits).any():
            raise UsageError("next_logits returned NaN or +∞: logits are finite, or -∞ for impossible tokens")
        maximum = logits.max(axis=1, keepdims=True)
        if np.isneginf(maximum).any():
            raise UsageError("next_logits returned -∞ for every token of a row: at least one must be possible")
        shifted = logits - maximum
        logprobs: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return logprobs
