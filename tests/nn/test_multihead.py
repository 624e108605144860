"""`MultiHeadAttention` agrees with `torch.nn.MultiheadAttention`, and reports to traces."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import regard
from regard.errors import ConfigError, UsageError
from regard.nn import MultiHeadAttention, Noise, causal, name_sites, padding, window
from tests.scale import scaled

TOLERANCE = 1e-6
HEADS = 3
HEAD_SIZE = 5
WIDTH = HEADS * HEAD_SIZE
BATCH = 2
QUERIES = 7
KEYS = 11


def build_pair(**options: Any) -> tuple[nn.MultiheadAttention, MultiHeadAttention]:
    """Torch's module and ours with the same weights, none of them zero."""
    theirs = nn.MultiheadAttention(WIDTH, HEADS, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    ours = MultiHeadAttention(WIDTH, HEADS, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def assert_close(ours: Tensor | None, theirs: Tensor | None) -> None:
    if theirs is None:
        assert ours is None
        return
    assert ours is not None
    assert ours.shape == theirs.shape
    assert float((ours - theirs).detach().abs().max()) <= TOLERANCE


def random_mask(kind: str, shape: tuple[int, ...]) -> Tensor | None:
    """A mask in torch's form that leaves every query its first key."""
    if kind == "none":
        return None
    is_masked = torch.rand(shape) < 0.4
    is_masked[..., 0] = False
    if kind == "boolean":
        return is_masked
    values = torch.randn(shape) if kind == "bias" else torch.zeros(shape)
    return values.masked_fill(is_masked, -torch.inf)


mask_kinds = st.sampled_from(["none", "boolean", "float", "bias"])


@given(
    seed=st.integers(0, 1 << 30),
    batch_first=st.booleans(),
    is_batched=st.booleans(),
    bias=st.booleans(),
    kdim=st.sampled_from([None, 13]),
    vdim=st.sampled_from([None, 17]),
    attention_mask=mask_kinds,
    per_head=st.booleans(),
    padding_mask=mask_kinds,
    need_weights=st.booleans(),
    average=st.booleans(),
    gradients=st.booleans(),
)
@settings(max_examples=scaled(600, 120), deadline=None)
def test_outputs_and_weights_are_those_of_torch(
    seed: int,
    batch_first: bool,
    is_batched: bool,
    bias: bool,
    kdim: int | None,
    vdim: int | None,
    attention_mask: str,
    per_head: bool,
    padding_mask: str,
    need_weights: bool,
    average: bool,
    gradients: bool,
) -> None:
    torch.manual_seed(seed)
    theirs, ours = build_pair(bias=bias, kdim=kdim, vdim=vdim, batch_first=batch_first)
    rows = BATCH if is_batched else 1

    def states(length: int, width: int) -> Tensor:
        if not is_batched:
            return torch.randn(length, width)
        return torch.randn(rows, length, width) if batch_first else torch.randn(length, rows, width)

    inputs = (states(QUERIES, WIDTH), states(KEYS, kdim or WIDTH), states(KEYS, vdim or WIDTH))
    options: dict[str, Any] = {
        "attn_mask": random_mask(attention_mask, (rows * HEADS, QUERIES, KEYS) if per_head else (QUERIES, KEYS)),
        "key_padding_mask": random_mask(padding_mask, (rows, KEYS) if is_batched else (KEYS,)),
        "need_weights": need_weights,
        "average_attn_weights": average,
    }
    same_kind = {attention_mask, padding_mask} <= {"none", "boolean"} or "boolean" not in (attention_mask, padding_mask)
    with torch.set_grad_enabled(gradients):
        if same_kind:
            output, weights = theirs(*inputs, **options)
        else:  # torch warns of masks of different types
            with pytest.warns(UserWarning, match="mismatched"):
                output, weights = theirs(*inputs, **options)
        our_output, our_weights = ours(*inputs, **options)
    assert_close(our_output, output)
    assert_close(our_weights, weights)


@pytest.mark.parametrize("need_weights", [True, False])
def test_the_causal_hint_needs_no_mask(need_weights: bool) -> None:
    theirs, ours = build_pair(batch_first=True)
    hidden = torch.randn(BATCH, QUERIES, WIDTH)
    triangle = nn.Transformer.generate_square_subsequent_mask(QUERIES)
    expected = theirs(hidden, hidden, hidden, attn_mask=triangle, is_causal=True, need_weights=need_weights)
    for mask in (triangle, None):
        output, weights = ours(hidden, hidden, hidden, attn_mask=mask, is_causal=True, need_weights=need_weights)
        assert_close(output, expected[0])
        assert_close(weights, expected[1])


def test_a_mask_may_be_an_expression() -> None:
    theirs, ours = build_pair(batch_first=True)
    hidden = torch.randn(BATCH, QUERIES, WIDTH)
    lengths = torch.tensor([QUERIES, 4])
    positions = torch.arange(QUERIES)
    is_far = (positions[:, None] - positions).abs() > 2
    is_masked = (is_far | (positions > positions[:, None]))[None] | (positions >= lengths[:, None])[:, None]
    per_head = is_masked.repeat_interleave(HEADS, dim=0)
    output, weights = ours(hidden, hidden, hidden, attn_mask=causal() & window(2) & padding(lengths))
    is_visible = ~is_masked.all(-1)  # the last query of the short row sees nothing
    expected_output, expected_weights = theirs(hidden, hidden, hidden, attn_mask=per_head)
    assert_close(output[is_visible], expected_output[is_visible])
    assert_close(weights[is_visible], expected_weights[is_visible])


@pytest.mark.parametrize("kind", ["boolean", "float"])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_query_without_keys_gets_zeros_where_torch_gives_nan(kind: str, gradients: bool) -> None:
    theirs, ours = build_pair(batch_first=True)
    hidden = torch.randn(BATCH, QUERIES, WIDTH)
    mask = torch.zeros(QUERIES, QUERIES, dtype=torch.bool)
    mask[2] = True
    attn_mask = mask if kind == "boolean" else torch.zeros(QUERIES, QUERIES).masked_fill(mask, -torch.inf)
    with torch.set_grad_enabled(gradients):
        output, weights = ours(hidden, hidden, hidden, attn_mask=attn_mask)
        expected, _ = theirs(hidden, hidden, hidden, attn_mask=attn_mask)
    assert torch.equal(output[:, 2], ours.out_proj.bias.expand(BATCH, -1))
    assert not weights[:, 2].any()
    assert expected[:, 2].isnan().all()
    assert_close(output[:, :2], expected[:, :2])


def test_the_gradients_are_those_of_torch() -> None:
    theirs, ours = build_pair(batch_first=True)
    bias = torch.randn(QUERIES, QUERIES)
    gradients = []
    for module in (theirs, ours):
        hidden = torch.linspace(-1, 1, BATCH * QUERIES * WIDTH).view(BATCH, QUERIES, WIDTH).requires_grad_()
        learned_bias = bias.clone().requires_grad_()
        output, weights = module(hidden, hidden, hidden, attn_mask=learned_bias)
        (output.square().sum() + weights.square().sum()).backward()
        gradients.append([hidden.grad, learned_bias.grad, *(parameter.grad for parameter in module.parameters())])
    for ours_gradient, theirs_gradient in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours_gradient, theirs_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kdim", [None, 13])
def test_the_same_seed_gives_the_initial_weights_of_torch_and_state_dicts_load_both_ways(kdim: int | None) -> None:
    torch.manual_seed(5)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, kdim=kdim)
    torch.manual_seed(5)
    ours = MultiHeadAttention(WIDTH, HEADS, kdim=kdim)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight), name
    theirs.load_state_dict(MultiHeadAttention(WIDTH, HEADS, kdim=kdim).state_dict())


