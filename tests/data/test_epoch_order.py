"""Uniform numbers by position: evenly spread, and independent of the other positions of a call."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import position_uniforms

KEY = {"digest": "ab12", "purpose": 3}


def test_draws_are_uniform_and_uncorrelated() -> None:
    uniforms = position_uniforms(np.arange(100_000), seed=1, epoch=2, num_draws=3, **KEY)
    assert uniforms.shape == (3, 100_000) and uniforms.min() >= 0 and uniforms.max() < 1
    frequencies = np.stack([np.histogram(draw, 20, (0, 1))[0] for draw in uniforms]) / 5000
    assert abs(frequencies - 1).max() < 0.06
    correlations = np.corrcoef([*uniforms, np.roll(uniforms[0], 1), np.roll(uniforms[0], 128)])
    assert abs(correlations - np.eye(5)).max() < 0.015


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=9), st.integers(0, 99), st.integers(0, 99))
def test_a_position_has_the_same_draw_in_any_batch(positions: list[int], seed: int, epoch: int) -> None:
    batched = position_uniforms(np.array(positions), seed=seed, epoch=epoch, num_draws=2, **KEY)
    single = [
        position_uniforms(np.array([[position]]), seed=seed, epoch=epoch, num_draws=2, **KEY)[:, 0, 0]
        for position in positions
    ]
    assert (batched == np.stack(single, axis=1)).all()


def test_seed_epoch_data_and_purpose_change_the_draws() -> None:
    base = {"seed": 1, "epoch": 2, **KEY}
    changes = ({"seed": 2}, {"epoch": 3}, {"digest": "cd"}, {"purpose": 4})
    uniforms = position_uniforms(np.arange(50), **base)  # type: ignore[arg-type]
    for change in changes:
        assert (position_uniforms(np.arange(50), **{**base, **change}) != uniforms).all()  # type: ignore[arg-type]
