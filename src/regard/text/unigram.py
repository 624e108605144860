"""Train a Unigram model by expectation–maximisation (Kudo 2018), deterministically.

The trainer of the `tokenizers` library sums in the order of a hash table, which changes from run to run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

MAX_SUBWORD_LENGTH = 16  # characters
KEPT_FRACTION = 0.75  # of the subwords, in a round of pruning
MAX_WORDS = 200_000  # distinct words to train on, the most frequent ones
SEEDS_PER_SUBWORD = 8  # initial candidates for each subword of the vocabulary
EM_STEPS = 2  # in a round
MIN_EXPECTED_COUNT = 0.5  # of a subword that is not pruned

FloatArray = NDArray[np.float64]


def train_unigram(words: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """Train at most `size` subwords with log-probabilities, most probable first; single characters are never pruned.

    >>> subwords = train_unigram({"▁low": 9, "▁lower": 5, "▁lowest": 3}, 12)
    >>> subwords[0][0], len(subwords)
    ('▁low', 11)
    """
    by_count = sorted(words.items(), key=lambda item: (-item[1], item[0]))[:MAX_WORDS]
    subwords, logprobs = _initial_subwords(by_count, size)
    lattice = _Lattice(by_count, subwords)
    is_character = np.array([len(subword) == 1 for subword in subwords])
    while True:
        for _ in range(EM_STEPS):
            counts = lattice.expected_counts(logprobs)
            logprobs = _logprobs_of_counts(counts)
        is_kept = is_character | (counts > MIN_EXPECTED_COUNT)
        excess = int(is_kept.sum()) - size
        if excess > 0:
            losses = np.where(is_character, np.inf, _pruning_losses(subwords, logprobs, counts))
            losses[~is_kept] = -1.0
            num_kept = max(size, int(KEPT_FRACTION * is_kept.sum()), int(is_character.sum()))
            is_kept = np.zeros_like(is_kept)
            is_kept[np.argsort(-losses, kind="stable")[:num_kept]] = True
        subwords = [subword for subword, keep in zip(subwords, is_kept, strict=True) if keep]
        lattice.prune(is_kept)
        logprobs = logprobs[is_kept]
        is_character = is_character[is_kept]
        if excess <= 0:
            break
    order = sorted(range(len(subwords)), key=lambda index: (-logprobs[index], subwords[index]))[:size]
    return [(subwords[index], round(float(logprobs[index]), 6)) for index in order]


def _initial_subwords(words: Sequence[tuple[str, int]], size: int) -> tuple[list[str], FloatArray]:
    """All characters and the substrings that cover most text, with initial log-probabilities."""
    counts: Counter[str] = Counter()
    for word, count in words:
        for start, stop in _iter_substrings(len(word)):
            counts[word[start:stop]] += count
    characters = [subword for subword in counts if len(subword) == 1]
    characters.sort(key=lambda subword: (-counts[subword], subword))
    substrings = [subword for subword, count in counts.items() if len(subword) > 1 and count > 1]
    substrings.sort(key=lambda subword: (-counts[subword] * len(subword), subword))
    subwords = characters + substrings[: SEEDS_PER_SUBWORD * size]
    return subwords, _logprobs_of_counts(np.array([counts[subword] for subword in subwords], dtype=np.float64))


def _iter_substrings(length: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of all substrings of a word that may be subwords."""
    for start in range(length):
        for stop in range(start + 1, min(start + MAX_SUBWORD_LENGTH, length) + 1):
            yield start, stop


def _logprobs_of_counts(counts: FloatArray) -> FloatArray:
    """Log-probabilities from counts, with a floor for subwords that never occur."""
    counts = np.maximum(counts, 1e-3)
    return np.asarray(np.log(counts) - math.log(counts.sum()))


class _Lattice:
    """All segmentations of all words; words of one length are processed together."""

    def __init__(self, words: Sequence[tuple[str, int]], subwords: Sequence[str]) -> None:
        index_of = {subword: index for index, subword in enumerate(subwords)}
        self.num_subwords = len(subwords)
        # By word length: counts [W], and subword indices [W, start, length - 1], −1 where there is no subword.
        self.groups: list[tuple[FloatArray, NDArray[np.int32]]] = []
        by_length: dict[int, list[tuple[str, int]]] = {}
        for word, count in words:
            by_length.setdefault(len(word), []).append((word, count))
        for length, group in sorted(by_length.items()):
            table = np.full((len(group), length, min(length, MAX_SUBWORD_LENGTH)), -1, dtype=np.int32)
            for row, (word, _) in enumerate(group):
                for start, stop in _iter_substrings(length):
                    table[row, start, stop - start - 1] = index_of.get(word[start:stop], -1)
            counts = np.array([count for _, count in group], dtype=np.float64)
            self.groups.append((counts, table))

    def prune(self, is_kept: NDArray[np.bool_]) -> None:
        """Remove subwords and renumber the others."""
        new_indices = np.where(is_kept, np.cumsum(is_kept) - 1, -1)
        new_indices = np.append(new_indices, -1).astype(np.int32)  # index −1 stays
        self.groups = [(counts, new_indices[table]) for counts, table in self.groups]
        self.num_subwords = int(is_kept.sum())

    def expected_counts(self, logprobs: FloatArray) -> FloatArray:
        """Expected count of each subword over all segmentations (forward–backward)."""
        padded_logprobs = np.append(logprobs, -np.inf)  # of index −1
        totals = np.zeros(self.num_subwords + 1)
        for counts, table in self.groups:
            edge_logprobs = padded_logprobs[table]  # [W, start, length - 1]
            num_words, length, _ = table.shape
            forward = np.full((num_words, length + 1), -np.inf)
            backward = np.full((num_words, length + 1), -np.inf)
            forward[:, 0] = 0.0
            backward[:, length] = 0.0
            for start, stop in _iter_substrings(length):
                path = forward[:, start] + edge_logprobs[:, start, stop - start - 1]
                forward[:, stop] = np.logaddexp(forward[:, stop], path)
            for start in reversed(range(length)):
                for size in range(1, min(MAX_SUBWORD_LENGTH, length - start) + 1):
                    path = edge_logprobs[:, start, size - 1] + backward[:, start + size]
                    backward[:, start] = np.logaddexp(backward[:, start], path)
            for start, stop in _iter_substrings(length):
                edge = stop - start - 1
                posterior = forward[:, start] + edge_logprobs[:, start, edge] + backward[:, stop] - forward[:, length]
                indices = table[:, start, edge] % (self.num_subwords + 1)  # −1 → the last entry
                totals += np.bincount(indices, counts * np.exp(posterior), self.num_subwords + 1)
        return totals[:-1]


def _pruning_losses(subwords: Sequence[str], logprobs: FloatArray, counts: FloatArray) -> FloatArray:
    """Log-likelihood that is lost without each subword: its best segmentation into others replaces it."""
    logprob_of = dict(zip(subwords, logprobs.tolist(), strict=True))
    losses = np.zeros(len(subwords))
    for index, subword in enumerate(subwords):
        best = [0.0] + [-math.inf] * len(subword)  # logprob of the best segmentation up to each character
        for stop in range(1, len(subword) + 1):
            for start in range(max(0, stop - MAX_SUBWORD_LENGTH), stop):
                logprob = logprob_of.get(subword[start:stop])
                if logprob is not None and stop - start < len(subword):
                    best[stop] = max(best[stop], best[start] + logprob)
        losses[index] = counts[index] * (logprobs[index] - best[-1])
    return losses
