"""Many texts at once: searched in batches of like length, answered in their own order."""

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
from regard.tokens import Ids, Tokens

Numbers = NDArray[np.int64]
Each = Callable[[Callable[[Numbers], list[list[Hypothesis]]], list[Numbers]], Iterable[list[list[Hypothesis]]]]


def batch_by_length(lengths: Numbers, config: DecodingConfig) -> list[Numbers]:
    """Return the numbers of rows that go together: like lengths, within the budgets of tokens and rows.

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
    map_batches: Each = map,
    tree: BeamTree | None = None,
) -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
    """Yield the numbers of source rows that were searched together, and the hypotheses of each, batch by batch.

    A row's limit comes from its length by the config's `max_ratio` and `max_extra`; no text gets more than `longest`
    tokens. `each` runs the search of every batch: `map`, or one that runs several at a time, others while the caller
    has one. The tree of a single row's search grows in `tree`.
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    limits = np.minimum(np.ceil(lengths * config.max_length_a).astype(np.int64) + config.max_length_b, max_length)

    def searched(numbers: Numbers) -> list[list[Hypothesis]]:
        chosen = numbers.tolist()
        return search(
            generator,
            Tokens.from_rows([rows[number] for number in chosen]),
            config,
            max_lengths=limits[numbers],
            rules=rules,
            prefixes=None if prefixes is None else [prefixes[number] for number in chosen],
            forced=None if forced is None else [forced[number] for number in chosen],
            tree=tree,
        )

    together = batch_by_length(lengths[:, None], config)
    for numbers, hypotheses in zip(together, map_batches(searched, together), strict=True):
        yield numbers.tolist(), hypotheses


def search_all(
    generator: Generator[S], rows: Sequence[Sequence[int] | Ids], config: DecodingConfig, **options: Any
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source row, whatever rows it was searched with; wishes as of `search_batches`."""
    found: list[list[Hypothesis]] = [[] for _ in rows]
    for numbers, hypotheses in search_in_batches(generator, rows, config, **options):
        for number, some in zip(numbers, hypotheses, strict=True):
            found[number] = some
    return found
