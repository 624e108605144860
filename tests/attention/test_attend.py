"""What attention is, from first principles."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.attend import attend
from regard.attention.dropout import Noise
from regard.attention.masks import Mask, causal, padding, window
from regard.attention.scores import (
    Additive,
    Bilinear,
    Dot,
    ScaledDot,
    gumbel_argmax,
    hard_argmax,
    softmax,
    unnormalized,
)
from regard.attention.trace import trace
from regard.errors import UsageError

B, H, Q, K, D, V = 2, 3, 5, 7, 11, 13


def tensors(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, H, Q, D), (B, H, K, D), (B, H, K, V))
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return query, key, value


def placed(mask: Mask) -> object:
    return mask.bind(torch.arange(Q)[None], torch.arange(K)[None])


def seen_weights(**options: object) -> torch.Tensor:
    query, key, value = tensors()
    with trace(full_precision=True) as seen:
        attend(query, key, value, site="x", **options)  # type: ignore[arg-type]
    return torch.from_numpy(seen["x"].weights)


@given(seed=st.integers(0, 10_000), reach=st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_rows_are_distributions_and_masked_places_are_exactly_zero(seed: int, reach: int) -> None:
    query, key, value = tensors(seed)
    mask = placed(window(reach))
    with trace(full_precision=True) as seen:
        attend(query * 5, key, value, mask=mask, site="x")
    weights = torch.from_numpy(seen["x"].weights)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, Q))
    assert (weights[(~mask.dense).expand_as(weights)] == 0).all()


@pytest.mark.parametrize("grad", [False, True])
def test_a_query_that_sees_nothing_gets_zeros_in_every_kernel(grad: bool) -> None:
    query, key, value = tensors()
    mask = placed(causal() & ~window(0))  # the first query may look at nothing
    with torch.set_grad_enabled(grad):
        mixed = attend(query, key, value, mask=mask)
    assert torch.isfinite(mixed).all()
    assert (mixed[:, :, 0] == 0).all()
    assert (mixed[:, :, 1] != 0).any()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_permuting_keys_permutes_the_weights_and_leaves_the_mix(seed: int) -> None:
    query, key, value = tensors(seed)
    turn = torch.randperm(K, generator=torch.Generator().manual_seed(seed))
    with trace(full_precision=True) as seen:
        mixed = attend(query, key, value, site="plain")
        turned = attend(query, key[:, :, turn], value[:, :, turn], site="turned")
    torch.testing.assert_close(mixed, turned)
    plain = torch.from_numpy(seen["plain"].weights)
    torch.testing.assert_close(plain[..., turn], torch.from_numpy(seen["turned"].weights))


@pytest.mark.parametrize("mask", [None, causal(), window(1), padding(torch.tensor([3, 7])), causal() & ~window(0)])
def test_fused_equals_explicit(mask: Mask | None) -> None:
    query, key, value = tensors()
    at = None if mask is None else placed(mask)
    with torch.no_grad():
        fused = attend(query, key, value, mask=at)
    with torch.enable_grad():
        explicit = attend(query, key, value, mask=at)
    torch.testing.assert_close(fused, explicit)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tap_changes_no_bit(grad: bool, dtype: torch.dtype) -> None:
    query, key, value = (tensor.to(dtype) for tensor in tensors())
    options = {"mask": placed(causal()), "dropout": 0.3, "noise": Noise(1, 2) if grad else None, "site": "x"}
    with torch.set_grad_enabled(grad):
        unseen = attend(query, key, value, **options)
        with trace(full_precision=True):
            watched = attend(query, key, value, **options)
    assert torch.equal(unseen, watched)


def test_a_trace_sees_only_what_was_asked_for() -> None:
    query, key, value = tensors()
    with trace("decoder.*.cross", full_precision=True) as seen:
        for site in ("decoder.0.self", "decoder.0.cross", "decoder.1.cross", ""):
            attend(query, key, value, site=site)
    assert list(seen) == ["decoder.0.cross", "decoder.1.cross"]
    assert seen["decoder.1.cross"].role == "cross"


def test_steps_of_one_site_join_along_the_queries() -> None:
    query, key, value = tensors()
    with trace(full_precision=True) as seen:
        attend(query[:, :, :1], key[:, :, :2], value[:, :, :2], site="x")
        attend(query[:, :, 1:2], key[:, :, :3], value[:, :, :3], site="x")
    weights = seen["x"].weights
    assert weights.shape == (B, H, 2, 3)
    assert (weights[:, :, 0, 2] == 0).all()


def test_the_scores_are_what_their_papers_say() -> None:
    query, key, _ = tensors()
    torch.testing.assert_close(Dot()(query, key)[1, 2, 3, 4], query[1, 2, 3] @ key[1, 2, 4])
    torch.testing.assert_close(ScaledDot()(query, key)[1, 2, 3, 4], query[1, 2, 3] @ key[1, 2, 4] / D**0.5)
    additive, bilinear = Additive(D, D, 17), Bilinear(D, D)
    wanted = additive.weigh(torch.tanh(additive.query(query[0, 1, 2]) + additive.key(key[0, 1, 3])))
    torch.testing.assert_close(additive(query, additive.prepare(key))[0, 1, 2, 3], wanted[0])
    wanted = query[0, 1, 2] @ bilinear.key.weight @ key[0, 1, 3]
    torch.testing.assert_close(bilinear(query, bilinear.prepare(key))[0, 1, 2, 3], wanted)


@pytest.mark.parametrize("score", [Dot(), Additive(D, D, 5), Bilinear(D, D)])
def test_every_score_mixes_by_its_own_weights(score: object) -> None:
    query, key, value = tensors()
    prepared = score.prepare(key)  # type: ignore[attr-defined]
    with trace(full_precision=True) as seen:
        mixed = attend(query, prepared, value, score=score, mask=placed(causal()), site="x")  # type: ignore[arg-type]
    torch.testing.assert_close(mixed, torch.from_numpy(seen["x"].weights) @ value)


def test_raw_weights_are_the_scores_and_hard_ones_choose_one_place() -> None:
    query, key, value = tensors()
    mask = placed(window(2))
    torch.testing.assert_close(
        attend(query, key, value, score=Dot(), normalize=unnormalized, mask=mask),
        (query @ key.transpose(-1, -2)).masked_fill(~mask.dense, 0) @ value,
    )
    chosen = seen_weights(normalize=hard_argmax, mask=mask)
    assert set(chosen.unique().tolist()) == {0.0, 1.0}
    assert (chosen.sum(-1) == 1).all()
    assert (chosen[(~mask.dense).expand_as(chosen)] == 0).all()


def test_hard_attention_lets_gradients_through() -> None:
    query, key, value = tensors()
    query.requires_grad_()
    attend(query, key, value, normalize=hard_argmax).sum().backward()
    assert query.grad is not None
    assert query.grad.abs().max() > 0


def test_sampled_attention_draws_with_the_chances_of_softmax() -> None:
    scores = torch.tensor([0.0, 1.0, 2.0]).expand(1, 1, 20_000, 3)
    drawn = gumbel_argmax(Noise(1, 1), "x")(scores).mean(2)[0, 0]
    torch.testing.assert_close(drawn, softmax(scores[:, :, :1])[0, 0, 0], atol=0.015, rtol=0)
    assert torch.equal(gumbel_argmax(Noise(1, 1), "x")(scores), gumbel_argmax(Noise(1, 1), "x")(scores))


def test_wrong_shapes_are_refused_with_both_shapes() -> None:
    query, key, value = tensors()
    with pytest.raises(UsageError, match=r"\[2, 3, 7, 11\] and \[2, 3, 6, 13\]"):
        attend(query, key, value[:, :, 1:])
