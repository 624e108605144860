"""Masks: which keys a query may attend to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.masks import Mask, blocks, causal, global_tokens, graph, padding, random, window
from regard.errors import UsageError


def dense(mask: Mask, queries: int, keys: int) -> list[list[int]]:
    return mask.bind(torch.arange(queries)[None], torch.arange(keys)[None]).dense[0, 0].int().tolist()


def test_masks_equal_those_written_by_hand() -> None:
    assert dense(window(1), 4, 4) == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert dense(global_tokens(0, -1), 3, 4) == [[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1]]
    assert dense(graph([(0, 2), (1, 1)]), 3, 3) == [[0, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert dense(blocks(window(0), 2), 4, 4) == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert dense(padding(torch.tensor([2])), 2, 3) == [[1, 1, 0], [1, 1, 0]]


leaves = st.sampled_from(
    [causal(), window(1), window(2), global_tokens(0), global_tokens(-1), random(2, 5), blocks(causal(), 3)]
)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=5,
)


@given(expressions, expressions)
@settings(max_examples=60, deadline=None)
def test_the_algebra_is_that_of_sets(a: Mask, b: Mask) -> None:
    assert dense(~(a & b), 7, 7) == dense(~a | ~b, 7, 7)
    assert dense(~~a, 7, 7) == dense(a, 7, 7)
    assert dense(a & b, 7, 7) == dense(b & a, 7, 7)
    assert dense(a | (a & b), 7, 7) == dense(a, 7, 7)


@given(expressions)
@settings(max_examples=60, deadline=None)
def test_a_printed_mask_evaluates_to_the_same_mask(mask: Mask) -> None:
    names = {"causal": causal, "window": window, "global_tokens": global_tokens, "blocks": blocks, "random": random}
    assert dense(eval(str(mask), names), 7, 7) == dense(mask, 7, 7)


@given(num_keys=st.integers(1, 5), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_random_has_exactly_so_many_keys_and_the_same_wherever_it_is_bound(num_keys: int, seed: int) -> None:
    mask = random(num_keys, seed)
    rows = dense(mask, 11, 11)
    assert all(sum(row) == num_keys for row in rows)
    single_row = mask.bind(torch.tensor([[4]]), torch.arange(11)[None]).dense[0, 0].int().tolist()
    assert single_row == [rows[4]]
    assert dense(random(num_keys, seed + 1), 11, 11) != rows


def test_the_block_layout_is_true_where_any_pair_of_a_block_is_allowed() -> None:
    bound = window(1).bind(torch.arange(6)[None], torch.arange(7)[None])
    assert bound.block_layout(3).int().tolist() == [[[1, 1, 0], [1, 1, 1]]]


def test_a_mask_that_masks_nothing_is_full() -> None:
    positions = torch.arange(3)[None]
    assert padding(torch.tensor([3, 3])).bind(positions, positions).is_full
    assert not causal().bind(positions, positions).is_full
    assert causal().bind(positions, positions).masked_queries is None


def test_a_negative_edge_is_rejected() -> None:
    with pytest.raises(UsageError, match="negative"):
        graph([(0, -1)])
