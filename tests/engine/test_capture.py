"""Traces and ablation in the engine: the same output bits, and the attention that torch has with the same weights."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from regard.attention.intervention import ablate
from regard.attention.positions import relative_buckets
from regard.attention.trace import STORES, CapturedQueriesKeys, Trace, trace
from regard.config.models import BertConfig
from regard.engine import capture, layout, sites
from regard.engine.base import EngineModel
from regard.engine.encoder import EncoderEngine
from regard.engine.layout import PRECISIONS, pack_weights
from regard.engine.library import CAttentionOptions, CCapture, pointer
from regard.errors import UsageError
from regard.models.bert import Bert, initialize_bert
from regard.packed_tokens import Tokens
from tests.engine.conftest import INSTRUCTION_SETS
from tests.engine.test_encoder import MODERN_BERT, draw_texts
from tests.engine.test_stacks import LENGTHS as STACK_LENGTHS
from tests.engine.test_stacks import (
    describe_encoder,
    draw_tokens,
    embed,
    encoder_weights,
    random_encoder,
)
from tests.scale import scaled

BOUNDS = {"float32": 1e-3, "bf16": 1e-2, "int8": 2e-2}  # of weights
OUTPUT_BOUNDS = {"float32": 1e-4, "bf16": 0.03, "int8": 0.08}  # relative to the largest output
LENGTHS = (5, 1, 17, 2, 9, 33, 4)
SMALL = {"hidden_size": 24, "max_positions": 150, "stack.num_layers": 2, "stack.num_heads": 2}
TYPES: dict[str, dict[str, object]] = {
    "bert": {"head": "label", "num_labels": 3},
    "roberta": {"position_offset": 2, "num_token_types": 1, "head": "token", "num_labels": 3},
    "distilbert": {"num_token_types": 0, "pooler": False},
    "electra": {"embedding_size": 9, "head": "span"},
    "albert": {"embedding_size": 9, "layer_groups": 1, "head": "label", "num_labels": 3},
    "modernbert": {**MODERN_BERT, "activation": "gelu", "head": "token", "num_labels": 3},
    "causal": {"causal": True, "head": "label", "num_labels": 3, "pooling": "mean", "pooler": False},
}


def build_pair(model_type: str, precision: str = "float32", instructions: str = "") -> tuple[EncoderEngine, Bert]:
    """An encoder in the engine, and in torch with the weights of the engine, dequantized."""
    config = BertConfig(vocab_size=97).override(SMALL | {"stack.feed_forward_size": 37} | TYPES[model_type])
    model = Bert(config)
    initialize_bert(model, 1, 0.2)
    arrays = pack_weights(config, {name: tensor.numpy() for name, tensor in model.state_dict().items()}, precision)
    weights = layout.unpack_weights(config, arrays, precision)
    model.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    return EncoderEngine(config, arrays, precision, instructions), model.eval()


def draw(model: Bert, lengths: tuple[int, ...] = LENGTHS) -> Tokens:
    return draw_texts(lengths, num_types=max(1, model.config.num_token_types))


def answer(model: EncoderEngine | Bert, tokens: Tokens) -> np.ndarray:
    return model.logits(tokens) if model.config.num_outputs else model.embed_texts(tokens, ("mean",))


def assert_same_weights(traced: Trace, expected: Trace, bound: float) -> None:
    assert [*traced] == [*expected] and len(traced)
    for site in expected:
        assert traced[site].mask == expected[site].mask
        assert traced[site].head_indices == expected[site].head_indices
        weights = traced[site].weights
        assert weights.shape == expected[site].weights.shape
        assert np.abs(weights - expected[site].weights).max() < bound


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model_type", TYPES)
def test_weights_are_those_of_torch_with_the_same_parameters(model_type: str, precision: str) -> None:
    engine, model = build_pair(model_type, precision)
    for lengths in (LENGTHS, (13,), (6, 6)):
        tokens = draw(model, lengths)
        with trace(full_precision=True) as traced:
            answer(engine, tokens)
        with trace(full_precision=True) as expected:
            answer(model, tokens)
        assert_same_weights(traced, expected, BOUNDS[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model_type", TYPES)
def test_a_trace_changes_no_bit_of_the_answer(model_type: str, precision: str) -> None:
    engine, model = build_pair(model_type, precision)
    tokens = draw(model)
    single = Tokens.from_rows([tokens.row(5)])
    plain = answer(engine, tokens)
    plain_single = answer(engine, single)
    selections = ({}, {"heads": [1]}, {"layers": [1]}, {"queries": [0, 3]}, {"sites": "encoder.0.*"})
    for store in STORES:
        for selection in (*selections, {"full_precision": True}):
            with trace(store=store, **selection) as traced:
                assert np.array_equal(answer(engine, tokens), plain)
                assert np.array_equal(answer(engine, single), plain_single)
            assert len(traced)


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_every_instruction_set_is_traced_and_ablated_without_changing_bits(instructions: str) -> None:
    for precision in PRECISIONS:
        engine, model = build_pair("modernbert", precision, instructions)
        tokens = draw(model)
        plain = answer(engine, tokens)
        with trace(full_precision=True) as traced:
            assert np.array_equal(answer(engine, tokens), plain)
        with trace(full_precision=True) as expected:
            answer(model, tokens)
        assert_same_weights(traced, expected, BOUNDS[precision])
        with ablate("encoder.1.self:1"):
            ablated = answer(engine, tokens)
            with trace():
                assert np.array_equal(answer(engine, tokens), ablated)
        assert not np.array_equal(ablated, plain)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model_type", TYPES)
def test_ablated_heads_are_those_of_torch_with_and_without_a_trace(model_type: str, precision: str) -> None:
    engine, model = build_pair(model_type, precision)
    tokens = draw(model)
    for heads in ("encoder.1.self:0", "encoder.0.self:1,encoder.1.self"):
        with ablate(heads):
            ablated = answer(engine, tokens)
            expected = answer(model, tokens)
            with trace(full_precision=True) as traced:
                assert np.array_equal(answer(engine, tokens), ablated)
            with trace(full_precision=True) as expected_trace:
                answer(model, tokens)
        assert np.abs(ablated - expected).max() < OUTPUT_BOUNDS[precision] * np.abs(expected).max()
        assert not np.array_equal(ablated, answer(engine, tokens))
        assert_same_weights(traced, expected_trace, BOUNDS[precision])


def test_every_store_has_the_values_of_torch() -> None:
    engine, model = build_pair("modernbert")
    for lengths in (LENGTHS, (60,)):
        tokens = draw(model, lengths)
        for selection in ({}, {"heads": [1], "queries": [2, 0, 30]}):
            traces = {}
            for store in STORES:
                for encoder in (engine, model):
                    with trace(store=store, **selection) as traced:
                        encoder.encode(tokens)
                    traces[encoder, store] = traced
            for site in traces[model, "weights"]:
                assert_same_weights(traces[engine, "queries"], traces[model, "queries"], 2e-3)
                entropy = traces[engine, "entropy"][site].entropy
                assert np.abs(entropy - traces[model, "entropy"][site].entropy).max() < 0.01
                qkv = traces[engine, "qkv"][site].qkv
                expected = traces[model, "qkv"][site].qkv
                assert (qkv.normalization, qkv.has_bias) == (expected.normalization, expected.has_bias)
                assert qkv.scale == pytest.approx(expected.scale)
                assert np.array_equal(traces[engine, "qkv"][site].num_visible, traces[model, "qkv"][site].num_visible)
                for name in ("query", "key", "value", "scores", "weights"):
                    captured = getattr(qkv, name)
                    reference = getattr(expected, name)
                    assert captured.shape == reference.shape
                    is_finite = np.isfinite(reference)
                    assert np.array_equal(is_finite, np.isfinite(captured))
                    assert np.abs(captured[is_finite] - reference[is_finite]).max() < 1e-4


def test_queries_and_keys_are_stored_where_they_are_smaller() -> None:
    engine, model = build_pair("bert")
    with trace(store="queries") as traced:
        engine.encode(draw(model, (70,)))
        engine.encode(draw(model, (5,)))
    kinds = [type(captured) for captured in traced["encoder.0.self"].captures]
    assert kinds == [CapturedQueriesKeys, capture.CapturedWeights]


def test_nested_traces_capture_what_each_selects_and_wrong_names_raise() -> None:
    engine, model = build_pair("bert")
    tokens = draw(model)
    with trace("encoder.0.self", store="entropy") as outer, trace("encoder.1.self", heads=[0]) as inner:
        engine.encode(tokens)
    assert [*outer] == ["encoder.0.self"] and [*inner] == ["encoder.1.self"]
    assert inner["encoder.1.self"].head_indices == (0,)
    with pytest.raises(UsageError, match=r"has no encoder\.7\.self \(did you mean encoder\.1\.self"):  # noqa: SIM117
        with trace("encoder.7.self"):
            engine.encode(tokens)
    with pytest.raises(UsageError, match="did you mean encoder.0.self:1"), trace("encoder.0.self:2"):
        engine.encode(tokens)
    with pytest.raises(UsageError, match="did you mean encoder.0.self:1"), ablate("encoder.0.self:2"):
        engine.encode(tokens)
    with pytest.raises(UsageError, match=r"has no encoder\.7\.self"), ablate("encoder.7.self"):
        engine.encode(tokens)


def test_layers_are_captured_in_groups_of_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, model = build_pair("modernbert")
    tokens = draw(model)
    with trace(full_precision=True) as together:
        engine.encode(tokens)
    monkeypatch.setattr(sites, "MAX_CAPTURED_BYTES", 4 * len(tokens.ids) * 72 * 2)
    assert [len(group) for group in sites.group_sites(engine.sites, len(tokens.ids))] == [2, 2]
    with trace(full_precision=True) as in_groups:
        engine.encode(tokens)
    assert_same_weights(in_groups, together, 1e-30)


def test_several_threads_capture_the_same() -> None:
    engine, model = build_pair("bert")
    tokens = draw(model, (140,))
    traces = []
    for threads in (1, 3):
        engine.threads = threads
        with trace(full_precision=True) as traced:
            engine.encode(tokens)
        traces.append(traced)
    assert_same_weights(traces[1], traces[0], 1e-30)


@pytest.mark.parametrize("seed", range(scaled(100, 30)))
def test_random_stacks_have_the_weights_of_torch(seed: int) -> None:
    """Grouped keys, norms of heads, ALiBi, relative bias, windows and scales."""
    stack = random_encoder(seed)
    weights = encoder_weights(stack)
    model = describe_encoder(stack)
    engine = EngineModel(model, pack_weights(model, weights, "float32"))
    tokens = draw_tokens(seed, STACK_LENGTHS)
    for store in ("weights", "qkv"):
        with trace(store=store, full_precision=True) as traced:
            engine.run_encoder(tokens)
        with trace(store=store, full_precision=True) as expected, torch.no_grad():
            stack(*embed(weights["source_embedding.weight"], tokens))
        assert [*traced] == [*engine.attention_sites()]
        for site in traced:
            torch_site = site.replace("encoder", "decoder")  # the name of all random stacks
            if store == "weights":
                difference = np.abs(traced[site].weights - expected[torch_site].weights)
                assert traced[site].mask == expected[torch_site].mask
                assert all(difference[row, :, :length].max() < 1e-3 for row, length in enumerate(STACK_LENGTHS))
                continue
            assert traced[site].qkv.scale == pytest.approx(expected[torch_site].qkv.scale)
            assert traced[site].qkv.has_bias == expected[torch_site].qkv.has_bias
            for name in ("query", "scores", "weights"):
                # norms of heads have a bias, which is left out in the padding: the longest row has none
                values = getattr(traced[site].qkv, name)[-1]
                reference = getattr(expected[torch_site].qkv, name)[-1]
                is_finite = np.isfinite(reference)
                assert np.array_equal(is_finite, np.isfinite(values))
                scale = max(1.0, float(np.abs(reference[is_finite]).max()))
                assert np.abs(values[is_finite] - reference[is_finite]).max() < 1e-3 * scale


def test_buckets_of_distances_are_those_of_torch() -> None:
    offsets = np.arange(-5000, 5001)
    for is_causal in (False, True):
        for num_buckets, max_distance in ((32, 128), (16, 40), (64, 1000)):
            options = {"is_causal": is_causal, "num_buckets": num_buckets, "max_distance": max_distance}
            expected = relative_buckets(torch.from_numpy(offsets), **options)
            assert np.array_equal(capture.relative_buckets(offsets, **options), expected.numpy())


def test_the_library_rejects_sites_that_the_model_does_not_have() -> None:
    engine, _ = build_pair("bert")
    for site, layer in ((0, 2), (0, -1), (1, 0), (2, 0), (3, 0), (-1, 0)):
        struct = (CCapture * 1)(CCapture(site=site, layer=layer))
        options = CAttentionOptions(captures=capture_address(struct), num_captures=1)
        with pytest.raises(UsageError, match=f"there is no attention site {site} in layer {layer}"):
            call_encode(engine, options)
    twice = (CCapture * 2)(CCapture(site=0, layer=1), CCapture(site=0, layer=1))
    with pytest.raises(UsageError, match="captured twice"):
        call_encode(engine, CAttentionOptions(captures=capture_address(twice), num_captures=2))
    with pytest.raises(UsageError, match="captures must not be null"):
        call_encode(engine, CAttentionOptions(captures=None, num_captures=1))


def capture_address(structs: ctypes.Array[CCapture]) -> int:
    return ctypes.addressof(structs)


def call_encode(engine: EncoderEngine, options: CAttentionOptions) -> None:
    ids = np.array([3, 4], np.int32)
    offsets = np.array([0, 2], np.int32)
    hidden = np.empty((2, engine.hidden_size), np.float32)
    function = engine.library.handle.regard_encode
    engine.library.call(
        function,
        engine.handle,
        pointer(ids),
        None,
        pointer(offsets),
        1,
        None,
        0,
        1,
        ctypes.byref(options),
        pointer(hidden),
    )
