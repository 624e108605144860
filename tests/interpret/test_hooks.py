"""Models of others: their outputs are the same bits, and what is seen is what they weigh by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.errors import UsageError
from tests import families

STATES = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
PADDING = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()


def stack() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.parametrize("learning", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_torchs_encoder_is_watched_on_its_slow_and_on_its_fast_path(learning: bool, padded: bool) -> None:
    model, given = stack(), {"src_key_padding_mask": PADDING} if padded else {}
    with torch.set_grad_enabled(learning):
        plain = model(STATES, **given)
        with regard.trace_module(model) as seen:
            watched = model(STATES, **given)
    assert torch.equal(plain, watched)
    assert [*seen] == ["encoder.0.self", "encoder.1.self"]
    first = model.layers[0].self_attn  # type: ignore[union-attr,index]
    query, key, _ = nn.functional.linear(STATES, first.in_proj_weight, first.in_proj_bias).chunk(3, dim=-1)
    heads = [part.unflatten(-1, (2, 8)).transpose(1, 2) for part in (query, key)]
    scores = heads[0] @ heads[1].transpose(-1, -2) / 8**0.5
    if padded:
        scores = scores.masked_fill(PADDING[:, None, None], -torch.inf)
    found, wanted = seen["encoder.0.self"].weights, scores.softmax(-1).detach().numpy()
    rows = ~PADDING.numpy() if padded else np.ones_like(PADDING.numpy())  # on its fast path torch has no other rows
    for row in range(2):
        assert np.abs(found[row][:, rows[row]] - wanted[row][:, rows[row]]).max() < 1e-3
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_torchs_whole_transformer_and_single_heads() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval()
    with torch.no_grad():
        plain = model(STATES, STATES)
        with regard.trace_module(model, heads=[1]) as seen:
            assert torch.equal(plain, model(STATES, STATES))
    assert {site: seen[site].shape for site in seen} == {
        "encoder.0.self": (2, 1, 5, 5),
        "decoder.0.self": (2, 1, 5, 5),
        "decoder.0.cross": (2, 1, 5, 5),
    }


def test_our_models_are_watched_too() -> None:
    model = families.encoder()
    plain = families.states(model)
    with regard.trace_module(model, layers=[1], heads=[0]) as seen:
        watched = families.states(model)
    assert all(np.array_equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert [*seen] == ["encoder.1.self"]


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_models_of_transformers(kernel: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=30
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    model.set_attn_implementation(kernel)
    ids, mask = torch.randint(1, 30, (2, 7)), torch.ones(2, 7).long()
    mask[1, 5:] = 0
    with torch.no_grad():
        plain = model(ids, attention_mask=mask).last_hidden_state
        with regard.trace_module(model, layers=[1]) as seen:
            watched = model(ids, attention_mask=mask).last_hidden_state
        model.set_attn_implementation("eager")
        wanted = model(ids, attention_mask=mask, output_attentions=True).attentions[1].numpy()
    assert torch.equal(plain, watched)
    assert [*seen] == ["encoder.1.self"]
    assert np.abs(seen["encoder.1.self"].weights - wanted).max() < 1e-3
    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    assert "eager" not in functions._local_mapping and "sdpa" not in functions._local_mapping


def test_what_cannot_be_watched_is_said() -> None:
    with pytest.raises(UsageError, match="Linear has no attention"), regard.trace_module(nn.Linear(2, 2)):
        pass
    model = stack()
    with pytest.raises(UsageError, match=r"no layer 7 \(did you mean 1\?\)"), regard.trace_module(model, layers=[7]):
        model(STATES)
    with pytest.raises(UsageError, match=r"did you mean encoder\.0\.self:1"), regard.trace_module(model, heads=[4]):
        model(STATES)
