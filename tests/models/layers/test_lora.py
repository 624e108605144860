"""LoRA layers: outputs equal those of merged weights, whatever the family; reproducible dropout; refused ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.dropout import Noise
from regard.attention.packed_batch import SelectedTokens
from regard.config.training import LORA_TARGETS
from regard.errors import ConfigError
from regard.models import build_model
from regard.models.base import Model
from regard.models.layers.lora import LoraSettings, add_lora, is_lora_weight, lora_layers, lora_noise, merge_lora
from tests.families import SOURCE, encoder, gpt, transformer


def adapted(model: Model, targets: tuple[str, ...], dropout: float = 0.0) -> Model:
    """The model with LoRA on the targets, and a B that is not zero."""
    add_lora(model, LoraSettings(rank=2, alpha=3.0, dropout=dropout), targets, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in lora_layers(model).values():
            layer.lora_B.normal_(0, 1, generator=generator)
    return model


def merged(model: Model) -> Model:
    """A plain model with the weights of a LoRA model merged."""
    plain = build_model(model.config)
    weights = merge_lora(model, dict(model.named_parameters()))
    plain.load_state_dict({name: tensor for name, tensor in weights.items() if not is_lora_weight(name)})
    return plain.eval()


def encode_selected(model: Model) -> Tensor:
    """Hidden states of the first tokens, for which the last layer computes no other queries."""
    ids, batch = model.to_tensors(SOURCE)
    states: Tensor = model(ids, batch, selected=SelectedTokens(batch, np.array([0, 5])))
    return states


CASES: dict[str, tuple[Callable[[], Model], Callable[[Model], Tensor]]] = {
    "transformer": (transformer, lambda model: model(SOURCE, SOURCE)),
    "gpt": (gpt, lambda model: model(SOURCE)),
    "encoder": (encoder, lambda model: model(*model.to_tensors(SOURCE))),
    "encoder, selected tokens": (encoder, encode_selected),
    "albert": (lambda: encoder(layer_groups=1), lambda model: model(*model.to_tensors(SOURCE))),
}


@pytest.mark.parametrize("targets", [("query", "value"), ("key",), ("out", "down"), LORA_TARGETS], ids="+".join)
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_outputs_equal_those_of_merged_weights(name: str, targets: tuple[str, ...]) -> None:
    build, forward = CASES[name]
    before = forward(build())
    model = build()
    add_lora(model, LoraSettings(rank=2, alpha=3.0), targets, seed=1)
    assert torch.equal(forward(model), before)  # B is zero at first
    outputs = forward(adapted(build(), targets))
    assert not torch.allclose(outputs, before, atol=1e-4)
    assert torch.allclose(outputs, forward(merged(adapted(build(), targets))), atol=1e-5)


@torch.no_grad()
def test_rows_of_a_fused_projection_equal_those_of_the_whole() -> None:
    model = adapted(encoder(), ("query", "value"))
    layer = lora_layers(model)["encoder.layers.0.attention.qkv"]
    hidden = torch.randn(5, 8, generator=torch.Generator().manual_seed(3))
    parts = [layer.project_rows(hidden, start, start + 8) for start in (0, 8, 16)]
    assert torch.allclose(torch.cat(parts, dim=1), layer(hidden), atol=1e-6)


@torch.no_grad()
def test_dropout_is_a_function_of_seed_step_and_site() -> None:
    model = adapted(gpt(), ("query", "value"), dropout=0.5)

    def forward(step: int) -> Tensor:
        with lora_noise(Noise(seed=1, step=step)):
            return model(SOURCE)

    assert torch.equal(forward(3), forward(3))
    assert not torch.equal(forward(3), forward(4))
    assert torch.equal(model(SOURCE), adapted(gpt(), ("query", "value"))(SOURCE))  # none outside training


def test_initial_values_are_a_function_of_the_seed() -> None:
    first, same, other = (encoder() for _ in range(3))
    for model, seed in ((first, 1), (same, 1), (other, 2)):
        add_lora(model, LoraSettings(rank=2, alpha=3.0), LORA_TARGETS, seed=seed)
    name = "encoder.layers.1.feed_forward.up.lora_A"
    assert torch.equal(first.get_parameter(name), same.get_parameter(name))
    assert not torch.equal(first.get_parameter(name), other.get_parameter(name))


def test_a_rank_above_the_width_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lora.rank \(9\) exceeds the width of encoder.layers.0.attention.qkv \(8\)"):
        add_lora(encoder(), LoraSettings(rank=9, alpha=3.0), ("query",), seed=1)
