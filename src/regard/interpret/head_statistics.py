"""What heads attend to over a corpus: means accumulated batch by batch, so that no attention matrix is stored.

All statistics are means over query rows. Entropy is in bits. Distance is in tokens: from the query's own position in
self-attention, from the proportional position in the other text otherwise. The others are fractions of a row's
attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from regard.view.record.head_stats import BROAD_ENTROPY, entropy_bits, relative_entropy

Weights = NDArray[np.float32]
Indices = NDArray[np.int64]
DOMINANT_SHARE = 0.5  # of its attention, above which a head is named after what it attends to
MIN_REPEATED_SHARE = 0.1  # of the rows that must have the same token elsewhere for the name "duplicate token"
PADDING_ID = -1


@dataclass(frozen=True)
class AttentionBatch:
    """Token ids of queries and keys, -1 for padding, and how many keys the mask of a site allows."""

    queries: Indices  # [rows, queries]
    keys: Indices  # [rows, keys]
    is_special: NDArray[np.bool_]  # [rows, keys]
    is_self: bool  # whether queries and keys are the same text
    num_visible: Indices | None = None  # [rows, heads, queries], keys that the mask allows; None: all but padding


@dataclass(frozen=True)
class HeadStatistics:
    """Statistics of one head."""

    entropy: float  # bits
    distance: float  # tokens
    special: float  # fraction on special tokens
    previous: float  # fraction on the previous token
    itself: float  # fraction on the token itself
    next: float  # fraction on the next token
    same: float  # fraction on equal tokens elsewhere, over rows that have such
    diagonal: float  # fraction within one token of the own or the proportional position
    largest: float  # largest weight of a row
    broad: float  # entropy as a fraction of that of uniform weights over the visible keys
    twins: float  # fraction of rows that have an equal token elsewhere

    def describe(self, is_self: bool) -> str:
        """Name the head after what gets more than half of its attention.

        >>> HeadStatistics(0.3, 1.0, 0.1, 0.8, 0, 0, 0, 0.8, 0.9, 0.1, 0).describe(is_self=True)
        'previous token'
        """
        if self.special > DOMINANT_SHARE:
            return "special tokens"
        if is_self:
            neighbours = {"previous token": self.previous, "same token": self.itself, "next token": self.next}
            for label, share in neighbours.items():
                if share > DOMINANT_SHARE:
                    return label
        if self.same > DOMINANT_SHARE and self.twins > MIN_REPEATED_SHARE:
            return "duplicate token"
        if not is_self and self.diagonal > DOMINANT_SHARE:
            return "diagonal"
        if self.largest > DOMINANT_SHARE:
            return "peaked"
        return "broad" if self.broad > BROAD_ENTROPY else "mixed"


STATISTICS = [field.name for field in fields(HeadStatistics)]


class HeadAccumulator:
    """Sums of the statistics of one site's heads."""

    def __init__(self, num_heads: int) -> None:
        self.sums = np.zeros((len(STATISTICS), num_heads))
        self.counts = np.zeros(len(STATISTICS))

    def add(self, weights: Weights, batch: AttentionBatch) -> None:
        """Add the weights [rows, heads, queries, keys] of a batch.

        >>> accumulator = HeadAccumulator(1)
        >>> text = np.array([[5, 6, 5]])
        >>> batch = AttentionBatch(text, text, text < 0, is_self=True)
        >>> accumulator.add(np.eye(3, k=-1, dtype=np.float32)[None, None], batch)
        >>> head, = accumulator.statistics()
        >>> round(head.previous, 2), round(head.entropy, 2), round(head.distance, 2), head.same
        (1.0, 0.0, 0.67, 0.0)
        """
        is_query = batch.queries != PADDING_ID  # [rows, queries]
        is_key = (batch.keys != PADDING_ID)[:, None, :]  # [rows, 1, keys]
        queries = np.arange(weights.shape[2])[:, None]
        keys = np.arange(weights.shape[3])[None]
        offsets = keys - queries * np.ones_like(keys)  # [queries, keys]
        distances = offsets[None] * 1.0 if batch.is_self else _proportional_offsets(batch, queries, keys)
        is_elsewhere = offsets != 0 if batch.is_self else True
        is_twin = (batch.queries[:, :, None] == batch.keys[:, None, :]) & is_elsewhere
        is_twin &= ~batch.is_special[:, None, :]  # [rows, queries, keys]
        has_twin = is_twin.any(axis=2)
        has_next = ((offsets == 1)[None] & is_key).any(axis=2)
        is_special = np.broadcast_to(batch.is_special[:, None, :], (len(is_query), *offsets.shape))
        # which queries count, [rows, queries], and what counts of their attention, [rows, queries, keys]
        weighted = {
            "distance": (is_query, np.abs(distances)),
            "special": (is_query, is_special),
            "previous": (is_query & (queries[None, :, 0] > 0), (offsets == -1)[None]),
            "itself": (is_query, (offsets == 0)[None]),
            "next": (is_query & has_next, (offsets == 1)[None]),
            "same": (is_query & has_twin, is_twin),
            "diagonal": (is_query, np.abs(distances) <= 1),
        }
        for name, (is_counted, factors) in weighted.items():
            factors = factors * is_counted[:, :, None] * np.float32(1)
            self._add(name, np.einsum("bhqk,bqk->h", weights, factors, optimize=True), is_counted)
        entropy = entropy_bits(weights)  # [rows, heads, queries]
        num_visible = is_key.sum(axis=2)[:, None] if batch.num_visible is None else batch.num_visible
        per_query = {
            "entropy": entropy,
            "largest": weights.max(axis=3),
            "broad": relative_entropy(entropy, num_visible),
            "twins": np.broadcast_to(has_twin[:, None], entropy.shape),
        }
        for name, values in per_query.items():
            self._add(name, (values * is_query[:, None]).sum(axis=(0, 2), dtype=np.float64), is_query)

    def _add(self, name: str, sums: NDArray[np.floating], is_counted: NDArray[np.bool_]) -> None:
        index = STATISTICS.index(name)
        self.sums[index] += sums
        self.counts[index] += is_counted.sum()

    def statistics(self) -> list[HeadStatistics]:
        """Statistics of each head."""
        means = self.sums / np.maximum(self.counts, 1)[:, None]
        heads = []
        for head_means in means.T.tolist():
            heads.append(HeadStatistics(**dict(zip(STATISTICS, head_means, strict=True))))
        return heads


