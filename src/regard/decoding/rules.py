"""Rules: from the possible next tokens of each row to those that are allowed; pure functions of what was written.

A rule takes the history and the candidates and returns candidates. `reach` says how many candidates it may take away
from a row, so that the search asks the model for no more of them than are needed.
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
from regard.text.sentences import find_phrase, is_word_character
from regard.tokens import Candidates, Ids

FEW = 16  # tokens that are compared one by one


@dataclass(frozen=True)
class History:
    """What was written so far, row by row."""

    tokens: Ids  # [R, T], without the start
    sentence: NDArray[np.int64]  # [R], which source text a row belongs to
    copy: NDArray[np.int64]  # [R], which of its alternatives, where several are written side by side

    @property
    def length(self) -> int:
        """How many tokens each row has."""
        return int(self.tokens.shape[1])


class Rule(Protocol):
    """Forbids, forces or draws tokens."""

    def extra_candidates(self, length: int) -> int | None:
        """Return how many candidates more than usual it needs of each row with this many tokens; None: all."""
        ...

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        """Return what is left of the candidates; what is forbidden has log-probability −∞."""
        ...


def mask_candidates(candidates: Candidates, forbidden: NDArray[np.bool_]) -> Candidates:
    """Return the candidates with some of them, [R, k], made impossible.

    >>> kept = mask_candidates(Candidates(np.array([[4, 5]]), np.array([[-1.0, -2.0]])), np.array([[True, False]]))
    >>> kept.logprobs.tolist()
    [[-inf, -2.0]]
    """
    return (
        Candidates(candidates.ids, np.where(forbidden, -np.inf, candidates.logprobs)) if forbidden.any() else candidates
    )


def _among(ids: Ids, some: Sequence[int]) -> NDArray[np.bool_]:
    """Return where the ids are some of these; for the few that are usual, comparing beats looking up."""
    if len(some) > FEW:
        return np.isin(ids, some)
    found = np.zeros(ids.shape, dtype=np.bool_)
    for one in some:
        found |= ids == one
    return found


class ForbidSequences:
    """Never writes these runs of tokens; a run of one is a forbidden token.

    >>> history = History(np.array([[7, 8], [7, 9]]), np.zeros(2, int), np.zeros(2, int))
    >>> candidates = Candidates(np.array([[5, 6], [5, 6]]), np.array([[-1.0, -2.0], [-1.0, -2.0]]))
    >>> ForbidSequences([[8, 5], [6]])(history, candidates).logprobs.tolist()
    [[-inf, -inf], [-1.0, -inf]]
    """

    def __init__(self, runs: Sequence[Sequence[int]]) -> None:
        if not all(runs):
            raise ConfigError("a run of tokens to forbid must not be empty")
        self.runs = [tuple(run) for run in runs]
        self._single = sorted({run[0] for run in self.runs if len(run) == 1})

    def extra_candidates(self, length: int) -> int:
        return len({run[-1] for run in self.runs})

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        gone = _among(candidates.ids, self._single)
        for run in self.runs:
            if 1 < len(run) <= history.length + 1:
                ready = (history.tokens[:, history.length + 1 - len(run) :] == run[:-1]).all(axis=1)
                gone |= ready[:, None] & (candidates.ids == run[-1])
        return mask_candidates(candidates, gone)


class NoRepeatNgram:
    """Never writes a run of `size` tokens that the text already has; the end is no part of a run.

    >>> history = History(np.array([[5, 6, 5]]), np.zeros(1, int), np.zeros(1, int))
    >>> NoRepeatNgram(2)(history, Candidates(np.array([[6, 7]]), np.array([[-1.0, -2.0]]))).logprobs.tolist()
    [[-inf, -2.0]]
    """

    def __init__(self, size: int) -> None:
        self.n = size

    def extra_candidates(self, length: int) -> int:
        return max(0, length - self.n + 1)

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        runs = self.extra_candidates(history.length)
        if not runs:
            return candidates
        windows = np.lib.stride_tricks.sliding_window_view(history.tokens, self.n, axis=1)  # [R, runs, size]
        tail = history.tokens[:, history.length - self.n + 1 :]  # [R, size - 1]
        same = (windows[:, :, :-1] == tail[:, None, :]).all(axis=2)  # [R, runs]
        closing = np.where(same, windows[:, :, -1], -1)
        return mask_candidates(candidates, (candidates.ids[:, :, None] == closing[:, None, :]).any(axis=2))


class ForbidText:
    """Never writes these words or phrases, however they are cut into tokens.

    A token is refused when the text would then hold a forbidden phrase as whole words, or end in one. So a longer
    word that begins with a forbidden one ("Hundehütte" with "Hund" forbidden) can only be written through tokens
    that do not stop at the forbidden one.
    """

    def __init__(self, phrases: Sequence[str], texts: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        """Take the phrases, the text of every token inside a sentence, and the way from tokens to text."""
        self.phrases, self.decode = list(phrases), decode
        self._suspect = np.array([any(may_complete(text, phrase) for phrase in phrases) for text in texts])

    def extra_candidates(self, length: int) -> int:
        return int(self._suspect.sum())

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        gone = self._suspect[candidates.ids] & (candidates.logprobs > -np.inf)
        for row, column in np.argwhere(gone):
            text = self.decode([*history.tokens[row].tolist(), int(candidates.ids[row, column])])
            gone[row, column] = any(find_phrase(text, phrase) >= 0 for phrase in self.phrases)
        return mask_candidates(candidates, gone)


def may_complete(text: str, phrase: str) -> bool:
    """Whether a token with this text could complete the phrase, whatever stands before it.

    >>> [may_complete(text, "der Hund") for text in (" Hund", "nd", "nd.", "nde", "\\ufffd")]
    [True, True, True, False, True]
    """
    if phrase in text or "\ufffd" in text:  # half a character: only the whole text can tell
        return True
    return any(
        text.startswith(phrase[start:]) and not is_word_character(text[len(phrase) - start : len(phrase) - start + 1])
        for start in range(len(phrase))
    )


class Sample:
    """Leaves one token of each row, drawn by its probability: a function of seed, source, alternative and place only.

    Probabilities are sharpened by the temperature first; then the `top_k` best are kept, then the fewest that hold
    `top_p` of the probability (Holtzman et al. 2020). The log-probability that goes with the token is the model's own.
    """

    def __init__(self, keys: Sequence[bytes], *, temperature: float, top_k: int, top_p: float, seed: int) -> None:
        """Take a key for each sentence: sentences with the same key draw alike."""
        self.keys, self.seed = list(keys), seed
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p

    def extra_candidates(self, length: int) -> int | None:
        return self.top_k or None

    def __call__(self, history: History, candidates: Candidates) -> Candidates:
        by_number = np.argsort(candidates.ids, axis=1, kind="stable")  # so that near ties change nothing
        ids = np.take_along_axis(candidates.ids, by_number, axis=1)
        logp = np.take_along_axis(candidates.logprobs, by_number, axis=1)
        upto = np.cumsum(self._shares(logp), axis=1)  # [R, k]
        chance = np.array(
            [
                _uniform(self.seed, self.keys[sentence], copy, history.length)
                for sentence, copy in zip(history.sentence.tolist(), history.copy.tolist(), strict=True)
            ]
        )
        drawn = (upto <= (chance * upto[:, -1])[:, None]).sum(axis=1)[:, None]
        return Candidates(np.take_along_axis(ids, drawn, axis=1), np.take_along_axis(logp, drawn, axis=1))

    def _shares(self, logp: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the weight of each token in the draw, [R, k], zero for those left out."""
        scaled = logp.astype(np.float64) / self.temperature
        if 0 < self.top_k < scaled.shape[1]:
            least = -np.partition(-scaled, self.top_k - 1, axis=1)[:, self.top_k - 1 : self.top_k]
            scaled = np.where(scaled >= least, scaled, -np.inf)
        shares: NDArray[np.float64] = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        if self.top_p < 1:
            ranked = np.argsort(-shares, axis=1, kind="stable")
            sizes = np.take_along_axis(shares, ranked, axis=1)
            before = np.cumsum(sizes, axis=1) - sizes
            sizes[(before > 0) & (before >= self.top_p * sizes.sum(axis=1, keepdims=True))] = 0
            np.put_along_axis(shares, ranked, sizes, axis=1)
        return shares


def _uniform(seed: int, key: bytes, copy: int, place: int) -> float:
    """Return a number in [0, 1) that depends on nothing else."""
    digest = hashlib.blake2b(key, digest_size=8, key=struct.pack("<QQQ", seed % 2**64, copy, place)).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
