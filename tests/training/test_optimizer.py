"""Updates: orthogonal directions, groups of matrices, and states that can be taken up again."""

from __future__ import annotations

import pytest
import torch

from regard.config.model import StackConfig, TranslatorConfig
from regard.config.training import TrainingConfig
from regard.errors import CheckpointError
from regard.models import build
from regard.models.base import start_weights
from regard.training.muon import orthogonal
from regard.training.optimizer import Optimizer, learning_rate
from regard.training.weights import FlatWeights

STACK = StackConfig(layers=2, heads=2, feedforward=24)
SMALL = TranslatorConfig(source_vocabulary=30, target_vocabulary=30, width=8, encoder=STACK, decoder=STACK, tied=False)


def flat(precision: str = "float32") -> FlatWeights:
    model = build(SMALL)
    start_weights(model, 1)
    return FlatWeights(model, precision)


@pytest.mark.parametrize("shape", [(16, 16), (24, 8), (8, 24)])
def test_all_singular_values_come_near_one_and_directions_stay(shape):
    given = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    made = orthogonal(given)
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.5
    assert values.max() < 1.4
    left, _, right = torch.linalg.svd(given, full_matrices=False)
    inner = left.mT @ made @ right.mT
    assert (inner - torch.diag_embed(inner.diagonal(dim1=1, dim2=2))).abs().max() < 1e-4


def test_orthogonal_takes_a_matrix_of_zeros():
    assert not orthogonal(torch.zeros(1, 4, 4)).any()


def test_matrices_of_one_shape_lie_side_by_side_and_cover_all_linear_layers():
    weights = flat()
    assert sum(group.count * group.shape[0] * group.shape[1] for group in weights.groups) == weights.inner
    assert {group.shape for group in weights.groups} == {(8, 8), (8, 24), (24, 8)}
    squares = next(group for group in weights.groups if group.shape == (8, 8))
    assert squares.count == 2 * 4 + 2 * 8  # query, key, value and out; twice in a decoder's block
    named = weights.named(torch.arange(len(weights.master)).float())
    for name, part in named.items():
        inner = name.startswith(("encoder", "decoder")) and part.dim() == 2
        assert bool((part < weights.inner).all()) == inner, name
    first = squares.of(weights.master)[0]
    assert first.data_ptr() == weights.master[squares.first :].data_ptr()


@pytest.mark.parametrize("kind", ["muon", "adamw"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_saved_state_goes_on_with_the_same_bits(kind, precision):
    config = TrainingConfig(optimizer=kind, weight_decay=0.01, learning_rate=1e-2, matrix_rate=0.02)
    drawn = torch.Generator().manual_seed(2)
    gradients = [torch.randn(len(flat().master), generator=drawn) for _ in range(6)]

    def go(optimizer: Optimizer, some: list[torch.Tensor]) -> None:
        for gradient in some:
            optimizer.weights.gradient.copy_(gradient)
            optimizer.gradient_norm(0.5)
            optimizer.update(1e-2)

    whole = Optimizer(flat(precision), config)
    go(whole, gradients)
    first = Optimizer(flat(precision), config)
    go(first, gradients[:3])
    again = Optimizer(flat(precision), config)
    again.weights.master.copy_(first.weights.master)
    again.weights.publish()
    again.load({name: tensor.clone() for name, tensor in first.state().items()})
    go(again, gradients[3:])
    assert torch.equal(again.weights.master, whole.weights.master)
    assert torch.equal(again.evaluated, whole.evaluated)
    assert not torch.equal(whole.weights.master, flat().master)


def test_muon_moves_matrices_by_the_rate_whatever_the_size_of_the_gradient():
    moved = []
    for scale in (1e-6, 1e3):
        weights = flat()
        before = weights.master.clone()
        optimizer = Optimizer(weights, TrainingConfig(optimizer="muon", clip=0.0, learning_rate=0.1, matrix_rate=0.1))
        gradient = torch.randn(len(weights.master), generator=torch.Generator().manual_seed(3))
        weights.gradient.copy_(gradient * scale)
        optimizer.gradient_norm(1.0)
        optimizer.update(0.1)
        moved.append((weights.master - before)[: weights.inner])
    assert torch.allclose(moved[0], moved[1], atol=1e-5)
    for group in weights.groups:
        stretched = torch.linalg.svdvals(group.of(moved[0]))
        assert stretched.min() > 0.05
        assert stretched.max() < 0.14 * max(1, group.shape[0] / group.shape[1]) ** 0.5


def test_the_rate_rises_falls_with_the_root_of_the_updates_and_cools_down():
    config = TrainingConfig(schedule="root", optimizer="muon")

    def rate(step: int, progress: float) -> float:
        return learning_rate(config, 1.0, step, progress)

    assert rate(0, 0.0) == pytest.approx(1 / 200)
    assert rate(300, 0.1) == 1
    assert rate(2399, 0.5) == pytest.approx(0.5)
    assert rate(2399, 0.85) == pytest.approx(0.25)
    assert rate(10**6, 1.0) == 0


def test_a_state_of_another_kind_is_refused():
    plain = Optimizer(flat(), TrainingConfig(optimizer="adamw"))
    with pytest.raises(CheckpointError, match="another version"):
        Optimizer(flat(), TrainingConfig(optimizer="muon")).load(plain.state())
