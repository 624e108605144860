"""What is drawn at places: evenly spread, and the same for a place whoever asks with it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from regard.data.batching import position_uniforms

KEY = {"digest": "ab12", "purpose": 3}


def test_draws_are_even_and_do_not_depend_on_one_another() -> None:
    drawn = position_uniforms(np.arange(100_000), seed=1, epoch=2, count=3, **KEY)
    assert drawn.shape == (3, 100_000) and drawn.min() >= 0 and drawn.max() < 1
    shares = np.stack([np.histogram(one, 20, (0, 1))[0] for one in drawn]) / 5000
    assert abs(shares - 1).max() < 0.06
    together = np.corrcoef([*drawn, np.roll(drawn[0], 1), np.roll(drawn[0], 128)])
    assert abs(together - np.eye(5)).max() < 0.015


@given(some.lists(some.integers(0, 2**40), min_size=1, max_size=9), some.integers(0, 99), some.integers(0, 99))
def test_a_place_has_the_same_draw_in_any_company(places: list[int], seed: int, epoch: int) -> None:
    whole = position_uniforms(np.array(places), seed=seed, epoch=epoch, count=2, **KEY)
    alone = [
        position_uniforms(np.array([[place]]), seed=seed, epoch=epoch, count=2, **KEY)[:, 0, 0] for place in places
    ]
    assert (whole == np.stack(alone, axis=1)).all()


def test_seed_epoch_data_and_purpose_all_count() -> None:
    base = {"seed": 1, "epoch": 2, **KEY}
    changed = ({"seed": 2}, {"epoch": 3}, {"digest": "cd"}, {"purpose": 4})
    first = position_uniforms(np.arange(50), **base)  # type: ignore[arg-type]
    assert all((position_uniforms(np.arange(50), **{**base, **one}) != first).all() for one in changed)  # type: ignore[arg-type]
