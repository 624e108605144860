"""`TrainingLoop`: updates, schedule, noise and errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.errors import ConfigError, TrainingError, UsageError
from regard.nn import MultiHeadAttention, Noise, TrainingLoop


def build_model() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(5, 3)


def loss_of(model: nn.Linear, noise: Noise) -> torch.Tensor:
    generator = torch.Generator().manual_seed(noise.step)
    return (model(torch.randn(7, 5, generator=generator)) - 1).square().mean()


def train(loop: TrainingLoop, model: nn.Linear) -> None:
    for noise in loop:
        loop.update(loss_of(model, noise))


def test_an_update_is_that_of_adamw_with_clipped_gradients() -> None:
    model = build_model()
    loop = TrainingLoop(model, steps=1, learning_rate=0.1, schedule="constant", warmup_steps=1, max_gradient_norm=0.01)
    train(loop, model)
    reference = build_model()
    groups = [{"params": [reference.weight], "weight_decay": 0.1}, {"params": [reference.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.98))
    loss_of(reference, Noise(seed=1, step=0)).backward()
    nn.utils.clip_grad_norm_(reference.parameters(), 0.01)
    optimizer.step()
    assert torch.equal(model.weight, reference.weight)
    assert torch.equal(model.bias, reference.bias)


def test_the_learning_rate_of_any_optimizer_follows_the_schedule() -> None:
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=9.0)
    loop = TrainingLoop(model, steps=10, learning_rate=0.4, schedule="constant", warmup_steps=4, optimizer=optimizer)
    rates = []
    for noise in loop:
        loop.update(loss_of(model, noise))
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.2, 0.3, *[0.4] * 7])


def test_noise_has_seed_and_step_and_an_interrupted_loop_goes_on() -> None:
    model = build_model()
    loop = TrainingLoop(model, steps=5, seed=7)
    seen = []
    for noise in loop:
        seen.append(noise)
        loop.update(loss_of(model, noise))
        if noise.step == 2:
            break
    train(loop, model)
    assert seen == [Noise(7, 0), Noise(7, 1), Noise(7, 2)]
    assert loop.step == 5
    uninterrupted = build_model()
    train(TrainingLoop(uninterrupted, steps=5, seed=7), uninterrupted)
    assert torch.equal(model.weight, uninterrupted.weight)


def test_the_loop_sets_the_mode_names_sites_and_leaves_frozen_weights() -> None:
    model = nn.ModuleDict({"reader": MultiHeadAttention(6, 2), "frozen": nn.Linear(2, 2)}).eval()
    model["frozen"].requires_grad_(False)
    before = model["frozen"].weight.clone()
    loop = TrainingLoop(model, steps=1)
    hidden = torch.ones(3, 6)
    for noise in loop:
        assert model.training
        loop.update(model["reader"](hidden, hidden, hidden, noise=noise)[0].square().mean())
    assert not model.training
    assert model["reader"].site == "reader"
    assert torch.equal(model["frozen"].weight, before)


def test_a_step_without_an_update_is_an_error() -> None:
    with pytest.raises(UsageError, match="step 0 of the training loop made no update"):
        for _ in TrainingLoop(build_model(), steps=2):
            pass


def test_a_loss_that_is_not_finite_changes_no_weight() -> None:
    model = build_model()
    before = model.weight.clone()
    loop = TrainingLoop(model, steps=2)
    with pytest.raises(TrainingError, match=r"step 0: the loss \(nan\)"):
        for noise in loop:
            loop.update(loss_of(model, noise) * torch.nan)
    assert torch.equal(model.weight, before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="schedule"):
        TrainingLoop(build_model(), steps=2, schedule="cosin")
