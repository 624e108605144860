"""Rules: which candidates of each hypothesis are allowed, as pure functions of the tokens generated so far.

A rule takes the history and the candidates and returns candidates. `extra_candidates` is how many candidates of a row
it may remove, so that the search requests no more of them from the model than it needs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from regard.errors import ConfigError
from regard.packed_tokens import Candidates, Ids
from regard.text.sentences import find_phrase, is_word_character

MAX_COMPARISONS = 16  # up to this many token ids, comparing with each is faster than np.isin
REPLACEMENT_CHARACTER = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


@dataclass(frozen=True)
class History:
    """The tokens of each hypothesis so far."""

    tokens: Ids  # [R, T], without the start token
    sentence: NDArray[np.int64]  # [R], index of the source text
    lane: NDArray[np.int64]  # [R], index of the lane among those of the source text

    @property
    def length(self) -> int:
        """Number of tokens of each hypothesis."""
        return int(self.tokens.shape[1])


class Rule(Protocol):
    """Forbids, forces or samples tokens."""

    def extra_candidates(self, length: int) -> int | None:
        """Candidates that it needs beyond the beam, for hypotheses of this length; None: the whole vocabulary."""
        ...

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        """Restrict the candidates; a forbidden one has log-probability −∞."""
        ...


def mask_candidates(candidates: Candidates, forbidden: NDArray[np.bool_]) -> Candidates:
    """Set the log-probabilities of forbidden candidates, [R, k], to −∞.

    >>> masked = mask_candidates(Candidates(np.array([[4, 5]]), np.array([[-1.0, -2.0]])), np.array([[True, False]]))
    >>> masked.logprobs.tolist()
    [[-inf, -2.0]]
    """
    if not forbidden.any():
        return candidates
    return Candidates(candidates.ids, np.where(forbidden, -np.inf, candidates.logprobs))


def _is_any_of(ids: Ids, token_ids: Sequence[int]) -> NDArray[np.bool_]:
    """Whether each id is one of `token_ids`; there are usually few of them."""
    if len(token_ids) > MAX_COMPARISONS:
        return np.isin(ids, token_ids)
    is_match = np.zeros(ids.shape, dtype=np.bool_)
    for token_id in token_ids:
        is_match |= ids == token_id
    return is_match


class ForbidSequences:
    """Forbids sequences of token ids; a sequence of one is a forbidden token.

    >>> history = History(np.array([[7, 8], [7, 9]]), np.zeros(2, int), np.zeros(2, int))
    >>> candidates = Candidates(np.array([[5, 6], [5, 6]]), np.array([[-1.0, -2.0], [-1.0, -2.0]]))
    >>> ForbidSequences([[8, 5], [6]])(history, candidates).logprobs.tolist()
    [[-inf, -inf], [-1.0, -inf]]
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        if not all(sequences):
            raise ConfigError("a token sequence to forbid must not be empty")
        self.sequences = [tuple(sequence) for sequence in sequences]
        self._single_tokens = sorted({sequence[0] for sequence in self.sequences if len(sequence) == 1})

    def extra_candidates(self, length: int) -> int:
        return len({sequence[-1] for sequence in self.sequences})

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        forbidden = _is_any_of(candidates.ids, self._single_tokens)
        for sequence in self.sequences:
            if 1 < len(sequence) <= history.length + 1:
                tail = history.tokens[:, history.length + 1 - len(sequence) :]
                is_prefix = (tail == sequence[:-1]).all(axis=1)
                forbidden |= is_prefix[:, None] & (candidates.ids == sequence[-1])
        return mask_candidates(candidates, forbidden)


class NoRepeatNgram:
    """Forbids repeating an n-gram of the hypothesis; the end-of-sequence token is no part of an n-gram.

    >>> history = History(np.array([[5, 6, 5]]), np.zeros(1, int), np.zeros(1, int))
    >>> NoRepeatNgram(2)(history, Candidates(np.array([[6, 7]]), np.array([[-1.0, -2.0]]))).logprobs.tolist()
    [[-inf, -2.0]]
    """

    def __init__(self, n: int) -> None:
        self.n = n

    def extra_candidates(self, length: int) -> int:
        return max(0, length - self.n + 1)

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        num_ngrams = self.extra_candidates(history.length)
        if not num_ngrams:
            return candidates
        ngrams = np.lib.stride_tricks.sliding_window_view(history.tokens, self.n, axis=1)  # [R, ngrams, n]
        tail = history.tokens[:, history.length - self.n + 1 :]  # [R, n - 1]
        is_prefix = (ngrams[:, :, :-1] == tail[:, None, :]).all(axis=2)  # [R, ngrams]
        completions = np.where(is_prefix, ngrams[:, :, -1], -1)
        return mask_candidates(candidates, (candidates.ids[:, :, None] == completions[:, None, :]).any(axis=2))


