"""Choose the pieces of a Unigram model by expectation–maximisation (Kudo 2018), the same ones every time.

The library has a trainer too, but its sums follow the order of a hash table, which changes from run to run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST = 16  # characters of a piece
KEPT = 0.75  # share of the pieces that a round keeps
MOST_WORDS = 200_000  # distinct words learned from, the most frequent ones

Floats = NDArray[np.float64]


def train_unigram(words: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """Return at most `size` pieces with their log-probabilities, likeliest first; characters come before all else.

    >>> pieces = train_unigram({"▁low": 9, "▁lower": 5, "▁lowest": 3}, 12)
    >>> pieces[0][0], len(pieces)
    ('▁low', 11)
    """
    ordered = sorted(words.items(), key=lambda item: (-item[1], item[0]))[:MOST_WORDS]
    pieces, scores = _seeds(ordered, size)
    lattice = _Lattice(ordered, pieces)
    single = np.array([len(piece) == 1 for piece in pieces])
    while True:
        for _ in range(2):
            counts = lattice.expected(scores)
            scores = _scored(counts)
        kept = single | (counts > 0.5)
        excess = int(kept.sum()) - size
        if excess > 0:
            losses = np.where(single, np.inf, _losses(pieces, scores, counts))
            losses[~kept] = -1.0
            target = max(size, int(KEPT * kept.sum()), int(single.sum()))
            kept = np.zeros_like(kept)
            kept[np.argsort(-losses, kind="stable")[:target]] = True
        pieces = [piece for piece, keep in zip(pieces, kept, strict=True) if keep]
        lattice.keep(kept)
        scores, single = scores[kept], single[kept]
        if excess <= 0:
            break
    order = sorted(range(len(pieces)), key=lambda number: (-scores[number], pieces[number]))[:size]
    return [(pieces[number], round(float(scores[number]), 6)) for number in order]


def _seeds(words: Sequence[tuple[str, int]], size: int) -> tuple[list[str], Floats]:
    """Return all characters and the substrings that cover most text, with first scores."""
    counts: Counter[str] = Counter()
    for word, count in words:
        for start in range(len(word)):
            for stop in range(start + 1, min(start + LONGEST, len(word)) + 1):
                counts[word[start:stop]] += count
    single = sorted((piece for piece in counts if len(piece) == 1), key=lambda piece: (-counts[piece], piece))
    longer = (piece for piece, count in counts.items() if len(piece) > 1 and count > 1)
    chosen = sorted(longer, key=lambda piece: (-counts[piece] * len(piece), piece))[: 8 * size]
    pieces = single + chosen
    return pieces, _scored(np.array([counts[piece] for piece in pieces], dtype=np.float64))


def _scored(counts: Floats) -> Floats:
    """Return log-probabilities from counts; what never occurs stays possible."""
    counts = np.maximum(counts, 1e-3)
    return np.asarray(np.log(counts) - math.log(counts.sum()))


class _Lattice:
    """Every way to cut every word into pieces: words of one length together."""

    def __init__(self, words: Sequence[tuple[str, int]], pieces: Sequence[str]) -> None:
        numbers = {piece: number for number, piece in enumerate(pieces)}
        self.pieces = len(pieces)
        self.groups: list[tuple[Floats, NDArray[np.int32]]] = []  # counts [W], numbers [W, start, length], −1: none
        by_length: dict[int, list[tuple[str, int]]] = {}
        for word, count in words:
            by_length.setdefault(len(word), []).append((word, count))
        for length, group in sorted(by_length.items()):
            table = np.full((len(group), length, min(length, LONGEST)), -1, dtype=np.int32)
            for row, (word, _) in enumerate(group):
                for start in range(length):
                    for stop in range(start + 1, min(start + LONGEST, length) + 1):
                        table[row, start, stop - start - 1] = numbers.get(word[start:stop], -1)
            self.groups.append((np.array([count for _, count in group], dtype=np.float64), table))

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Renumber after pieces were taken out."""
        renumbered = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1).astype(np.int32)
        self.groups = [(counts, renumbered[table]) for counts, table in self.groups]
        self.pieces = int(kept.sum())

    def expected(self, scores: Floats) -> Floats:
        """Return how often each piece is expected, over all ways to cut (forward–backward)."""
        padded = np.append(scores, -np.inf)
        total = np.zeros(self.pieces + 1)
        for counts, table in self.groups:
            values = padded[table]  # [W, start, length]
            length = table.shape[1]
            forward, backward = np.full((2, len(table), length + 1), -np.inf)
            forward[:, 0] = backward[:, length] = 0.0
            for start in range(length):
                for size in range(1, min(LONGEST, length - start) + 1):
                    stop = start + size
                    forward[:, stop] = np.logaddexp(forward[:, stop], forward[:, start] + values[:, start, size - 1])
            for start in reversed(range(length)):
                for size in range(1, min(LONGEST, length - start) + 1):
                    stop = start + size
                    ahead = values[:, start, size - 1] + backward[:, stop]
                    backward[:, start] = np.logaddexp(backward[:, start], ahead)
            for start in range(length):
                for size in range(1, min(LONGEST, length - start) + 1):
                    share = (
                        forward[:, start] + values[:, start, size - 1] + backward[:, start + size] - forward[:, length]
                    )
                    total += np.bincount(
                        table[:, start, size - 1] % (self.pieces + 1), counts * np.exp(share), self.pieces + 1
                    )
        return total[:-1]


def _losses(pieces: Sequence[str], scores: Floats, counts: Floats) -> Floats:
    """Return how much log-likelihood would go with each piece: it would be cut into the best smaller ones."""
    known = dict(zip(pieces, scores.tolist(), strict=True))
    losses = np.zeros(len(pieces))
    for number, piece in enumerate(pieces):
        best = [0.0] + [-math.inf] * len(piece)
        for stop in range(1, len(piece) + 1):
            for start in range(max(0, stop - LONGEST), stop):
                if stop - start < len(piece) and (score := known.get(piece[start:stop])) is not None:
                    best[stop] = max(best[stop], best[start] + score)
        losses[number] = counts[number] * (scores[number] - best[-1])
    return losses
