"""Traces: they capture what is there, as far as it was selected, and change nothing of the computation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention import attend as attend_module
from regard.attention import multihead
from regard.attention.attend import attend
from regard.attention.masks import causal
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.trace import CapturedQKV, Trace, trace
from regard.errors import UsageError
from regard.models.base import Model
from regard.packed_tokens import Tokens
from regard.view.codec import decode_root8, encode_root8
from tests import families
from tests.families import FAMILIES

STORES = ("weights", "queries", "entropy", "qkv")


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_have_the_same_bits_with_and_without_a_trace(family: str, precision: torch.dtype) -> None:
    build, run = FAMILIES[family]
    if family == "memory network" and precision != torch.float32:
        pytest.skip("memory networks compute in float32 alone")
    model = build().to(precision)
    if family.endswith("packed"):
        model.pack()  # type: ignore[operator]
    untraced = run(model)
    for store in STORES:
        with trace(store=store) as captured:
            traced = run(model)
        assert len(captured) > 0
        for without_trace, with_trace in zip(untraced, traced, strict=True):
            assert without_trace.tobytes() == with_trace.tobytes()


class Operators(TorchDispatchMode):
    """Names of the torch operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def run_operators(model: Model, run: Any) -> list[str]:
    with Operators() as operators:
        run(model)
    return operators.names


@pytest.mark.parametrize("family", ["transformer, beam", "encoder, packed", "big bird", "seq2seq, greedy"])
def test_without_a_trace_the_operators_are_those_of_code_without_traces(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, run = FAMILIES[family]
    model = build()
    run(model)
    untraced = run_operators(model, run)
    with trace():
        traced = run_operators(model, run)
    for module in (attend_module, multihead):  # the code without traces and ablation
        monkeypatch.setattr(module, "active_trace", lambda site: None)
    monkeypatch.setattr(attend_module, "apply_ablation", lambda output, site: output)
    assert untraced == run_operators(model, run)
    assert len(traced) > len(untraced)


def test_untraced_attention_is_one_fused_operator() -> None:
    ones = torch.ones(1, 2, 3, 4)
    with torch.inference_mode(), Operators() as operators:
        attend(ones, ones, ones, site="encoder.0.self")
    assert operators.names == ["aten.scaled_dot_product_attention.default"]


def explicit_weights(
    query: np.ndarray, key: np.ndarray, allowed: np.ndarray | None, bias: float | np.ndarray
) -> np.ndarray:
    """Softmax of scaled dot products over the allowed keys, [H, Q, K], in float64."""
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1]) + bias
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def project_heads(module: Any, layer: torch.nn.Linear, hidden: np.ndarray, index: int, parts: int) -> np.ndarray:
    """One of the fused parts of a projection, split into heads, [H, T, d]."""
    projected = hidden @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
    part = np.split(projected, parts, axis=-1)[index]
    return part.reshape(len(hidden), module.num_heads, -1).transpose(1, 0, 2)