def test_the_output_has_the_device_and_dtype_of_the_weights() -> None:
    attention = MultiHeadAttention(WIDTH, HEADS, dtype=torch.float64, device="cpu")
    hidden = torch.randn(QUERIES, WIDTH, dtype=torch.float64)
    output, weights = attention(hidden, hidden, hidden, attn_mask=torch.randn(QUERIES, QUERIES))
    assert output.dtype == weights.dtype == torch.float64


def test_it_replaces_the_attention_of_a_torch_layer() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH + 1, 4, 32, batch_first=True).eval()
    hidden = torch.randn(BATCH, QUERIES, WIDTH + 1)
    with torch.no_grad():
        expected = layer(hidden)
        attention = MultiHeadAttention(WIDTH + 1, 4, batch_first=True, site="replaced")
        attention.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = attention.eval()
        with regard.trace(full_precision=True) as captured:
            output = layer(hidden)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    assert list(captured) == ["replaced"]


# ---- traces


def test_a_trace_needs_no_registration_and_changes_no_output() -> None:
    model = nn.ModuleList(MultiHeadAttention(WIDTH, HEADS) for _ in range(2))
    hidden = torch.randn(QUERIES, WIDTH)
    with torch.no_grad():
        expected = [attention(hidden, hidden, hidden, average_attn_weights=False) for attention in model]
        with regard.trace(full_precision=True) as captured:
            outputs = [attention(hidden, hidden, hidden)[0] for attention in model]
    assert len(captured) == 2
    for site, output, (expected_output, expected_weights) in zip(captured, outputs, expected, strict=True):
        assert site.startswith("attention.")
        assert torch.equal(output, expected_output)
        assert torch.equal(torch.from_numpy(captured[site].weights[0]), expected_weights)


