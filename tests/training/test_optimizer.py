"""Updates: orthogonal directions, groups of matrices, and states that can be taken up again."""

from __future__ import annotations

import pytest
import torch

from regard.config.models import StackConfig, TransformerConfig
from regard.config.training import TrainingConfig
from regard.errors import CheckpointError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.training.flat_weights import FlatWeights
from regard.training.muon import orthogonalize
from regard.training.optimizer import Optimizer
from regard.training.schedule import learning_rate

STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=24)
SMALL = TransformerConfig(
    source_vocab_size=30, target_vocab_size=30, hidden_size=8, encoder=STACK, decoder=STACK, tie_embeddings=False
)


def flat(precision: str = "float32") -> FlatWeights:
    model = build_model(SMALL)
    initialize_weights(model, 1)
    return FlatWeights(model, precision)


@pytest.mark.parametrize("shape", [(16, 16), (24, 8), (8, 24)])
def test_all_singular_values_come_near_one_and_directions_stay(shape):
    given = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    made = orthogonalize(given)
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.5
    assert values.max() < 1.4
    left, _, right = torch.linalg.svd(given, full_matrices=False)
    inner = left.mT @ made @ right.mT
    assert (inner - torch.diag_embed(inner.diagonal(dim1=1, dim2=2))).abs().max() < 1e-4


def test_orthogonal_takes_a_matrix_of_zeros():
    assert not orthogonalize(torch.zeros(1, 4, 4)).any()


def test_matrices_of_one_shape_lie_side_by_side_and_cover_all_linear_layers():
    weights = flat()
    assert sum(group.num_predictions * group.shape[0] * group.shape[1] for group in weights.groups) == weights.inner
    assert {group.shape for group in weights.groups} == {(8, 8), (8, 24), (24, 8)}
    squares = next(group for group in weights.groups if group.shape == (8, 8))
    assert squares.num_predictions == 2 * 4 + 2 * 8  # query, key, value and out; twice in a decoder's block
    named = weights.split(torch.arange(len(weights.master)).float())
    for name, part in named.items():
        inner = name.startswith(("encoder", "decoder")) and part.dim() == 2
        assert bool((part < weights.inner).all()) == inner, name
    first = squares.view(weights.master)[0]
    assert first.data_ptr() == weights.master[squares.start :].data_ptr()


@pytest.mark.parametrize("kind", ["muon", "adamw"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_saved_state_goes_on_with_the_same_bits(kind, precision):
    config = TrainingConfig(optimizer=kind, weight_decay=0.01, learning_rate=1e-2, muon_learning_rate=0.02)
    drawn = torch.Generator().manual_seed(2)
    gradients = [torch.randn(len(flat().master), generator=drawn) for _ in range(6)]

    def go(optimizer: Optimizer, some: list[torch.Tensor]) -> None:
        for gradient in some:
            optimizer.weights.gradient.copy_(gradient)
            optimizer.reduce_gradient(0.5)
            optimizer.update(1e-2)

    whole = Optimizer(flat(precision), config)
    go(whole, gradients)
    first = Optimizer(flat(precision), config)
    go(first, gradients[:3])
    again = Optimizer(flat(precision), config)
    again.weights.master.copy_(first.weights.master)
    again.weights.copy_to_model()
    again.load({name: tensor.clone() for name, tensor in first.state().items()})
    go(again, gradients[3:])
    assert torch.equal(again.weights.master, whole.weights.master)
    assert torch.equal(again.averaged_weights, whole.averaged_weights)
    assert not torch.equal(whole.weights.master, flat().master)


def test_muon_moves_matrices_by_the_rate_whatever_the_size_of_the_gradient():
    moved = []
    for scale in (1e-6, 1e3):
        weights = flat()
        before = weights.master.clone()
        optimizer = Optimizer(
            weights, TrainingConfig(optimizer="muon", max_gradient_norm=0.0, learning_rate=0.1, muon_learning_rate=0.1)
        )
        gradient = torch.randn(len(weights.master), generator=torch.Generator().manual_seed(3))
        weights.gradient.copy_(gradient * scale)
        optimizer.reduce_gradient(1.0)
        optimizer.update(0.1)
        moved.append((weights.master - before)[: weights.inner])
    assert torch.allclose(moved[0], moved[1], atol=1e-5)
    for group in weights.groups:
        stretched = torch.linalg.svdvals(group.view(moved[0]))
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