class ForbidText:
    """Forbids words or phrases, whatever their segmentation into tokens.

    A token is forbidden when the text would then contain a forbidden phrase as whole words, or end in one. A longer
    word that begins with a forbidden one ("Hundehütte" with "Hund" forbidden) can therefore only be generated through
    tokens that do not stop at the forbidden one.
    """

    def __init__(
        self, phrases: Sequence[str], token_texts: Sequence[str], decode: Callable[[Sequence[int]], str]
    ) -> None:
        """Take the phrases, the text that each token of the vocabulary adds, and the tokenizer's decoder."""
        self.phrases = list(phrases)
        self.decode = decode
        self._may_complete_phrase = np.array(
            [any(may_complete(text, phrase) for phrase in phrases) for text in token_texts]
        )

    def extra_candidates(self, length: int) -> int:
        return int(self._may_complete_phrase.sum())

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        forbidden = self._may_complete_phrase[candidates.ids] & (candidates.logprobs > -np.inf)
        for row, column in np.argwhere(forbidden):
            text = self.decode([*history.tokens[row].tolist(), int(candidates.ids[row, column])])
            forbidden[row, column] = any(find_phrase(text, phrase) >= 0 for phrase in self.phrases)
        return mask_candidates(candidates, forbidden)


def may_complete(text: str, phrase: str) -> bool:
    """Whether a token with this text could complete the phrase, whatever precedes it.

    >>> [may_complete(text, "der Hund") for text in (" Hund", "nd", "nd.", "nde", "\\ufffd")]
    [True, True, True, False, True]
    """
    if phrase in text or REPLACEMENT_CHARACTER in text:  # part of a character: only the decoded text can decide
        return True
    return any(
        text.startswith(phrase[start:]) and not is_word_character(text[len(phrase) - start : len(phrase) - start + 1])
        for start in range(len(phrase))
    )


class Sample:
    """Samples one token per row: a pure function of seed, source text, lane and position.

    Log-probabilities are divided by the temperature; then the `top_k` most likely tokens are kept, then the fewest
    whose probability reaches `top_p` (nucleus sampling, Holtzman et al. 2020). The log-probability of the sampled token
    is that of the model, without temperature.
    """

    def __init__(self, keys: Sequence[bytes], *, temperature: float, top_k: int, top_p: float, seed: int) -> None:
        """Take a key per sentence; sentences with the same key have the same samples."""
        self.keys = list(keys)
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.seed = seed

    def extra_candidates(self, length: int) -> int | None:
        return self.top_k or None

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        # in the order of token ids, so that the order of nearly equal logprobs does not matter
        by_id = np.argsort(candidates.ids, axis=1, kind="stable")
        ids = np.take_along_axis(candidates.ids, by_id, axis=1)
        logprobs = np.take_along_axis(candidates.logprobs, by_id, axis=1)
        cumulative = np.cumsum(self._sampling_weights(logprobs), axis=1)  # [R, k]
        uniforms = np.array(
            [
                _uniform(self.seed, self.keys[sentence], lane, history.length)
                for sentence, lane in zip(history.sentence.tolist(), history.lane.tolist(), strict=True)
            ]
        )
        columns = (cumulative <= (uniforms * cumulative[:, -1])[:, None]).sum(axis=1)[:, None]  # inverse transform
        return Candidates(np.take_along_axis(ids, columns, axis=1), np.take_along_axis(logprobs, columns, axis=1))

    def _sampling_weights(self, logprobs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Unnormalised probability of each token, [R, k]; zero for those that `top_k` and `top_p` remove."""
        scaled = logprobs.astype(np.float64) / self.temperature
        if 0 < self.top_k < scaled.shape[1]:
            threshold = -np.partition(-scaled, self.top_k - 1, axis=1)[:, self.top_k - 1 : self.top_k]
            scaled = np.where(scaled >= threshold, scaled, -np.inf)
        weights: NDArray[np.float64] = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        if self.top_p < 1:
            order = np.argsort(-weights, axis=1, kind="stable")
            sorted_weights = np.take_along_axis(weights, order, axis=1)
            preceding = np.cumsum(sorted_weights, axis=1) - sorted_weights
            nucleus = self.top_p * sorted_weights.sum(axis=1, keepdims=True)
            sorted_weights[(preceding > 0) & (preceding >= nucleus)] = 0
            np.put_along_axis(weights, order, sorted_weights, axis=1)
        return weights


def _uniform(seed: int, key: bytes, lane: int, position: int) -> float:
    """Uniform number in [0, 1): a hash of the arguments."""
    digest = hashlib.blake2b(key, digest_size=8, key=struct.pack("<QQQ", seed % 2**64, lane, position)).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