def test_a_copy_has_a_site_of_its_own_and_a_name_is_kept() -> None:
    attention = MultiHeadAttention(WIDTH, HEADS)
    number = int(attention.site_name.removeprefix("attention."))
    assert copy.deepcopy(attention).site_name == f"attention.{number + 1}"
    assert attention.site_name == f"attention.{number}"
    assert MultiHeadAttention(WIDTH, HEADS, site="reader").site_name == "reader"


def test_sites_are_named_by_place() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList(MultiHeadAttention(WIDTH, HEADS) for _ in range(2))})
    model["reader"] = MultiHeadAttention(WIDTH, 5, site="mine")
    assert name_sites(model) == {"layers.0": HEADS, "layers.1": HEADS, "mine": 5}
    hidden = torch.randn(QUERIES, WIDTH)
    with regard.trace("layers.*", layers=[1]) as captured:
        for attention in model["layers"]:
            attention(hidden, hidden, hidden)
    assert list(captured) == ["layers.1"]


@pytest.mark.parametrize("store", ["weights", "queries", "entropy", "qkv"])
def test_traces_of_single_heads_see_the_mask_of_their_head(store: str) -> None:
    attention = MultiHeadAttention(2, 2, site="reader")
    hidden = torch.randn(QUERIES, 2)
    mask = random_mask("boolean", (2, QUERIES, QUERIES))
    with torch.no_grad():
        _, weights = attention(hidden, hidden, hidden, attn_mask=mask, average_attn_weights=False)
        with regard.trace("reader:1", store=store, full_precision=True, queries=[1, 4]) as captured:
            attention(hidden, hidden, hidden, attn_mask=mask)
    expected = weights[1, [1, 4]]
    if store == "entropy":
        entropy = -(expected * expected.clamp_min(1e-12).log2()).sum(-1)
        torch.testing.assert_close(torch.from_numpy(captured["reader"].entropy[0, 0]), entropy)
    elif store == "qkv":
        assert torch.equal(torch.from_numpy(captured["reader"].qkv.scores[0, 0]).isneginf(), mask[1, [1, 4]])
    else:
        torch.testing.assert_close(torch.from_numpy(captured["reader"].weights[0, 0]), expected)


