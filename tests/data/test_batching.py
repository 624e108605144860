"""Order and batches: each example exactly once per epoch, as a function of seed, epoch and data."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batching import cut_batches, epoch_batches, epoch_order, length_sorted_batches

lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)


@given(lengths, st.integers(1, 100), st.integers(0, 5), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_each_example_once_within_max_tokens_and_always_the_same(
    rows: list[tuple[int, int]], max_tokens: int, seed: int, epoch: int
) -> None:
    table = np.array(rows)
    batches = epoch_batches(table, max_tokens=max_tokens, seed=seed, epoch=epoch, digest="ab12")
    again = epoch_batches(table, max_tokens=max_tokens, seed=seed, epoch=epoch, digest="ab12")
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(rows)))
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in again]
    for batch in batches:
        assert len(batch) == 1 or table[batch].sum(axis=0).max() <= max_tokens
    assert sorted(np.concatenate(length_sorted_batches(table, max_tokens=max_tokens)).tolist()) == list(
        range(len(rows))
    )


def test_epochs_seeds_and_data_change_the_order() -> None:
    order = epoch_order(50, seed=1, epoch=0, digest="aa").tolist()
    for other in (
        epoch_order(50, seed=2, epoch=0, digest="aa"),
        epoch_order(50, seed=1, epoch=1, digest="aa"),
        epoch_order(50, seed=1, epoch=0, digest="ab"),
    ):
        assert other.tolist() != order
        assert sorted(other.tolist()) == list(range(50))


def test_rows_of_one_target_length_are_batched_together() -> None:
    rng = np.random.default_rng(1)
    table = rng.integers(5, 15, (3000, 2))
    batches = epoch_batches(table, max_tokens=300, seed=1, epoch=0, digest="ab")
    num_uniform = sum(len(set(table[batch, 1])) == 1 for batch in batches)
    assert num_uniform > 0.9 * len(batches)


def test_batches_are_cut_at_max_tokens() -> None:
    table = np.array([[4, 1], [4, 1], [1, 9], [1, 1]])
    assert [batch.tolist() for batch in cut_batches(table, np.array([0, 1, 2, 3]), 8)] == [[0, 1], [2], [3]]
