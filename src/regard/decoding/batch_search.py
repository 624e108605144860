"""Search of many texts: batches of similar length in, hypotheses in the order of the texts out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.inference import DecodingConfig
from regard.data.batching import length_sorted_batches
from regard.decoding.beams import BeamTree
from regard.decoding.constraints import ForcedPhrases
from regard.decoding.generator import Generator, S
from regard.decoding.rules import Rule
from regard.decoding.search import Hypothesis, search
from regard.packed_tokens import Ids, Tokens

Indices = NDArray[np.int64]
BatchSearch = Callable[[Indices], list[list[Hypothesis]]]
MapBatches = Callable[[BatchSearch, list[Indices]], Iterable[list[list[Hypothesis]]]]


def batch_by_length(lengths: Indices, config: DecodingConfig) -> list[Indices]:
    """Group row indices by similar length, within the limits on tokens and rows of a batch.

    >>> lengths = np.array([[3], [9], [3], [8]])
    >>> [batch.tolist() for batch in batch_by_length(lengths, DecodingConfig(batch_tokens=17, batch_size=2))]
    [[1, 3], [0, 2]]
    """
    return length_sorted_batches(lengths, max_tokens=config.batch_tokens, max_rows=config.batch_size)


def search_in_batches(
    generator: Generator[S],
    rows: Sequence[Sequence[int] | Ids],
    config: DecodingConfig,
    *,
    max_length: int,
    rules: Sequence[Rule] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
    forced: Sequence[ForcedPhrases] | None = None,
    map_batches: MapBatches = map,
    tree: BeamTree | None = None,
) -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
    """Yield the row indices of each batch with the hypotheses of each row.

    The maximum length of a row's output follows from its source length by `max_length_a` and `max_length_b` of the
    config, and never exceeds `max_length`. `map_batches` runs the search of every batch: `map`, or a function that
    searches several batches in parallel while the caller consumes one. Of a single row, `tree` records the beam.
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    max_lengths = np.ceil(lengths * config.max_length_a).astype(np.int64) + config.max_length_b
    max_lengths = np.minimum(max_lengths, max_length)

    def search_batch(batch: Indices) -> list[list[Hypothesis]]:
        indices = batch.tolist()
        return search(
            generator,
            Tokens.from_rows([rows[index] for index in indices]),
            config,
            max_lengths=max_lengths[batch],
            rules=rules,
            prefixes=None if prefixes is None else [prefixes[index] for index in indices],
            forced=None if forced is None else [forced[index] for index in indices],
            tree=tree,
        )

    batches = batch_by_length(lengths[:, None], config)
    for batch, hypotheses in zip(batches, map_batches(search_batch, batches), strict=True):
        yield batch.tolist(), hypotheses


def search_all(
    generator: Generator[S], rows: Sequence[Sequence[int] | Ids], config: DecodingConfig, **options: Any
) -> list[list[Hypothesis]]:
    """Search every source row; return the hypotheses in the order of the rows. Options as of `search_in_batches`."""
    hypotheses: list[list[Hypothesis]] = [[] for _ in rows]
    for indices, batch_hypotheses in search_in_batches(generator, rows, config, **options):
        for index, row_hypotheses in zip(indices, batch_hypotheses, strict=True):
            hypotheses[index] = row_hypotheses
    return hypotheses
