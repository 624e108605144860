"""Positions, caches, rows and noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.cache import KeyValueCache
from regard.attention.dropout import Noise, apply_dropout
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import Learned, Rotary, Sinusoidal, build_positions, sinusoids
from regard.errors import ConfigError, UsageError


def test_sinusoids_are_sines_then_cosines() -> None:
    code = sinusoids(torch.tensor([3]), 6)[0]
    for k in range(3):
        angle = 3 * 10_000 ** (-2 * k / 6)
        assert code[k].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert code[3 + k].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert sinusoids(torch.tensor([3]), 5).shape == (1, 5)


def test_a_place_beyond_the_table_still_has_its_code() -> None:
    scheme = Sinusoidal(4, 6)
    torch.testing.assert_close(scheme.embed(torch.zeros(1, 6), torch.tensor([9])), sinusoids(torch.tensor([9]), 6))


def test_learned_places_end() -> None:
    with pytest.raises(UsageError, match="5 places but the model learned 4"):
        Learned(4, 6).embed(torch.zeros(1, 6), torch.tensor([4]))


@given(shift=st.integers(0, 50))
@settings(max_examples=20, deadline=None)
def test_rotary_scores_depend_on_distance_only(shift: int) -> None:
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(shift))
    scheme = Rotary()

    def score(query_at: int, key_at: int) -> float:
        turned = scheme.rotate(query, torch.tensor([[query_at]])) * scheme.rotate(key, torch.tensor([[key_at]]))
        return turned.sum().item()

    assert score(3 + shift, 1 + shift) == pytest.approx(score(3, 1), abs=1e-3)


def test_an_unknown_scheme_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean rotary"):
        build_positions("rotory", 4, 4)


def test_a_cache_grows_and_its_rows_can_be_chosen() -> None:
    cache = KeyValueCache.empty(2, 3, 1, 2, 5)
    parts = torch.arange(150, dtype=torch.float32).view(2, 3, 1, 5, 5)  # [L, R, H, T, d]
    for place in range(5):
        cache.reserve()
        seen = [
            cache.append(layer, torch.stack([parts[layer, :, :, place], -parts[layer, :, :, place]], 1))
            for layer in range(2)
        ]
        cache.length += 1
    for layer, (key, value) in enumerate(seen):
        assert torch.equal(key, parts[layer])
        assert torch.equal(value, -parts[layer])
    chosen = cache.select(torch.tensor([1, 1, 0]))
    chosen.reserve()
    key, _ = chosen.append(1, torch.zeros(3, 2, 1, 5))
    assert torch.equal(key[:, :, :5], parts[1, [1, 1, 0]])


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_padding_and_packing_undo_one_another_with_gradients(lengths: list[int]) -> None:
    rows = PackedBatch(np.array(lengths))
    packed = torch.randn(sum(lengths), 3, requires_grad=True)
    padded = rows.pad(packed)
    assert padded.shape == (len(lengths), max(lengths), 3)
    assert torch.equal(rows.pack(padded), packed)
    factor = torch.randn(padded.shape)
    (rows.pad(packed) * factor).sum().backward()
    assert torch.equal(packed.grad, rows.pack(factor))
    assert rows.positions.tolist() == [place for length in lengths for place in range(length)]


def test_noise_is_a_function_of_its_place_alone() -> None:
    noise = Noise(seed=3, step=5)
    mask = noise.dropout_factors((40, 50), 0.3, "a", torch.float32)
    noise.dropout_factors((7,), 0.5, "b", torch.float32)  # what was drawn before does not matter
    assert torch.equal(mask, noise.dropout_factors((40, 50), 0.3, "a", torch.float32))
    for other in (Noise(4, 5), Noise(3, 6), Noise(3, 5, 1)):
        assert not torch.equal(mask, other.dropout_factors((40, 50), 0.3, "a", torch.float32))
    assert not torch.equal(mask, noise.dropout_factors((40, 50), 0.3, "b", torch.float32))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_dropout_has_its_rate_its_mean_and_no_neighbours(rate: float) -> None:
    kept = Noise(1, 1).dropout_factors((400, 500), rate, "x", torch.float32)
    assert (kept == 0).float().mean().item() == pytest.approx(rate, abs=0.005)
    assert kept.mean().item() == pytest.approx(1, abs=0.01)
    dropped = (kept == 0).float() - (kept == 0).float().mean()
    for other in (dropped.roll(1, 0), dropped.roll(1, 1)):
        assert (dropped * other).mean().item() == pytest.approx(0, abs=0.003)


def test_dropout_is_independent_over_steps_sites_parts_and_seeds() -> None:
    """Products of two masks' deviations have mean 0 and a known spread; four of it would be one in 16,000."""
    count, rate = 200_000, 77 / 256
    spread = rate * (1 - rate) / count**0.5

    def dropped(noise: Noise, site: str) -> torch.Tensor:
        return (noise.dropout_factors((count,), rate, site, torch.float32) == 0).double() - rate

    first = dropped(Noise(1, 10), "encoder.0.attention")
    assert first.mean().abs() < 4 * (rate * (1 - rate) / count) ** 0.5
    others = [Noise(1, 11), Noise(1, 12), Noise(1, 9), Noise(1, 1010), Noise(2, 10), Noise(1, 10, 1)]
    pairs = [dropped(other, "encoder.0.attention") for other in others]
    sites = ("encoder.1.attention", "decoder.0.attention", "source.embedding")
    pairs += [dropped(Noise(1, 10), site) for site in sites]
    pairs += [first.roll(shift) for shift in (1, 2, 64, 256, 8192)]
    for other in pairs:
        assert (first * other).mean().abs() < 4 * spread


def test_how_many_are_dropped_in_a_row_of_steps_is_as_chance_has_it() -> None:
    """The count at each place over many steps is binomial: its spread over places tells streaks and repeats."""
    steps, count, rate = 200, 5_000, 64 / 256
    drops = sum(
        (Noise(3, step).dropout_factors((count,), rate, "x", torch.float32) == 0).double() for step in range(steps)
    )
    assert isinstance(drops, torch.Tensor)
    expected = steps * rate * (1 - rate)
    assert drops.mean().item() == pytest.approx(steps * rate, abs=4 * (expected / count) ** 0.5)
    assert drops.var().item() == pytest.approx(expected, rel=4 * (2 / count) ** 0.5)


def test_without_noise_nothing_is_dropped() -> None:
    states = torch.randn(3, 4)
    assert apply_dropout(states, 0.5, None, "x") is states
