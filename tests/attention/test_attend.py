"""`attend` from first principles."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.attend import attend
from regard.attention.dropout import Noise
from regard.attention.masks import BoundMask, Mask, causal, padding, window
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


def random_qkv(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, H, Q, D), (B, H, K, D), (B, H, K, V))
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return query, key, value


def bind(mask: Mask) -> BoundMask:
    return mask.bind(torch.arange(Q)[None], torch.arange(K)[None])


def captured_weights(**options: object) -> torch.Tensor:
    query, key, value = random_qkv()
    with trace(full_precision=True) as captured:
        attend(query, key, value, site="x", **options)  # type: ignore[arg-type]
    return torch.from_numpy(captured["x"].weights)


@given(seed=st.integers(0, 10_000), window_size=st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_weights_are_distributions_and_masked_keys_are_exactly_zero(seed: int, window_size: int) -> None:
    query, key, value = random_qkv(seed)
    mask = bind(window(window_size))
    with trace(full_precision=True) as captured:
        attend(query * 5, key, value, mask=mask, site="x")
    weights = torch.from_numpy(captured["x"].weights)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, Q))
    assert (weights[(~mask.dense).expand_as(weights)] == 0).all()


@pytest.mark.parametrize("grad", [False, True])
def test_a_query_without_allowed_keys_gets_zeros_in_every_kernel(grad: bool) -> None:
    query, key, value = random_qkv()
    mask = bind(causal() & ~window(0))  # the first query has no allowed keys
    with torch.set_grad_enabled(grad):
        context = attend(query, key, value, mask=mask)
    assert torch.isfinite(context).all()
    assert (context[:, :, 0] == 0).all()
    assert (context[:, :, 1] != 0).any()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_permuting_keys_permutes_the_weights_and_not_the_output(seed: int) -> None:
    query, key, value = random_qkv(seed)
    order = torch.randperm(K, generator=torch.Generator().manual_seed(seed))
    with trace(full_precision=True) as captured:
        context = attend(query, key, value, site="plain")
        permuted = attend(query, key[:, :, order], value[:, :, order], site="permuted")
    torch.testing.assert_close(context, permuted)
    weights = torch.from_numpy(captured["plain"].weights)
    torch.testing.assert_close(weights[..., order], torch.from_numpy(captured["permuted"].weights))


@pytest.mark.parametrize("mask", [None, causal(), window(1), padding(torch.tensor([3, 7])), causal() & ~window(0)])
def test_fused_equals_explicit(mask: Mask | None) -> None:
    query, key, value = random_qkv()
    bound = None if mask is None else bind(mask)
    with torch.no_grad():
        fused = attend(query, key, value, mask=bound)
    with torch.enable_grad():
        explicit = attend(query, key, value, mask=bound)
    torch.testing.assert_close(fused, explicit)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_trace_changes_no_bit_of_the_output(grad: bool, dtype: torch.dtype) -> None:
    query, key, value = (tensor.to(dtype) for tensor in random_qkv())
    options = {"mask": bind(causal()), "dropout": 0.3, "noise": Noise(1, 2) if grad else None, "site": "x"}
    with torch.set_grad_enabled(grad):
        untraced = attend(query, key, value, **options)
        with trace(full_precision=True):
            traced = attend(query, key, value, **options)
    assert torch.equal(untraced, traced)


def test_a_trace_captures_only_the_selected_sites() -> None:
    query, key, value = random_qkv()
    with trace("decoder.*.cross", full_precision=True) as captured:
        for site in ("decoder.0.self", "decoder.0.cross", "decoder.1.cross", ""):
            attend(query, key, value, site=site)
    assert list(captured) == ["decoder.0.cross", "decoder.1.cross"]
    assert captured["decoder.1.cross"].role == "cross"


def test_calls_of_one_site_join_along_the_queries() -> None:
    query, key, value = random_qkv()
    with trace(full_precision=True) as captured:
        attend(query[:, :, :1], key[:, :, :2], value[:, :, :2], site="x")
        attend(query[:, :, 1:2], key[:, :, :3], value[:, :, :3], site="x")
    weights = captured["x"].weights
    assert weights.shape == (B, H, 2, 3)
    assert (weights[:, :, 0, 2] == 0).all()


def test_the_scores_are_those_of_their_papers() -> None:
    query, key, _ = random_qkv()
    torch.testing.assert_close(Dot()(query, key)[1, 2, 3, 4], query[1, 2, 3] @ key[1, 2, 4])
    torch.testing.assert_close(ScaledDot()(query, key)[1, 2, 3, 4], query[1, 2, 3] @ key[1, 2, 4] / D**0.5)
    additive = Additive(D, D, 17)
    bilinear = Bilinear(D, D)
    expected = additive.v(torch.tanh(additive.query(query[0, 1, 2]) + additive.key(key[0, 1, 3])))
    torch.testing.assert_close(additive(query, additive.prepare(key))[0, 1, 2, 3], expected[0])
    expected = query[0, 1, 2] @ bilinear.key.weight @ key[0, 1, 3]
    torch.testing.assert_close(bilinear(query, bilinear.prepare(key))[0, 1, 2, 3], expected)


@pytest.mark.parametrize("score", [Dot(), Additive(D, D, 5), Bilinear(D, D)])
def test_every_score_mixes_values_by_its_weights(score: object) -> None:
    query, key, value = random_qkv()
    prepared = score.prepare(key)  # type: ignore[attr-defined]
    with trace(full_precision=True) as captured:
        context = attend(query, prepared, value, score=score, mask=bind(causal()), site="x")  # type: ignore[arg-type]
    torch.testing.assert_close(context, torch.from_numpy(captured["x"].weights) @ value)


def test_unnormalized_weights_are_the_scores_and_hard_weights_are_one_hot() -> None:
    query, key, value = random_qkv()
    mask = bind(window(2))
    torch.testing.assert_close(
        attend(query, key, value, score=Dot(), normalize=unnormalized, mask=mask),
        (query @ key.transpose(-1, -2)).masked_fill(~mask.dense, 0) @ value,
    )
    one_hot = captured_weights(normalize=hard_argmax, mask=mask)
    assert set(one_hot.unique().tolist()) == {0.0, 1.0}
    assert (one_hot.sum(-1) == 1).all()
    assert (one_hot[(~mask.dense).expand_as(one_hot)] == 0).all()


def test_hard_attention_has_a_gradient() -> None:
    query, key, value = random_qkv()
    query.requires_grad_()
    attend(query, key, value, normalize=hard_argmax).sum().backward()
    assert query.grad is not None
    assert query.grad.abs().max() > 0


def test_sampled_attention_has_the_probabilities_of_the_softmax() -> None:
    scores = torch.tensor([0.0, 1.0, 2.0]).expand(1, 1, 20_000, 3)
    frequencies = gumbel_argmax(Noise(1, 1), "x")(scores).mean(2)[0, 0]
    torch.testing.assert_close(frequencies, softmax(scores[:, :, :1])[0, 0, 0], atol=0.015, rtol=0)
    assert torch.equal(gumbel_argmax(Noise(1, 1), "x")(scores), gumbel_argmax(Noise(1, 1), "x")(scores))


def test_wrong_shapes_are_rejected_with_both_shapes() -> None:
    query, key, value = random_qkv()
    with pytest.raises(UsageError, match=r"\[2, 3, 7, 11\] and \[2, 3, 6, 13\]"):
        attend(query, key, value[:, :, 1:])
