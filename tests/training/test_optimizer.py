"""Updates: orthogonalised matrices, groups of matrices, the schedule, and states that resume with the same bits."""

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


def build_weights(precision: str = "float32") -> FlatWeights:
    model = build_model(SMALL)
    initialize_weights(model, 1)
    return FlatWeights(model, precision)


@pytest.mark.parametrize("shape", [(16, 16), (24, 8), (8, 24)])
def test_all_singular_values_come_near_one_and_singular_vectors_stay(shape):
    matrices = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    orthogonal = orthogonalize(matrices)
    singular_values = torch.linalg.svdvals(orthogonal)
    assert singular_values.min() > 0.5
    assert singular_values.max() < 1.4
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    in_singular_basis = left.mT @ orthogonal @ right.mT
    diagonal = torch.diag_embed(in_singular_basis.diagonal(dim1=1, dim2=2))
    assert (in_singular_basis - diagonal).abs().max() < 1e-4


def test_a_matrix_of_zeros_stays_zero():
    assert not orthogonalize(torch.zeros(1, 4, 4)).any()


def test_matrices_of_one_shape_are_adjacent_and_cover_all_linear_layers():
    weights = build_weights()
    num_elements = [group.num_matrices * group.shape[0] * group.shape[1] for group in weights.groups]
    assert sum(num_elements) == weights.hidden_stop
    assert {group.shape for group in weights.groups} == {(8, 8), (8, 24), (24, 8)}
    squares = next(group for group in weights.groups if group.shape == (8, 8))
    assert squares.num_matrices == 2 * 4 + 2 * 8  # query, key, value and out; twice in a decoder block
    indices = weights.split(torch.arange(len(weights.master)).float())
    for name, view in indices.items():
        is_hidden = name.startswith(("encoder", "decoder")) and view.dim() == 2
        assert bool((view < weights.hidden_stop).all()) == is_hidden, name
    first = squares.view(weights.master)[0]
    assert first.data_ptr() == weights.master[squares.start :].data_ptr()


@pytest.mark.parametrize("kind", ["muon", "adamw"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_saved_state_resumes_with_the_same_bits(kind, precision):
    config = TrainingConfig(optimizer=kind, weight_decay=0.01, learning_rate=1e-2, muon_learning_rate=0.02)
    rng = torch.Generator().manual_seed(2)
    gradients = [torch.randn(len(build_weights().master), generator=rng) for _ in range(6)]

    def update(optimizer: Optimizer, gradients: list[torch.Tensor]) -> None:
        for gradient in gradients:
            optimizer.weights.gradient.copy_(gradient)
            optimizer.reduce_gradient(0.5)
            optimizer.update(1e-2)

    uninterrupted = Optimizer(build_weights(precision), config)
    update(uninterrupted, gradients)
    interrupted = Optimizer(build_weights(precision), config)
    update(interrupted, gradients[:3])
    resumed = Optimizer(build_weights(precision), config)
    resumed.weights.master.copy_(interrupted.weights.master)
    resumed.weights.copy_to_model()
    resumed.load({name: tensor.clone() for name, tensor in interrupted.state().items()})
    update(resumed, gradients[3:])
    assert torch.equal(resumed.weights.master, uninterrupted.weights.master)
    assert torch.equal(resumed.averaged_weights, uninterrupted.averaged_weights)
    assert not torch.equal(uninterrupted.weights.master, build_weights().master)


def test_muon_changes_matrices_by_the_learning_rate_at_any_size_of_the_gradient():
    config = TrainingConfig(optimizer="muon", max_gradient_norm=0.0, learning_rate=0.1, muon_learning_rate=0.1)
    changes = []
    for scale in (1e-6, 1e3):
        weights = build_weights()
        before = weights.master.clone()
        optimizer = Optimizer(weights, config)
        gradient = torch.randn(len(weights.master), generator=torch.Generator().manual_seed(3))
        weights.gradient.copy_(gradient * scale)
        optimizer.reduce_gradient(1.0)
        optimizer.update(0.1)
        changes.append((weights.master - before)[: weights.hidden_stop])
    assert torch.allclose(changes[0], changes[1], atol=1e-5)
    for group in weights.groups:
        singular_values = torch.linalg.svdvals(group.view(changes[0]))
        assert singular_values.min() > 0.05
        assert singular_values.max() < 0.14 * max(1, group.shape[0] / group.shape[1]) ** 0.5


def test_the_root_schedule_warms_up_decays_and_cools_down():
    config = TrainingConfig(schedule="root", optimizer="muon")

    def rate(step: int, progress: float) -> float:
        return learning_rate(config, 1.0, step, progress)

    assert rate(0, 0.0) == pytest.approx(1 / 200)
    assert rate(300, 0.1) == 1
    assert rate(2399, 0.5) == pytest.approx(0.5)
    assert rate(2399, 0.85) == pytest.approx(0.25)
    assert rate(10**6, 1.0) == 0


def test_the_state_of_another_optimizer_is_rejected():
    adamw = Optimizer(build_weights(), TrainingConfig(optimizer="adamw"))
    with pytest.raises(CheckpointError, match="another version"):
        Optimizer(build_weights(), TrainingConfig(optimizer="muon")).load(adamw.state())
