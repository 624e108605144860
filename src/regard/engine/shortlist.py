"""The words that a translation is likely to be written with: few of the vocabulary, told by the source's words.

Learned from a parallel text as the translation table of Brown et al. 1993 (their first model): each source word keeps
the target words that it explains best. Those that are common everywhere are always among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError
from regard.tokens import Ids, Tokens

COMMON = 1000  # words that every text may be written with
BEST = 400  # of a source word
LEAST = 1e-6  # chance of a word that is kept
PASSES = 5  # over the parallel text
MOST = 20_000_000  # pairs of words in the same pair of sentences that are learned from


@dataclass(frozen=True)
class Shortlist:
    """For each source word the target words that it is translated by, and those of every text.

    >>> words = Shortlist(np.array([0, 1], np.int32), np.array([0, 0, 2, 3], np.int32), np.array([7, 9, 8], np.int32))
    >>> words.token_lists(Tokens.from_rows([[1, 2], [0]]))[0].tolist()
    [0, 1, 7, 8, 9, 0, 1]
    """

    common: Ids  # ascending
    offsets: Ids  # [source words + 1]: where each one's words begin
    words: Ids

    def token_lists(self, source: Tokens) -> tuple[Ids, Ids]:
        """Return the words of each text, ascending, laid end to end, and where each text's begin."""
        made: list[Ids] = []
        ends = [0]
        for row in source:
            mine = [self.words[self.offsets[one] : self.offsets[one + 1]] for one in np.unique(row)]
            made.append(np.unique(np.concatenate([self.common, *mine])))
            ends.append(ends[-1] + len(made[-1]))
        return np.ascontiguousarray(np.concatenate(made), np.int32), np.array(ends, np.int32)

    def find_fault(self, source_size: int, target_size: int, always: Sequence[int]) -> str:
        """Return what is wrong with it for vocabularies of these sizes; nothing if it is sound."""
        if len(self.offsets) != source_size + 1 or self.offsets[0] != 0 or self.offsets[-1] != len(self.words):
            return "its words are not those of the source's vocabulary"
        if (np.diff(self.offsets) < 0).any() or (np.diff(self.common) <= 0).any():
            return "its words are not in order"
        if not all(((one >= 0) & (one < target_size)).all() for one in (self.words, self.common)):
            return "it has words beyond the target's vocabulary"
        missing = set(always) - set(self.common.tolist())
        return f"it lacks the words {sorted(missing)}" if missing else ""


def train_shortlist(
    source: Sequence[Ids],
    target: Sequence[Ids],
    source_size: int,
    target_size: int,
    always: Sequence[int],
    is_shared: bool,
) -> Shortlist:
    """Return the shortlist of a parallel text, of words with numbers below `sources` and `targets`.

    `always` are words of every text, such as the end; `alike` says that both sides have the same words, so that one may
    be left as it is.
    """
    if not any(len(one) and len(other) for one, other in zip(source, target, strict=True)):
        raise UsageError("a shortlist is learned from pairs of sentences: there is no word in those given")
    of, to, place = _beside(source, target)
    keys, pair = np.unique(of * target_size + to, return_inverse=True)
    words = keys // target_size
    chance = np.ones(len(keys))
    for _ in range(PASSES):
        share = chance[pair]
        share /= np.bincount(place, share)[place]
        counted = np.bincount(pair, share)
        chance = counted / np.bincount(words, counted)[words]
    kept = np.flatnonzero(chance >= LEAST)
    kept = kept[np.lexsort((-chance[kept], words[kept]))]
    first = np.searchsorted(words[kept], words[kept])  # where the words of the same source word begin
    kept = kept[np.arange(len(kept)) - first < BEST]
    pairs = np.stack([words[kept], keys[kept] % target_size])
    if is_shared:
        same = np.arange(min(source_size, target_size))
        pairs = np.unique(np.concatenate([pairs, [same, same]], axis=1), axis=1)
    counts = np.bincount(np.concatenate(list(target)), minlength=target_size)
    often = np.argsort(-counts, kind="stable")[:COMMON]
    offsets = np.searchsorted(pairs[0], np.arange(source_size + 1))
    common = np.union1d(often[counts[often] > 0], always)
    return Shortlist(common.astype(np.int32), offsets.astype(np.int32), pairs[1].astype(np.int32))


def _beside(source: Sequence[Ids], target: Sequence[Ids]) -> tuple[NDArray[np.int64], ...]:
    """Return every source word beside every target word of its sentence, and which target word of the text it is."""
    sizes = [len(one) * len(other) for one, other in zip(source, target, strict=True)]
    every = max(1, -(-sum(sizes) // MOST))  # of so many pairs of sentences one is used
    of, to, place = [], [], []
    read = 0
    for one, other in zip(source[::every], target[::every], strict=True):
        of.append(np.tile(np.asarray(one, np.int64), len(other)))
        to.append(np.repeat(np.asarray(other, np.int64), len(one)))
        place.append(np.repeat(np.arange(read, read + len(other)), len(one)))
        read += len(other)
    return np.concatenate(of), np.concatenate(to), np.concatenate(place)
