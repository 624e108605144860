"""The vocabulary's loss equals torch's own, block by block."""

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
    monkeypatch.setattr(losses, "LOGITS", 128 * 101)  # several blocks, the last one short
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(149, 16), torch.randn(101, 16), torch.randn(101)
    targets = torch.randint(0, 101, (149,))
    found, wanted = [], []
    for results, fused in ((found, True), (wanted, False)):
        inputs = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        inputs += [bias.clone().requires_grad_()] if with_bias else []
        extra = inputs[2] if with_bias else None
        if fused:
            loss, plain = vocabulary_loss(inputs[0], inputs[1], extra, targets, smoothing)
        else:
            logits = functional.linear(inputs[0], inputs[1], extra)
            loss = functional.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
            plain = functional.cross_entropy(logits, targets, reduction="sum")
        (loss * 0.37).backward()
        results += [loss.detach(), plain.detach(), *(tensor.grad for tensor in inputs)]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_huge_logits_stay_finite() -> None:
    hidden = torch.full((2, 4), 1e4, requires_grad=True)
    weight = torch.tensor([[1.0] * 4, [-1.0] * 4, [0.0] * 4], requires_grad=True)
    loss, _ = vocabulary_loss(hidden, weight, None, torch.tensor([0, 1]), 0.1)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(hidden.grad).all()
