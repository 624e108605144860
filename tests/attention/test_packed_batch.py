"""Positional schemes, key–value cache, packed batches and noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.cache import KeyValueCache, LayerCache
from regard.attention.dropout import Noise, apply_dropout
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import Learned, Rotary, Sinusoidal, build_positions, sinusoids
from regard.errors import UsageError


def test_sinusoids_are_sines_then_cosines() -> None:
    encoding = sinusoids(torch.tensor([3]), 6)[0]
    for k in range(3):
        angle = 3 * 10_000 ** (-2 * k / 6)
        assert encoding[k].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert encoding[3 + k].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert sinusoids(torch.tensor([3]), 5).shape == (1, 5)


def test_a_position_beyond_the_table_still_has_its_sinusoids() -> None:
    scheme = Sinusoidal(4, 6)
    torch.testing.assert_close(scheme.embed(torch.zeros(1, 6), torch.tensor([9])), sinusoids(torch.tensor([9]), 6))


def test_learned_positions_have_an_end() -> None:
    with pytest.raises(UsageError, match="5 positions but the model has embeddings of 4"):
        Learned(4, 6).embed(torch.zeros(1, 6), torch.tensor([4]))


@given(shift=st.integers(0, 50))
@settings(max_examples=20, deadline=None)
def test_rotary_scores_depend_on_distance_only(shift: int) -> None:
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(shift))
    scheme = Rotary()

    def score(query_position: int, key_position: int) -> float:
        rotated_query = scheme.rotate(query, torch.tensor([[query_position]]))
        rotated_key = scheme.rotate(key, torch.tensor([[key_position]]))
        return (rotated_query * rotated_key).sum().item()

    assert score(3 + shift, 1 + shift) == pytest.approx(score(3, 1), abs=1e-3)


def test_an_unknown_scheme_is_rejected_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown position scheme 'rotory' \(did you mean rotary\?\)"):
        build_positions("rotory", 4, 4)


def test_a_cache_grows_and_its_rows_can_be_selected() -> None:
    cache = KeyValueCache.empty(layers=2, rows=3, heads=1, capacity=2, key_size=5, value_size=7)
    keys = torch.arange(150, dtype=torch.float32).view(2, 3, 1, 5, 5)  # [L, R, H, T, d]
    values = -torch.arange(210, dtype=torch.float32).view(2, 3, 1, 5, 7)
    for start, stop in ((0, 1), (1, 4), (4, 5)):
        cache.reserve(stop - start)
        cached = [
            LayerCache(cache, layer).append(keys[layer, :, :, start:stop], values[layer, :, :, start:stop])
            for layer in range(2)
        ]
        cache.length = stop
    for layer, (key, value) in enumerate(cached):
        assert torch.equal(key, keys[layer])
        assert torch.equal(value, values[layer])
    selected = cache.select(torch.tensor([1, 1, 0]))
    selected.reserve()
    key, value = LayerCache(selected, 1).append(torch.zeros(3, 1, 1, 5), torch.zeros(3, 1, 1, 7))
    assert torch.equal(key[:, :, :5], keys[1, [1, 1, 0]])
    assert torch.equal(value[:, :, :5], values[1, [1, 1, 0]])


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_padding_and_packing_are_inverse_with_gradients(lengths: list[int]) -> None:
    batch = PackedBatch(np.array(lengths))
    packed = torch.randn(sum(lengths), 3, requires_grad=True)
    padded = batch.pad(packed)
    assert padded.shape == (len(lengths), max(lengths), 3)
    assert torch.equal(batch.pack(padded), packed)
    factor = torch.randn(padded.shape)
    (batch.pad(packed) * factor).sum().backward()
    assert torch.equal(packed.grad, batch.pack(factor))
    assert batch.positions.tolist() == [position for length in lengths for position in range(length)]


def test_noise_is_a_function_of_seed_step_micro_batch_and_site() -> None:
    noise = Noise(seed=3, step=5)
    factors = noise.dropout_factors((40, 50), 0.3, "a", torch.float32)
    noise.dropout_factors((7,), 0.5, "b", torch.float32)  # earlier draws do not matter
    assert torch.equal(factors, noise.dropout_factors((40, 50), 0.3, "a", torch.float32))
    for different in (Noise(4, 5), Noise(3, 6), Noise(3, 5, 1)):
        assert not torch.equal(factors, different.dropout_factors((40, 50), 0.3, "a", torch.float32))
    assert not torch.equal(factors, noise.dropout_factors((40, 50), 0.3, "b", torch.float32))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_dropout_has_its_rate_its_mean_and_no_correlated_neighbours(rate: float) -> None:
    factors = Noise(1, 1).dropout_factors((400, 500), rate, "x", torch.float32)
    assert (factors == 0).float().mean().item() == pytest.approx(rate, abs=0.005)
    assert factors.mean().item() == pytest.approx(1, abs=0.01)
    deviations = (factors == 0).float() - (factors == 0).float().mean()
    for shifted in (deviations.roll(1, 0), deviations.roll(1, 1)):
        assert (deviations * shifted).mean().item() == pytest.approx(0, abs=0.003)


@pytest.mark.parametrize("rate", [0.02, 0.012, 0.001, 0.0001, 0.995])
def test_small_and_large_dropout_rates_are_neither_ignored_nor_rounded_by_much(rate: float) -> None:
    count = 2_000_000
    factors = Noise(1, 1).dropout_factors((count,), rate, "x", torch.float32)
    share = (factors == 0).double().mean().item()
    spread = (rate * (1 - rate) / count) ** 0.5
    assert share == pytest.approx(rate, abs=0.02 * min(rate, 1 - rate) + 4 * spread)
    factor = factors.max().item()
    assert set(factors.unique().tolist()) == {0.0, factor}
    assert factor == pytest.approx(1 / (1 - rate), rel=0.03)


def test_rates_that_a_byte_represents_have_the_bits_of_bytes() -> None:
    noise = Noise(3, 5)
    for rate, threshold in ((0.1, 26), (0.25, 64), (0.3, 77), (0.5, 128), (3 / 256, 3)):
        random_bytes = noise.generator("a").bit_generator.random_raw(125).view("uint8")
        expected = torch.from_numpy((random_bytes >= threshold) * (256 / (256 - threshold))).float()
        assert torch.equal(noise.dropout_factors((1000,), rate, "a", torch.float32), expected)


def test_dropout_is_independent_over_steps_sites_micro_batches_and_seeds() -> None:
    """Products of two masks' deviations have mean 0 and a known spread; four of it have a probability of 1/16,000."""
    count = 200_000
    rate = 77 / 256
    spread = rate * (1 - rate) / count**0.5

    def deviations(noise: Noise, site: str) -> torch.Tensor:
        return (noise.dropout_factors((count,), rate, site, torch.float32) == 0).double() - rate

    reference = deviations(Noise(1, 10), "encoder.0.attention")
    assert reference.mean().abs() < 4 * (rate * (1 - rate) / count) ** 0.5
    noises = [Noise(1, 11), Noise(1, 12), Noise(1, 9), Noise(1, 1010), Noise(2, 10), Noise(1, 10, 1)]
    compared = [deviations(noise, "encoder.0.attention") for noise in noises]
    sites = ("encoder.1.attention", "decoder.0.attention", "source.embedding")
    compared += [deviations(Noise(1, 10), site) for site in sites]
    compared += [reference.roll(shift) for shift in (1, 2, 64, 256, 8192)]
    for masks in compared:
        assert (reference * masks).mean().abs() < 4 * spread


def test_how_often_an_element_is_dropped_over_many_steps_is_binomial() -> None:
    """The count of each element over many steps is binomial: its variance would reveal streaks and repeats."""
    steps = 200
    count = 5_000
    rate = 64 / 256
    drops = sum(
        (Noise(3, step).dropout_factors((count,), rate, "x", torch.float32) == 0).double() for step in range(steps)
    )
    assert isinstance(drops, torch.Tensor)
    variance = steps * rate * (1 - rate)
    assert drops.mean().item() == pytest.approx(steps * rate, abs=4 * (variance / count) ** 0.5)
    assert drops.var().item() == pytest.approx(variance, rel=4 * (2 / count) ** 0.5)


def test_without_noise_nothing_is_dropped() -> None:
    hidden = torch.randn(3, 4)
    assert apply_dropout(hidden, 0.5, None, "x") is hidden
