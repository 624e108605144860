"""From scores to attention weights: sparsemax, top-k and equal weights, with masked keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.scores import TopK, softmax, sparsemax, uniform
from tests.models.reference import project_onto_simplex


def random_scores(seed: int, keys: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 3, 5, keys, generator=generator) * 2
    allowed = torch.rand(2, 1, 5, keys, generator=generator) > 0.3
    allowed[0, 0, 0] = False  # a query without keys
    return scores, allowed


@pytest.mark.parametrize("seed", range(3))
def test_sparsemax_is_the_projection_onto_the_simplex(seed: int) -> None:
    scores, allowed = random_scores(seed)
    weights = sparsemax(scores, allowed)
    for index in np.ndindex(2, 3, 5):
        keys = allowed[index[0], 0, index[2]]
        expected = np.zeros(7)
        if keys.any():
            expected[keys.numpy()] = project_onto_simplex(scores[index][keys].double().numpy())
        np.testing.assert_allclose(weights[index], expected, atol=1e-5)
    assert (weights == 0).float().mean() > 0.3


def test_the_gradient_of_sparsemax_is_that_of_the_projection() -> None:
    scores = torch.randn(1, 1, 4, 6, dtype=torch.float32, generator=torch.Generator().manual_seed(3))
    scores.requires_grad_()
    direction = torch.randn(1, 1, 4, 6, generator=torch.Generator().manual_seed(4))
    weights = sparsemax(scores)
    (gradient,) = torch.autograd.grad((weights * direction).sum(), scores)
    support = (weights > 0).float()
    mean = (direction * support).sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
    torch.testing.assert_close(gradient, support * (direction - mean))


@pytest.mark.parametrize("k", [1, 3, 9])
def test_top_k_keeps_the_best_allowed_keys(k: int) -> None:
    scores, allowed = random_scores(5)
    weights = TopK(k)(scores, allowed)
    for index in np.ndindex(2, 3, 5):
        keys = allowed[index[0], 0, index[2]]
        best = [key for key in scores[index].argsort(descending=True).tolist() if keys[key]][:k]
        expected = torch.zeros(7)
        if best:
            expected[best] = torch.softmax(scores[index][best], 0)
        torch.testing.assert_close(weights[index], expected)


def test_uniform_attention_ignores_the_scores() -> None:
    scores, allowed = random_scores(6)
    expected = allowed.float() / allowed.sum(-1, keepdim=True).clamp_min(1)
    torch.testing.assert_close(uniform(scores, allowed), expected.expand_as(scores))
    torch.testing.assert_close(uniform(scores), softmax(torch.zeros_like(scores)))
