"""Shortlists: the target tokens that a translation may use, by the tokens of its source.

A lexicon is trained on parallel text as the translation table of IBM Model 1 (Brown et al., 1993): each source token
keeps the target tokens that it explains best. The most frequent target tokens are always allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError
from regard.packed_tokens import Ids, Tokens

MAX_FREQUENT = 1000  # frequent target tokens that are always allowed
MAX_TRANSLATIONS = 400  # of a source token
MIN_PROBABILITY = 1e-6  # of a translation that is kept
NUM_ITERATIONS = 5  # of expectation maximisation
MAX_TOKEN_PAIRS = 20_000_000  # in the same pair of sentences; beyond it, sentences are sampled


@dataclass(frozen=True)
class Shortlist:
    """Target tokens of each source token, and those that are always allowed.

    >>> always_allowed = np.array([0, 1], np.int32)
    >>> offsets = np.array([0, 0, 2, 3], np.int32)
    >>> shortlist = Shortlist(always_allowed, offsets, lexicon=np.array([7, 9, 8], np.int32))
    >>> shortlist.token_lists(Tokens.from_rows([[1, 2], [0]]))[0].tolist()
    [0, 1, 7, 8, 9, 0, 1]
    """

    always_allowed: Ids  # ascending
    offsets: Ids  # [source tokens + 1], into the lexicon
    lexicon: Ids  # target tokens of all source tokens, end to end

    def token_lists(self, source: Tokens) -> tuple[Ids, Ids]:
        """Allowed target ids of each text, ascending and packed end to end, and their offsets."""
        allowed: list[Ids] = []
        offsets = [0]
        for row in source:
            translations = [
                self.lexicon[self.offsets[token_id] : self.offsets[token_id + 1]] for token_id in np.unique(row)
            ]
            allowed.append(np.unique(np.concatenate([self.always_allowed, *translations])))
            offsets.append(offsets[-1] + len(allowed[-1]))
        return np.ascontiguousarray(np.concatenate(allowed), np.int32), np.array(offsets, np.int32)

    def find_fault(self, source_size: int, target_size: int, required_ids: Sequence[int]) -> str:
        """Describe what is wrong with it for vocabularies of these sizes; empty if it is valid."""
        if len(self.offsets) != source_size + 1 or self.offsets[0] != 0 or self.offsets[-1] != len(self.lexicon):
            return "its offsets do not match the source vocabulary"
        # compared, not subtracted: the difference of extreme offsets is beyond 32 bits
        is_ascending = (self.offsets[1:] >= self.offsets[:-1]).all()
        if not is_ascending or (self.always_allowed[1:] <= self.always_allowed[:-1]).any():
            return "its tokens are not in order"
        for ids in (self.lexicon, self.always_allowed):
            if (ids < 0).any() or (ids >= target_size).any():
                return "it has token ids beyond the target vocabulary"
        missing = set(required_ids) - set(self.always_allowed.tolist())
        return f"it lacks the token ids {sorted(missing)}" if missing else ""


def train_shortlist(
    source: Sequence[Ids],
    target: Sequence[Ids],
    source_size: int,
    target_size: int,
    required_ids: Sequence[int],
    is_shared: bool,
) -> Shortlist:
    """Train the shortlist of a parallel text, for vocabularies of these sizes.

    `always` are target tokens of every text, such as the end. With a shared vocabulary (`is_shared`), each source
    token may also be copied.
    """
    if not any(len(sentence) and len(reference) for sentence, reference in zip(source, target, strict=True)):
        raise UsageError("a shortlist is trained on pairs of sentences: these contain no tokens")
    pair_ids, probabilities = _train_lexicon(source, target, target_size)
    source_ids = pair_ids // target_size
    selected = _select_translations(source_ids, probabilities)
    pairs = np.stack([source_ids[selected], pair_ids[selected] % target_size])
    if is_shared:
        copies = np.arange(min(source_size, target_size))
        pairs = np.unique(np.concatenate([pairs, [copies, copies]], axis=1), axis=1)
    counts = np.bincount(np.concatenate(list(target)), minlength=target_size)
    most_frequent = np.argsort(-counts, kind="stable")[:MAX_FREQUENT]
    always_allowed = np.union1d(most_frequent[counts[most_frequent] > 0], required_ids)
    offsets = np.searchsorted(pairs[0], np.arange(source_size + 1))
    return Shortlist(always_allowed.astype(np.int32), offsets.astype(np.int32), lexicon=pairs[1].astype(np.int32))


def _train_lexicon(
    source: Sequence[Ids], target: Sequence[Ids], target_size: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Translation probability of each pair of tokens, whose id is `source id · target_size + target id`."""
    source_ids, target_ids, occurrences = _pair_tokens(source, target)
    pair_ids, pair_indices = np.unique(source_ids * target_size + target_ids, return_inverse=True)
    source_of_pair = pair_ids // target_size
    probabilities = np.ones(len(pair_ids))
    for _ in range(NUM_ITERATIONS):
        # Expectation: the source tokens of a sentence share each target token by their probabilities.
        shares = probabilities[pair_indices]
        shares /= np.bincount(occurrences, shares)[occurrences]
        # Maximisation: normalise the expected counts of each source token.
        counts = np.bincount(pair_indices, shares)
        probabilities = counts / np.bincount(source_of_pair, counts)[source_of_pair]
    return pair_ids, probabilities


def _select_translations(source_ids: NDArray[np.int64], probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of the most probable pairs of each source token, ordered by source token and probability."""
    selected = np.flatnonzero(probabilities >= MIN_PROBABILITY)
    selected = selected[np.lexsort((-probabilities[selected], source_ids[selected]))]
    starts = np.searchsorted(source_ids[selected], source_ids[selected])  # first pair of the same source token
    ranks = np.arange(len(selected)) - starts
    return selected[ranks < MAX_TRANSLATIONS]


def _pair_tokens(source: Sequence[Ids], target: Sequence[Ids]) -> tuple[NDArray[np.int64], ...]:
    """Every source token with every target token of its sentence: source id, target id, index of the target token."""
    num_pairs = sum(len(sentence) * len(reference) for sentence, reference in zip(source, target, strict=True))
    stride = max(1, -(-num_pairs // MAX_TOKEN_PAIRS))
    source_ids: list[NDArray[np.int64]] = []
    target_ids: list[NDArray[np.int64]] = []
    occurrences: list[NDArray[np.int64]] = []
    num_targets = 0
    for sentence, reference in zip(source[::stride], target[::stride], strict=True):
        source_ids.append(np.tile(np.asarray(sentence, np.int64), len(reference)))
        target_ids.append(np.repeat(np.asarray(reference, np.int64), len(sentence)))
        occurrences.append(np.repeat(np.arange(num_targets, num_targets + len(reference)), len(sentence)))
        num_targets += len(reference)
    return np.concatenate(source_ids), np.concatenate(target_ids), np.concatenate(occurrences)
