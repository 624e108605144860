"""Fused projections of unequal sizes (grouped key–value heads, d_v ≠ d_k): initial weights, Muon's matrices, LoRA."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from regard.config.block import BlockConfig
from regard.config.training import LORA_TARGETS, TrainingConfig
from regard.errors import ConfigError
from regard.models.base import Model, initialize_weights
from regard.models.layers.block import TransformerBlock
from regard.models.layers.lora import LoraSettings, add_lora, lora_layers, merge_lora
from regard.training.flat_weights import FlatWeights
from regard.training.optimizer import Optimizer

HIDDEN_SIZE = 24
QUERY_ROWS, KEY_ROWS, VALUE_ROWS = 24, 12, 14  # four query heads of 6; two key heads of 6 and value heads of 7
GROUPED = BlockConfig(
    hidden_size=HIDDEN_SIZE, num_heads=4, num_kv_heads=2, value_size=7, feed_forward_size=29, cross_attention=True
)
EQUAL = BlockConfig(hidden_size=HIDDEN_SIZE, num_heads=4, feed_forward_size=29)


class OneBlock(Model):
    """A model of a single block."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.block = TransformerBlock(config)


def split_qkv(weight: Tensor) -> dict[str, Tensor]:
    return dict(zip(("query", "key", "value"), weight.split([QUERY_ROWS, KEY_ROWS, VALUE_ROWS]), strict=True))


def test_each_projection_is_initialised_by_its_own_size() -> None:
    model = OneBlock(GROUPED)
    initialize_weights(model, seed=1)
    for name, matrix in split_qkv(model.block.attention.qkv.weight).items():
        bound = (6 / (HIDDEN_SIZE + len(matrix))) ** 0.5
        assert 0.9 * bound < float(matrix.detach().abs().max()) <= bound, name
    key = model.block.cross_attention.key_value.weight[:KEY_ROWS]
    assert float(key.detach().abs().max()) > (6 / (HIDDEN_SIZE + KEY_ROWS + VALUE_ROWS)) ** 0.5


def test_equal_projections_are_initialised_as_one_draw() -> None:
    model = OneBlock(EQUAL)
    initialize_weights(model, seed=1)
    bound = (6 / (2 * HIDDEN_SIZE)) ** 0.5
    expected = torch.empty(3 * HIDDEN_SIZE, HIDDEN_SIZE)
    expected.uniform_(-bound, bound, generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.block.attention.qkv.weight, expected)


def test_muon_updates_each_projection_as_a_matrix_of_its_own() -> None:
    model = OneBlock(GROUPED)
    initialize_weights(model, seed=1)
    weights = FlatWeights(model, "float32")
    shapes = model.hidden_matrices()
    assert shapes["block.attention.qkv.weight"] == [(rows, HIDDEN_SIZE) for rows in (QUERY_ROWS, KEY_ROWS, VALUE_ROWS)]
    assert shapes["block.cross_attention.key_value.weight"] == [(KEY_ROWS, HIDDEN_SIZE), (VALUE_ROWS, HIDDEN_SIZE)]
    num_elements = [group.num_matrices * group.shape[0] * group.shape[1] for group in weights.groups]
    assert sum(num_elements) == weights.hidden_stop
    before = split_qkv(model.block.attention.qkv.weight.detach().clone())
    optimizer = Optimizer(
        weights, TrainingConfig(learning_rate=0.1, muon_learning_rate=0.1, weight_decay=0.0, ema_decay=0.0)
    )
    weights.gradient.copy_(torch.randn(len(weights.gradient), generator=torch.Generator().manual_seed(2)))
    optimizer.reduce_gradient(1.0)
    optimizer.update(0.1)
    for name, after in split_qkv(model.block.attention.qkv.weight.detach()).items():
        singular_values = torch.linalg.svdvals(after - before[name]) / 0.1
        assert 0.5 < float(singular_values.min()) <= float(singular_values.max()) < 1.4, name


def adapted_block(targets: tuple[str, ...]) -> OneBlock:
    """A block with LoRA on the targets, and a B that is not zero."""
    model = OneBlock(GROUPED)
    initialize_weights(model, seed=1)
    add_lora(model, LoraSettings(rank=3, alpha=5.0), targets, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in lora_layers(model).values():
            layer.lora_B.normal_(0, 1, generator=generator)
    return model


@pytest.mark.parametrize("targets", [("query", "value"), ("key",), LORA_TARGETS], ids="+".join)
@torch.no_grad()
def test_lora_on_unequal_projections_equals_merged_weights(targets: tuple[str, ...]) -> None:
    model = adapted_block(targets)
    merged = merge_lora(model, dict(model.named_parameters()))
    generator = torch.Generator().manual_seed(3)
    for name, layer in lora_layers(model).items():
        hidden = torch.randn(5, layer.in_features, generator=generator)
        expected = linear(hidden, merged[f"{name}.weight"], layer.bias)
        assert torch.allclose(layer(hidden), expected, atol=1e-5), name
    frozen = split_qkv(model.block.attention.qkv.weight)
    for part, weight in split_qkv(merged["block.attention.qkv.weight"]).items():
        assert torch.equal(weight, frozen[part]) == (part not in targets), part
    qkv = lora_layers(model)["block.attention.qkv"]
    hidden = torch.randn(5, HIDDEN_SIZE, generator=generator)
    keys_and_values = qkv.project_rows(hidden, QUERY_ROWS, QUERY_ROWS + KEY_ROWS + VALUE_ROWS)
    assert torch.allclose(keys_and_values, qkv(hidden)[:, QUERY_ROWS:], atol=1e-5)


def test_the_rank_is_limited_by_the_narrowest_adapted_projection() -> None:
    add_lora(OneBlock(GROUPED), LoraSettings(rank=14, alpha=1.0), ("query", "value"), seed=1)
    with pytest.raises(ConfigError, match=r"lora.rank \(13\) exceeds the width of block.attention.qkv \(12\)"):
        add_lora(OneBlock(GROUPED), LoraSettings(rank=13, alpha=1.0), ("key",), seed=1)