def explicit_queries_keys(
    module: torch.nn.Module, hidden: np.ndarray, source: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of a module, [H, T, d], from its matrices."""
    if isinstance(module, SelfAttention):
        return project_heads(module, module.qkv, hidden, 0, 3), project_heads(module, module.qkv, hidden, 1, 3)
    assert isinstance(module, CrossAttention)
    return project_heads(module, module.query, hidden, 0, 1), project_heads(module, module.key_value, source, 0, 2)


def big_bird_bias(length: int, size: int, extra_first_block: int) -> np.ndarray:
    """BigBird's additive mask: neighbouring, first and last blocks; the first one counts more often."""
    num_blocks = -(-length // size)
    bias = np.full((num_blocks, num_blocks), -np.inf)
    for row in range(num_blocks):
        for column in range(num_blocks):
            if abs(row - column) <= 1 or row in (0, num_blocks - 1) or column in (0, num_blocks - 1):
                bias[row, column] = 0.0
        if np.isinf(bias[row]).any():
            bias[row, 0] += math.log(1 + extra_first_block)
    return bias.repeat(size, 0).repeat(size, 1)[:length, :length]


CASES = {
    "encoder": (families.encoder, lambda model, tokens: model(*model.to_tensors(tokens))),
    "big bird": (families.big_bird, lambda model, tokens: model(*model.to_tensors(tokens))),
    "gpt": (families.gpt, lambda model, tokens: model(tokens)),
    "transformer": (families.transformer, lambda model, tokens: model(tokens, tokens)),
}


@pytest.mark.parametrize("store", ["weights", "queries"])
@pytest.mark.parametrize("family", CASES)
def test_weights_are_those_of_an_explicit_computation(family: str, store: str) -> None:
    build, run = CASES[family]
    model = build()
    inputs_by_site: dict[str, tuple[torch.nn.Module, np.ndarray]] = {}
    sources: list[np.ndarray] = []

    def store_inputs(module: Any, inputs: Any) -> None:
        inputs_by_site[module.site] = module, inputs[0].detach().double().numpy()

    for module in model.modules():
        if isinstance(module, SelfAttention | CrossAttention):
            module.register_forward_pre_hook(store_inputs)
    if family == "transformer":
        model.encoder.register_forward_hook(  # type: ignore[union-attr]
            lambda module, inputs, output: sources.append(output.detach().double().numpy())
        )
    with torch.no_grad(), trace(store=store) as captured:
        run(model, families.LONG)
    assert sorted(captured) == sorted(model.attention_sites())
    for site, (module, hidden) in inputs_by_site.items():
        query, key = explicit_queries_keys(module, hidden, sources[0] if sources else hidden)
        length = len(hidden)
        allowed = None
        bias: float | np.ndarray = 0.0
        if site.startswith("decoder") and site.endswith("self"):
            allowed = np.tril(np.ones((length, length), dtype=bool))
        if family == "big bird":
            bias = big_bird_bias(length, 2, 1)
            allowed = np.isfinite(bias)
        expected = explicit_weights(query, key, allowed, bias)
        weights = captured[site].weights[0]
        assert np.abs(weights - expected).max() < 1e-3
        assert np.abs(weights.sum(-1) - 1).max() < 2e-3
        assert allowed is None or not weights[:, ~allowed].any()
        decoded = decode_root8(encode_root8(weights), weights.shape)
        assert np.abs(decoded - expected).max() < 4e-3
        for head in range(len(weights)):
            assert np.array_equal(captured[site].matrix(head), weights[head])


def test_recurrent_weights_are_those_of_an_explicit_computation() -> None:
    model = families.seq2seq(attention="additive", input_feeding="none")
    score = model.decoder.score  # type: ignore[union-attr]
    score_inputs: list[Any] = []
    score.register_forward_pre_hook(
        lambda module, inputs: score_inputs.append([tensor.detach().double() for tensor in inputs])
    )
    source = Tokens.from_rows([[5, 6, 7, 8, 1]])
    with torch.no_grad(), trace() as captured:
        model(source, Tokens.from_rows([[3, 7, 9]]))
    query, key = score_inputs[0]
    activated = torch.tanh((query @ score.query.weight.double().T).unsqueeze(3) + key.unsqueeze(2))
    expected = torch.softmax(activated @ score.v.weight[0].double(), dim=-1).detach().numpy()
    assert [*captured] == ["decoder.attention"]
    assert np.abs(captured["decoder.attention"].weights - expected).max() < 1e-3


def trace_two_sites(**options: Any) -> Trace:
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(2, 3, 40, 8, generator=generator)
    key = torch.randn(2, 3, 40, 8, generator=generator)
    positions = torch.arange(40)[None]
    with trace(**options) as captured:
        for site in ("encoder.0.self", "encoder.1.self"):
            attend(query, key, key, mask=causal().bind(positions, positions), site=site)
    return captured


def test_only_selected_sites_heads_queries_and_layers_are_captured() -> None:
    weights = trace_two_sites()["encoder.1.self"].weights
    selected = trace_two_sites(sites="encoder.1.self", heads=[2, 0], queries=[5, 39])
    assert [*selected] == ["encoder.1.self"]
    assert selected["encoder.1.self"].shape == (2, 2, 2, 40)
    assert np.array_equal(selected["encoder.1.self"].weights, weights[:, [0, 2]][:, :, [5, 39]])
    assert np.array_equal(selected["encoder.1.self"].matrix(2, row=1), weights[1, 2][[5, 39]])
    one_head = trace_two_sites(sites="encoder.0.self:1")
    assert one_head["encoder.0.self"].head_indices == (1,)
    assert np.array_equal(one_head["encoder.0.self"].weights[:, 0], weights[:, 1])
    assert [*trace_two_sites(layers=[1])] == ["encoder.1.self"]


def test_queries_and_keys_are_stored_where_they_are_smaller_and_give_the_same_weights() -> None:
    as_weights = trace_two_sites()["encoder.0.self"]
    as_queries = trace_two_sites(store="queries")["encoder.0.self"]
    assert as_weights.has_weights and not as_queries.has_weights
    assert np.abs(as_weights.weights - as_queries.weights).max() < 1e-3
    assert not as_queries.weights[:, :, 0, 1:].any()
    two_queries = as_queries.query_rows(1, np.array([7, 3]))
    np.testing.assert_allclose(two_queries, as_queries.matrix(1)[[7, 3]], atol=1e-6)
    ones = torch.ones(1, 1, 2, 4)
    with trace(store="queries") as captured:
        attend(ones, ones, ones, site="x")
    assert captured["x"].has_weights  # four weights are fewer than sixteen entries
    entropy = trace_two_sites(store="entropy")["encoder.0.self"].entropy
    assert np.abs(entropy - as_weights.entropy).max() < 1e-2
    with pytest.raises(UsageError, match="weights were not captured"):
        _ = trace_two_sites(store="entropy")["encoder.0.self"].weights


def test_captured_queries_and_keys_determine_the_scores() -> None:
    qkv = trace_two_sites(sites="encoder.0.self:1", store="qkv")["encoder.0.self"].qkv
    scores = qkv.query[0, 0] @ qkv.key[0, 0].T / math.sqrt(8)
    assert np.isneginf(qkv.scores[0, 0][0, 1:]).all()
    assert np.allclose(qkv.scores[0, 0][-1], scores[-1], atol=1e-5)
    assert qkv.value.shape == (2, 1, 40, 8)


def capture_head(model: Any, run: Any) -> CapturedQKV:
    """Queries, keys, values, scores and weights of the model's first site; the weights are those of another trace."""
    with torch.no_grad(), trace(store="qkv") as captured:
        run(model)
    with torch.no_grad(), trace(full_precision=True) as weights:
        run(model)
    site = next(iter(captured))
    np.testing.assert_allclose(captured[site].qkv.weights, weights[site].weights, atol=1e-6)
    return captured[site].qkv


def test_captured_queries_are_the_models_own_whatever_scales_the_scores() -> None:
    heads = {}
    for scale in (0.0, 1.0, 0.7):
        model = families.encoder(**{"stack.attention_scale": scale})
        head = heads[scale] = capture_head(model, lambda model: model.encode(families.LONG))
        np.testing.assert_allclose(head.query, heads[0.0].query, rtol=1e-5)
        assert head.scale == pytest.approx(scale or 4**-0.5) and not head.has_bias
        expected = head.scale * head.query @ head.key.transpose(0, 1, 3, 2)
        np.testing.assert_allclose(head.scores, expected, atol=1e-5)


@pytest.mark.parametrize("positions", ["alibi", "relative"])
def test_a_bias_is_stated_however_small_it_is(positions: str) -> None:
    assert capture_head(families.encoder(positions=positions), lambda model: model.encode(families.LONG)).has_bias


def test_keys_that_count_twice_are_a_bias() -> None:
    head = capture_head(families.big_bird(), lambda model: model(*model.to_tensors(families.LONG)))
    assert head.has_bias


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"stack.attention_normalization": "sparsemax"}, "sparsemax"),
        ({"stack.attention_normalization": "top-k", "stack.attention_top_k": 3}, "top-3"),
        ({"stack.attention_normalization": "uniform"}, "uniform"),
    ],
)
def test_captured_weights_are_those_of_the_normalization(settings: dict[str, Any], name: str) -> None:
    head = capture_head(families.encoder(**settings), lambda model: model.encode(families.LONG))
    assert head.normalization == name
    softmax = np.exp(head.scores - head.scores.max(-1, keepdims=True))
    assert np.abs(head.weights - softmax / softmax.sum(-1, keepdims=True)).max() > 0.02


