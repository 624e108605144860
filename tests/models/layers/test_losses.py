"""The vocabulary loss in chunks equals torch's cross-entropy."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from regard.models.layers import losses
from regard.models.layers.losses import vocabulary_loss


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_value_and_gradients_are_those_of_cross_entropy(
    with_bias: bool, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "MAX_CHUNK_LOGITS", 128 * 101)  # several chunks, the last one short
    torch.manual_seed(0)
    hidden = torch.randn(149, 16)
    weight = torch.randn(101, 16)
    bias = torch.randn(101)
    targets = torch.randint(0, 101, (149,))
    values_and_gradients = []
    for is_chunked in (True, False):
        inputs = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        inputs += [bias.clone().requires_grad_()] if with_bias else []
        input_bias = inputs[2] if with_bias else None
        if is_chunked:
            loss, plain = vocabulary_loss(inputs[0], inputs[1], input_bias, targets, smoothing)
        else:
            logits = functional.linear(inputs[0], inputs[1], input_bias)
            loss = functional.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
            plain = functional.cross_entropy(logits, targets, reduction="sum")
        (loss * 0.37).backward()
        values_and_gradients.append([loss.detach(), plain.detach(), *(tensor.grad for tensor in inputs)])
    torch.testing.assert_close(values_and_gradients[0], values_and_gradients[1], rtol=1e-4, atol=1e-4)


def test_huge_logits_stay_finite() -> None:
    hidden = torch.full((2, 4), 1e4, requires_grad=True)
    weight = torch.tensor([[1.0] * 4, [-1.0] * 4, [0.0] * 4], requires_grad=True)
    loss, _ = vocabulary_loss(hidden, weight, None, torch.tensor([0, 1]), 0.1)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(hidden.grad).all()