def _proportional_offsets(batch: AttentionBatch, queries: Indices, keys: Indices) -> NDArray[np.float64]:
    """Distance of keys from each query's proportional position in the other text, [rows, queries, keys]."""
    query_lengths = (batch.queries != PADDING_ID).sum(axis=1)[:, None, None]
    key_lengths = (batch.keys != PADDING_ID).sum(axis=1)[:, None, None]
    slopes = np.maximum(key_lengths - 1, 0) / np.maximum(query_lengths - 1, 1)
    offsets: NDArray[np.float64] = keys[None] - queries[None] * slopes
    return offsets


class CorpusStatistics:
    """Statistics of all heads of a model; memory does not grow with the corpus."""

    def __init__(self, sites: Mapping[str, int]) -> None:
        self.accumulators = {site: HeadAccumulator(num_heads) for site, num_heads in sites.items()}
        self.is_self = dict.fromkeys(sites, False)

    def add(self, site: str, weights: Weights, batch: AttentionBatch) -> None:
        """Add the weights [rows, heads, queries, keys] of a site."""
        self.is_self[site] = batch.is_self
        self.accumulators[site].add(weights, batch)

    def heads(self) -> dict[tuple[str, int], tuple[HeadStatistics, str]]:
        """Statistics and descriptive name of each head, by site and index."""
        heads = {}
        for site, accumulator in self.accumulators.items():
            for head, statistics in enumerate(accumulator.statistics()):
                heads[site, head] = (statistics, statistics.describe(self.is_self[site]))
        return heads


def pad_ids(rows: Sequence[NDArray[np.integer]]) -> Indices:
    """Pad sequences of token ids to one array with -1.

    >>> pad_ids([np.array([5, 6]), np.array([7])]).tolist()
    [[5, 6], [7, -1]]
    """
    padded = np.full((len(rows), max(map(len, rows), default=0)), PADDING_ID, dtype=np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded
