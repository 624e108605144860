"""Linear maps from hidden states to labels or numbers: multinomial logistic regression and ridge regression.

Both minimise a convex objective on standardised states, so that the result depends on nothing but data and penalty:

    logistic:  mean cross-entropy + λ / 2N · ‖W‖²      by L-BFGS, to a small gradient
    ridge:     mean squared error + λ / N · ‖w‖²       in closed form
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]
MAX_ITERATIONS = 200
TOLERANCE = 2e-4  # largest component of the gradient at the optimum
HISTORY = 10  # of L-BFGS
MIN_DEVIATION = 1e-6  # of a dimension that is standardised


@dataclass(frozen=True)
class LinearProbe:
    """A linear map of standardised hidden states."""

    mean: Tensor  # [D]
    deviation: Tensor  # [D]
    weight: Tensor  # [D, K]
    bias: Tensor  # [K]
    gradient: float = 0.0  # largest component of the objective's gradient
    has_converged: bool = True

    def outputs(self, states: Floats) -> NDArray[np.floating[Any]]:
        """Logits or numbers, [N, K]."""
        features = (torch.from_numpy(states).to(self.mean.dtype) - self.mean) / self.deviation
        return (features @ self.weight + self.bias).numpy()


def standardize(states: Floats) -> tuple[Tensor, Tensor, Tensor]:
    """Standardised states [N, D], with the mean and the deviation of each dimension."""
    features = torch.from_numpy(states)
    mean = features.mean(0)
    deviation = features.std(0, correction=0).clamp_min(MIN_DEVIATION)
    return (features - mean) / deviation, mean, deviation


def logistic_loss(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, penalty: float) -> Tensor:
    """Mean cross-entropy and the L2 penalty of the weights: the objective of `fit_logistic`."""
    return cross_entropy(features @ weight + bias, labels) + penalty / (2 * len(labels)) * weight.square().sum()


def fit_logistic(
    states: Floats,  # [N, D]
    labels: Indices,  # [N]
    num_labels: int,
    *,
    penalty: float = 1.0,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> LinearProbe:
    """Fit multinomial logistic regression; a label without examples gets a low logit.

    >>> states = np.array([[-1.0], [-0.5], [0.5], [1.0]])
    >>> fit_logistic(states, np.array([0, 0, 1, 1]), 2).outputs(states).argmax(1).tolist()
    [0, 0, 1, 1]
    """
    features, mean, deviation = standardize(states)
    targets = torch.from_numpy(labels)
    weight = features.new_zeros(features.shape[1], num_labels).requires_grad_()
    bias = features.new_zeros(num_labels).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=max_iterations,
        tolerance_grad=tolerance,
        tolerance_change=0,
        history_size=HISTORY,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = logistic_loss(features, targets, weight, bias, penalty)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    closure()
    gradient = max(_largest(weight.grad), _largest(bias.grad))
    return LinearProbe(
        mean,
        deviation,
        weight=weight.detach(),
        bias=bias.detach(),
        gradient=gradient,
        has_converged=gradient <= tolerance,
    )


def _largest(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.abs().max())


def fit_ridge(states: Floats, values: Floats, *, penalty: float = 1.0) -> LinearProbe:
    """Fit ridge regression of one number.

    >>> states = np.array([[0.0], [1.0], [2.0]])
    >>> fit_ridge(states, np.array([1.0, 3.0, 5.0]), penalty=0).outputs(states).round(6).ravel().tolist()
    [1.0, 3.0, 5.0]
    """
    features, mean, deviation = standardize(states.astype(np.float64))
    targets = torch.from_numpy(values.astype(np.float64))
    center = targets.mean()
    gram = features.T @ features + penalty * torch.eye(features.shape[1], dtype=torch.float64)
    weight = torch.linalg.lstsq(gram, (features.T @ (targets - center))[:, None]).solution
    return LinearProbe(mean, deviation, weight=weight, bias=center[None])
