"""What heads do over a corpus: means of a few numbers, added up batch by batch, so that no matrix is ever kept.

All numbers are means over the rows that looked. Entropy is in bits; distance in tokens, from where a row stands (in its
own text) or from where it would stand if both texts ran at the same pace; the others are shares of a row's attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]
Numbers = NDArray[np.int64]
DOMINANT_SHARE = 0.5  # of its attention, from which on a head is named after what it looks at
MIN_REPEATED_SHARE = 0.1  # of the rows, that must have the same token elsewhere for a head to be named after that
BROAD = 0.75  # of the entropy that equal weights have
SMALLEST = 1e-12
PADDING_ID = -1  # where a row of a batch has ended


@dataclass(frozen=True)
class AttentionBatch:
    """Who looks at what in a batch: token numbers, -1 where a row has ended."""

    queries: Numbers  # [B, Q]
    columns: Numbers  # [B, K]
    special: NDArray[np.bool_]  # [B, K]
    is_self: bool  # whether rows and columns are the same text


@dataclass(frozen=True)
class HeadStatistics:
    """What one head does, in numbers."""

    entropy: float  # bits
    distance: float  # tokens
    special: float  # share on tokens that are no part of the text
    previous: float  # share on the token before the own one
    itself: float  # share on the own token
    next: float  # share on the token after the own one
    same: float  # share on tokens elsewhere that are the same, of rows that have such
    diagonal: float  # share within one token of the own place, or of the same pace
    largest: float  # the largest weight of a row
    broad: float  # share of the entropy that equal weights have
    twins: float  # share of the rows that have the same token elsewhere

    def describe(self, is_self: bool) -> str:
        """Return what the head mostly does, in two words; more than half of its attention must agree.

        >>> HeadStatistics(0.3, 1.0, 0.1, 0.8, 0, 0, 0, 0.8, 0.9, 0.1, 0).describe(is_self=True)
        'previous'
        """
        if self.special > DOMINANT_SHARE:
            return "special marks"
        if is_self:
            for name in ("previous", "itself", "next"):
                if getattr(self, name) > DOMINANT_SHARE:
                    return name
        if self.same > DOMINANT_SHARE and self.twins > MIN_REPEATED_SHARE:
            return "same word"
        if not is_self and self.diagonal > DOMINANT_SHARE:
            return "diagonal"
        if self.largest > DOMINANT_SHARE:
            return "sharp"
        return "broad" if self.broad > BROAD else "mixed"


class HeadAccumulator:
    """The sums of one site's heads."""

    def __init__(self, heads: int) -> None:
        self.sums = np.zeros((len(fields(HeadStatistics)), heads))
        self.counts = np.zeros(len(fields(HeadStatistics)))

    def add(self, weights: Weights, looking: AttentionBatch) -> None:
        """Take the weights [B, H, Q, K] of a batch in.

        >>> sums = HeadAccumulator(1)
        >>> text = np.array([[5, 6, 5]])
        >>> sums.add(np.eye(3, k=-1, dtype=np.float32)[None, None], AttentionBatch(text, text, text < 0, is_self=True))
        >>> found, = sums.statistics()
        >>> round(found.previous, 2), round(found.entropy, 2), round(found.distance, 2), found.same
        (1.0, 0.0, 0.67, 0.0)
        """
        real = looking.queries != PADDING_ID  # [B, Q]
        queries, keys = np.arange(weights.shape[2])[:, None], np.arange(weights.shape[3])[None]
        away = keys - queries * np.ones_like(keys)  # [Q, K]
        there = (looking.columns != PADDING_ID)[:, None, :]  # [B, 1, K]
        pace = away[None] * 1.0 if looking.is_self else _pace(looking, queries, keys)
        twins = (looking.queries[:, :, None] == looking.columns[:, None, :]) & (away != 0 if looking.is_self else True)
        twins &= ~looking.special[:, None, :]
        logs = np.log2(np.maximum(weights, SMALLEST))
        entropy = -(weights * logs).sum(axis=3)  # [B, H, Q]
        visible = np.maximum((weights > 0).sum(axis=3), 2)
        shares = {  # which rows count, [B, Q], and what counts of their attention, [B, Q, K]
            "distance": (real, np.abs(pace)),
            "special": (real, np.broadcast_to(looking.special[:, None, :], (len(real), *away.shape))),
            "previous": (real & (queries[None, :, 0] > 0), (away == -1)[None]),
            "itself": (real, (away == 0)[None]),
            "next": (real & ((away == 1)[None] & there).any(axis=2), (away == 1)[None]),
            "same": (real & twins.any(axis=2), twins),
            "diagonal": (real, np.abs(pace) <= 1),
        }
        for place, field in enumerate(fields(HeadStatistics)):
            if field.name in shares:
                rows, what = shares[field.name]
                what = what * rows[:, :, None] * np.float32(1)
                self._add(place, np.einsum("bhqk,bqk->h", weights, what, optimize=True), rows)
        repeated = np.broadcast_to(twins.any(axis=2)[:, None], entropy.shape)
        each = {"entropy": entropy, "largest": weights.max(axis=3), "broad": entropy / np.log2(visible)}
        each["twins"] = repeated
        for place, field in enumerate(fields(HeadStatistics)):
            if field.name in each:
                self._add(place, (each[field.name] * real[:, None]).sum(axis=(0, 2), dtype=np.float64), real)

    def _add(self, place: int, sums: NDArray[np.floating], rows: NDArray[np.bool_]) -> None:
        self.sums[place] += sums
        self.counts[place] += rows.sum()

    def statistics(self) -> list[HeadStatistics]:
        """Return what each head does."""
        means = self.sums / np.maximum(self.counts, 1)[:, None]
        return [HeadStatistics(*(float(value) for value in column)) for column in means.T]


def _pace(looking: AttentionBatch, queries: Numbers, keys: Numbers) -> NDArray[np.float64]:
    """Return how far columns are from where rows would stand if both texts ran at the same pace, [B, Q, K]."""
    heights = (looking.queries != PADDING_ID).sum(axis=1)[:, None, None]
    widths = (looking.columns != PADDING_ID).sum(axis=1)[:, None, None]
    made: NDArray[np.float64] = keys[None] - queries[None] * (np.maximum(widths - 1, 0) / np.maximum(heights - 1, 1))
    return made


class CorpusStatistics:
    """The sums of all sites: as much memory as there are heads, however long the corpus is."""

    def __init__(self, sites: Mapping[str, int]) -> None:
        self.sums = {site: HeadAccumulator(heads) for site, heads in sites.items()}
        self.own = dict.fromkeys(sites, False)

    def add(self, site: str, weights: Weights, looking: AttentionBatch) -> None:
        """Take the weights of a site [B, H, Q, K] in."""
        self.own[site] = looking.is_self
        self.sums[site].add(weights, looking)

    def heads(self) -> dict[tuple[str, int], tuple[HeadStatistics, str]]:
        """Return the numbers and the plain name of each head."""
        return {
            (site, head): (numbers, numbers.describe(self.own[site]))
            for site, sums in self.sums.items()
            for head, numbers in enumerate(sums.statistics())
        }


def pad_ids(rows: Sequence[NDArray[np.integer]]) -> Numbers:
    """Return rows of token numbers as one array, -1 where a row has ended.

    >>> pad_ids([np.array([5, 6]), np.array([7])]).tolist()
    [[5, 6], [7, -1]]
    """
    made = np.full((len(rows), max(map(len, rows), default=0)), PADDING_ID, dtype=np.int64)
    for number, row in enumerate(rows):
        made[number, : len(row)] = row
    return made