@pytest.mark.parametrize("input_feeding", ["none", "context", "output"])
@pytest.mark.parametrize("score", ["dot", "bilinear", "additive"])
def test_every_step_of_a_recurrent_decoder_is_captured_with_the_values_of_the_readout(
    input_feeding: str, score: str
) -> None:
    settings = {
        "attention": score,
        "input_feeding": input_feeding,
        "attention_temperature": 2.0,
    }
    model: Any = families.seq2seq(**settings)
    encoded: list[torch.Tensor] = []
    model.encoder.register_forward_hook(lambda module, inputs, output: encoded.append(output[0]))
    source = Tokens.from_rows([[5, 6, 7, 8, 1]])
    head = capture_head(model, lambda model: model.target_logprobs(source, Tokens.from_rows([[7, 9, 4]])))
    assert head.query.shape[2] == head.scores.shape[2] == head.weights.shape[2] == 4
    values = encoded[0].detach().numpy() @ model.decoder.context_readout.weight.detach().numpy().T
    np.testing.assert_allclose(head.value[0, 0], values, atol=1e-5)
    assert head.temperature == 2
    softmax = np.exp(head.scores)
    np.testing.assert_allclose(head.weights, softmax / softmax.sum(-1, keepdims=True), atol=1e-5)
    if score == "additive":
        assert head.scale is None
    else:
        assert head.scale == 1
        np.testing.assert_allclose(head.scores, head.query @ head.key.transpose(0, 1, 3, 2) / 2, atol=1e-5)


