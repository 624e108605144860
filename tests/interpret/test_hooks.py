"""Foreign models: outputs are bit-identical, and captured weights are those that they use."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.errors import UsageError
from tests import families

HIDDEN = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
PADDING = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()


def torch_encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.parametrize("has_gradients", [True, False])
@pytest.mark.parametrize("is_padded", [True, False])
def test_torchs_encoder_is_traced_on_its_slow_and_on_its_fast_path(has_gradients: bool, is_padded: bool) -> None:
    model = torch_encoder()
    options = {"src_key_padding_mask": PADDING} if is_padded else {}
    with torch.set_grad_enabled(has_gradients):
        expected = model(HIDDEN, **options)
        with regard.trace_module(model) as captured:
            traced = model(HIDDEN, **options)
    assert torch.equal(expected, traced)
    assert [*captured] == ["encoder.0.self", "encoder.1.self"]
    attention = model.layers[0].self_attn  # type: ignore[union-attr,index]
    query, key, _ = nn.functional.linear(HIDDEN, attention.in_proj_weight, attention.in_proj_bias).chunk(3, dim=-1)
    heads = [tensor.unflatten(-1, (2, 8)).transpose(1, 2) for tensor in (query, key)]
    scores = heads[0] @ heads[1].transpose(-1, -2) / 8**0.5
    if is_padded:
        scores = scores.masked_fill(PADDING[:, None, None], -torch.inf)
    weights = captured["encoder.0.self"].weights
    expected_weights = scores.softmax(-1).detach().numpy()
    # on its fast path torch computes no padded rows
    is_query = ~PADDING.numpy() if is_padded else np.ones_like(PADDING.numpy())
    for row in range(2):
        assert np.abs(weights[row][:, is_query[row]] - expected_weights[row][:, is_query[row]]).max() < 1e-3
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_torchs_whole_transformer_and_single_heads() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval()
    with torch.no_grad():
        expected = model(HIDDEN, HIDDEN)
        with regard.trace_module(model, heads=[1]) as captured:
            assert torch.equal(expected, model(HIDDEN, HIDDEN))
    assert {site: captured[site].shape for site in captured} == {
        "encoder.0.self": (2, 1, 5, 5),
        "decoder.0.self": (2, 1, 5, 5),
        "decoder.0.cross": (2, 1, 5, 5),
    }


def test_our_models_are_traced_too() -> None:
    model = families.encoder()
    expected = families.states(model)
    with regard.trace_module(model, layers=[1], heads=[0]) as captured:
        traced = families.states(model)
    assert all(np.array_equal(first, second) for first, second in zip(expected, traced, strict=True))
    assert [*captured] == ["encoder.1.self"]


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_models_of_transformers(kernel: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=30
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    model.set_attn_implementation(kernel)
    ids = torch.randint(1, 30, (2, 7))
    mask = torch.ones(2, 7).long()
    mask[1, 5:] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).last_hidden_state
        with regard.trace_module(model, layers=[1]) as captured:
            traced = model(ids, attention_mask=mask).last_hidden_state
        model.set_attn_implementation("eager")
        expected_weights = model(ids, attention_mask=mask, output_attentions=True).attentions[1].numpy()
    assert torch.equal(expected, traced)
    assert [*captured] == ["encoder.1.self"]
    assert np.abs(captured["encoder.1.self"].weights - expected_weights).max() < 1e-3
    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    assert "eager" not in functions._local_mapping and "sdpa" not in functions._local_mapping


def test_what_cannot_be_traced_is_rejected() -> None:
    with pytest.raises(UsageError, match="Linear has no attention"), regard.trace_module(nn.Linear(2, 2)):
        pass
    model = torch_encoder()
    with pytest.raises(UsageError, match=r"no layer 7 \(did you mean 1\?\)"), regard.trace_module(model, layers=[7]):
        model(HIDDEN)
    with pytest.raises(UsageError, match=r"did you mean encoder\.0\.self:1"), regard.trace_module(model, heads=[4]):
        model(HIDDEN)