def test_a_trace_that_stores_queries_keeps_masks_that_differ_by_head() -> None:
    attention = MultiHeadAttention(2, 2, site="reader")
    hidden = torch.randn(QUERIES, 2)
    mask = random_mask("boolean", (2, QUERIES, QUERIES))
    with torch.no_grad(), regard.trace(store="queries", full_precision=True) as captured:
        _, weights = attention(hidden, hidden, hidden, attn_mask=mask, average_attn_weights=False)
    torch.testing.assert_close(torch.from_numpy(captured["reader"].weights[0]), weights)


def test_heads_can_be_ablated_and_trace_module_knows_it() -> None:
    attention = MultiHeadAttention(WIDTH, HEADS, site="reader")
    hidden = torch.randn(QUERIES, WIDTH)
    with torch.no_grad(), regard.ablate("reader"):
        output, _ = attention(hidden, hidden, hidden)
    assert torch.equal(output, attention.out_proj.bias.expand(QUERIES, -1))
    with regard.trace_module(nn.Sequential(attention)) as captured:
        attention(hidden, hidden, hidden)
    assert list(captured) == ["reader"]


# ---- dropout


def test_dropout_in_training_is_reproducible_by_the_seed_of_torch() -> None:
    attention = MultiHeadAttention(WIDTH, HEADS, dropout=0.5)
    hidden = torch.randn(QUERIES, WIDTH)

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        output: Tensor = attention(hidden, hidden, hidden)[0]
        return output

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    torch.manual_seed(1)
    first, second = (attention(hidden, hidden, hidden)[0] for _ in range(2))
    assert not torch.equal(first, second)
    attention.eval()
    assert torch.equal(run(1), run(2))


def test_explicit_noise_is_a_function_of_seed_step_and_site() -> None:
    hidden = torch.randn(QUERIES, WIDTH)
    attention = MultiHeadAttention(WIDTH, HEADS, dropout=0.5, site="first")
    other = copy.deepcopy(attention)
    other.site = "second"

    def run(module: MultiHeadAttention, step: int) -> Tensor:
        output: Tensor = module(hidden, hidden, hidden, noise=Noise(seed=1, step=step))[0]
        return output

    before = torch.get_rng_state()
    assert torch.equal(run(attention, 3), run(attention, 3))
    assert not torch.equal(run(attention, 3), run(attention, 4))
    assert not torch.equal(run(attention, 3), run(other, 3))
    assert torch.equal(before, torch.get_rng_state())


# ---- bad input


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_extra_keys_are_rejected(options: dict[str, bool]) -> None:
    with pytest.raises(ConfigError, match="add_bias_kv and add_zero_attn are not supported"):
        MultiHeadAttention(WIDTH, HEADS, **options)


def test_sizes_that_do_not_fit_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"embed_dim \(15\) must be a positive multiple of num_heads \(4\)"):
        MultiHeadAttention(15, 4)
    with pytest.raises(ConfigError, match="dropout must be from 0 to below 1, not 1.5"):
        MultiHeadAttention(15, 3, dropout=1.5)


def test_inputs_that_do_not_fit_are_rejected_with_the_shapes() -> None:
    attention = MultiHeadAttention(WIDTH, HEADS, batch_first=True)
    hidden = torch.randn(BATCH, QUERIES, WIDTH)
    with pytest.raises(UsageError, match=r"They are \[2, 7, 15\], \[2, 7, 15\], \[2, 6, 15\]"):
        attention(hidden, hidden, hidden[:, 1:])
    with pytest.raises(UsageError, match=r"must be \[B, T, width\]"):
        attention(hidden[..., 1:], hidden, hidden)
    with pytest.raises(UsageError, match=r"attn_mask must be \[7, 7\] or \[6, 7, 7\] .*not \[7, 6\]"):
        attention(hidden, hidden, hidden, attn_mask=torch.zeros(7, 6))
    with pytest.raises(UsageError, match=r"key_padding_mask must be \[2, 7\] .*not \[7\]"):
        attention(hidden, hidden, hidden, key_padding_mask=torch.zeros(7))
    with pytest.raises(UsageError, match="masks are boolean or floating-point tensors, not torch.int64"):
        attention(hidden, hidden, hidden, attn_mask=torch.zeros(7, 7, dtype=torch.long))