def test_calls_with_different_keys_are_not_joined() -> None:
    model = families.encoder()
    with trace(store="qkv") as captured:
        model.encode(families.LONG)  # type: ignore[operator]
        model.encode(Tokens.from_rows([[5, 6]]))  # type: ignore[operator]
    with pytest.raises(UsageError, match=r"encoder\.0\.self: .* different keys: trace one call at a time"):
        _ = captured["encoder.0.self"].qkv


@pytest.mark.parametrize("store", STORES)
def test_the_keys_that_the_mask_allows_are_counted(store: str) -> None:
    site = trace_two_sites(sites="encoder.0.self", heads=[2, 0], queries=[5, 39], store=store)["encoder.0.self"]
    assert np.array_equal(site.num_visible, np.broadcast_to([6, 40], (2, 2, 2)))
    ones = torch.ones(2, 1, 3, 4)
    with trace(store=store) as captured:
        attend(ones, ones, ones, site="x")
        attend(ones, ones, ones, site="x")
    assert np.array_equal(captured["x"].num_visible, np.full((2, 1, 6), 3))


def test_a_nested_trace_leaves_the_outer_one_active() -> None:
    ones = torch.ones(1, 1, 2, 4)
    with trace("a") as outer:
        with trace("b", full_precision=True) as inner:
            for site in ("a", "b"):
                attend(ones, ones, ones, site=site)
        attend(ones, ones, ones, site="a")
    assert [*outer] == ["a"] and [*inner] == ["b"]
    assert outer["a"].shape == (1, 1, 4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sites": "encoder.9.self"}, r"no encoder\.9\.self \(did you mean encoder\.1\.self\?\)"),
        ({"sites": "encodr.1.self"}, r"did you mean encoder\.1\.self"),
        ({"heads": [7]}, r"heads 0 to 2: there is no encoder\.0\.self:7 \(did you mean encoder\.0\.self:2\?\)"),
        ({"sites": "encoder.0.self:3"}, "there is no encoder.0.self:3"),
        ({"sites": "encoder.0.self:x"}, "names no head"),
        ({"layers": [4]}, r"no layer 4 \(did you mean 1\?\)"),
        ({"store": "weight"}, r"did you mean weights\?"),
    ],
)
def test_an_unknown_selection_is_rejected_with_the_nearest(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trace_two_sites(**options)


def test_a_site_or_head_that_was_not_captured_is_named() -> None:
    captured = trace_two_sites(sites="encoder.0.*", heads=[1])
    with pytest.raises(UsageError, match=r"did you mean encoder\.0\.self"):
        _ = captured["encoder.7.self"]
    with pytest.raises(UsageError, match="was not captured"):
        captured["encoder.0.self"].matrix(0)


def test_a_beam_search_has_no_single_attention_matrix() -> None:
    model = families.transformer()
    with trace("decoder.*.self") as captured:
        families.generate(model, 3)
    with pytest.raises(UsageError, match="trace one call at a time"):
        _ = captured["decoder.0.self"].weights
