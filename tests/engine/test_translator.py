"""Translators in the engine: torch's outputs in float32, close in bf16 and int8, the same bits in every batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.config.inference import DecodingConfig
from regard.config.models import ACTIVATIONS
from regard.decoding.constraints import ForcedPhrases
from regard.decoding.search import _Search, _SearchRequest, search
from regard.engine import layout
from regard.engine.library import CODES, INSTRUCTIONS_VARIABLE, load_library, pointer, select_instruction_set
from regard.engine.translator import TranslatorEngine
from regard.errors import ConfigError, UsageError
from regard.packed_tokens import Tokens
from tests.engine.conftest import INSTRUCTION_SETS, build_engine, draw_sources, force_decode, translator

VARIANTS = [
    *({"norm_placement": "post", "positions": positions} for positions in CODES["positions"]),  # pre: test_parts.py
    *({"activation": activation} for activation in ACTIVATIONS),
    {"share_embeddings": False, "source_vocab_size": 53},
    {"tie_embeddings": False, "output_bias": True},
    {"scale_embedding": False, "norm_eps": 1e-3},
    {"hidden_size": 64, "encoder.num_heads": 1, "decoder.num_heads": 2, "encoder.feed_forward_size": 128},
]
LENGTHS = (5, 1, 17, 2, 9, 33, 4)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_float32_gives_the_outputs_of_torch(changes: dict[str, object]) -> None:
    model = translator(**changes)
    engine = build_engine(model)
    source = draw_sources(model, LENGTHS)
    expected = force_decode(model, source, 5)
    assert np.allclose(force_decode(engine, source, 5), expected, rtol=1e-4, atol=2e-5)
    hidden, _ = model.encode(source)
    assert np.allclose(engine.encode(source), hidden.detach().numpy(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
@pytest.mark.parametrize(("precision", "bound"), [("float32", 2e-6), ("bf16", 0.02), ("int8", 0.05)])
def test_every_instruction_set_is_within_its_precision(instructions: str, precision: str, bound: float) -> None:
    model = translator(seed=2, hidden_size=48)
    engine = build_engine(model, precision, instructions)
    source = draw_sources(model, LENGTHS)
    expected = force_decode(model, source, 4)
    error = np.abs(force_decode(engine, source, 4) - expected).max() / np.abs(expected).max()
    assert error < bound
    if precision != "float32":
        assert error > 1e-6  # it is computed in that precision


def test_int8_has_the_same_bits_on_every_instruction_set() -> None:
    model = translator(hidden_size=40)
    source = draw_sources(model, LENGTHS)
    outputs = [force_decode(build_engine(model, "int8", instructions), source, 4) for instructions in INSTRUCTION_SETS]
    assert all(np.array_equal(outputs[0], output) for output in outputs[1:])


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_integer_sums_are_exact(instructions: str) -> None:
    rng = np.random.default_rng(1)
    library = load_library().handle
    int8 = CODES["precision"]["int8"]
    for rows, inputs, outputs in [
        (1, 1, 1),
        (1, 64, 100),
        (2, 64, 100),
        (3, 65, 100),
        (7, 64, 33),
        (13, 517, 100),
        (6, 4096, 17),
    ]:
        weights = np.full((outputs, inputs), -1.0, np.float32)  # extremes, where saturating 8-bit products overflow
        weights[:, rng.random(inputs) < 0.4] = 1.0
        padded_inputs = -(-inputs // 16) * 16
        padded_outputs = -(-outputs // 16) * 16
        activations = np.full((rows, padded_inputs), 255, np.uint8)
        activations[:, rng.random(padded_inputs) < 0.4] = 0
        activations[:, rng.random(padded_inputs) < 0.1] = 128
        activations[:, inputs:] = 128
        packed = np.empty(library.regard_packed_bytes(outputs, inputs, int8), np.uint8)
        scales = np.empty(padded_outputs, np.float32)
        corrections = np.empty(padded_outputs, np.int32)
        library.regard_pack_weights(
            pointer(weights), outputs, inputs, int8, pointer(packed), pointer(scales), pointer(corrections)
        )
        sums = np.empty((rows, padded_outputs), np.int32)
        library.regard_integer_sums(
            instructions.encode(),
            pointer(activations),
            rows,
            inputs,
            pointer(packed),
            pointer(corrections),
            outputs,
            pointer(sums),
        )
        quantized = np.rint(weights / scales[:outputs, None]).astype(np.int64)
        expected = (activations[:, :inputs].astype(np.int64) - 128) @ quantized.T
        assert np.array_equal(sums[:, :outputs], expected)


@pytest.mark.parametrize("precision", layout.PRECISIONS)
@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(precision: str, instructions: str) -> None:
    model = translator()
    engine = build_engine(model, precision, instructions)
    source = draw_sources(model, LENGTHS)
    tokens = np.full(len(source), 3, np.int32)
    first_of_all, state = engine.step(tokens, engine.start(source, 4), 0)
    second_of_all, _ = engine.step(tokens[:4] + 7, state.select(np.array([6, 2, 2, 0])), 0)
    for selected_row, row in enumerate((6, 2, 2, 0)):
        single_state = engine.start(Tokens.from_rows([source.row(row)]), 4)
        first, single_state = engine.step(tokens[:1], single_state, 0)
        second, _ = engine.step(tokens[:1] + 7, single_state, 0)
        assert np.array_equal(first.logprobs[0], first_of_all.logprobs[row])
        assert np.array_equal(second.logprobs[0], second_of_all.logprobs[selected_row])


def test_random_shapes_give_the_outputs_of_torch() -> None:
    rng = np.random.default_rng(11)
    for index in range(100):
        encoder_heads, decoder_heads = (int(heads) for heads in rng.integers(1, 5, 2))
        model = translator(
            seed=index,
            hidden_size=2 * encoder_heads * decoder_heads * int(rng.integers(1, 6)),
            norm_placement=str(rng.choice(["pre", "post"])),
            positions=str(rng.choice([*CODES["positions"]])),
            activation=str(rng.choice(ACTIVATIONS)),
            **{
                "encoder.num_heads": encoder_heads,
                "decoder.num_heads": decoder_heads,
                "encoder.num_layers": 1,
                "decoder.num_layers": 1,
                "encoder.feed_forward_size": int(rng.integers(1, 99)),
                "decoder.feed_forward_size": int(rng.integers(1, 99)),
            },
        )
        source = draw_sources(model, tuple(rng.integers(1, 30, rng.integers(1, 9)).tolist()), seed=index)
        instructions = INSTRUCTION_SETS[index % len(INSTRUCTION_SETS)]
        output = force_decode(build_engine(model, "float32", instructions), source, 2)
        expected = force_decode(model, source, 2)
        assert np.allclose(output, expected, rtol=1e-4, atol=5e-5), (index, model.config, instructions)


def test_the_top_k_are_those_of_the_whole_vocabulary() -> None:
    model = translator()
    engine = build_engine(model)
    source = draw_sources(model, LENGTHS)
    all_candidates, _ = engine.step(np.full(7, 3, np.int32), engine.start(source, 2), 0)
    top_candidates, _ = engine.step(np.full(7, 3, np.int32), engine.start(source, 2), 6)
    logprobs = all_candidates.logprobs
    top_ids = np.argsort(-logprobs, axis=1, kind="stable")[:, :6]
    assert np.array_equal(top_candidates.ids, top_ids)
    assert np.array_equal(top_candidates.logprobs, np.take_along_axis(logprobs, top_ids, 1))
    eos_logprobs = top_candidates.eos_logprobs
    assert eos_logprobs is not None and np.array_equal(eos_logprobs, logprobs[:, 1])
    assert np.allclose(np.exp(logprobs).sum(1), 1, atol=1e-5)


SEARCHES = [
    {"beam": 1},
    {"beam": 4},
    {"beam": 5, "nbest": 5, "length_penalty": 0.6},
    {"beam": 3, "length_penalty": 0.0},
]


@pytest.mark.parametrize("settings", SEARCHES, ids=str)
def test_the_search_in_the_library_is_that_of_decoding(settings: dict[str, float]) -> None:
    config = DecodingConfig(**settings)
    outcomes = set()
    for eos_bias in (0.0, 4.0, 8.0):  # texts reach their limits, or end by themselves
        model = translator(output_bias=True)
        with torch.no_grad():
            model.lm_head_bias[1] += eos_bias
        engine = build_engine(model)
        source = draw_sources(model, (3, 8, 1, 21, 12, 6, 2, 9, 4, 15))
        limits = source.lengths.astype(np.int64) + 4
        hypotheses = search(engine, source, config, max_lengths=limits)
        request = _SearchRequest(limits, [[]] * len(source), [ForcedPhrases.none()] * len(source))
        assert hypotheses == _Search(engine, source, config, request, ()).run()
        torch_hypotheses = search(model, source, config, max_lengths=limits)
        for nbest, torch_nbest in zip(hypotheses, torch_hypotheses, strict=True):
            texts = [(hypothesis.ids, hypothesis.finished) for hypothesis in nbest]
            assert texts == [(hypothesis.ids, hypothesis.finished) for hypothesis in torch_nbest]
            outcomes |= {hypothesis.finished for hypothesis in nbest}
    assert outcomes == {True, False}


def test_references_are_scored_as_by_torch() -> None:
    model = translator()
    source = draw_sources(model, (5, 3, 8))
    target = draw_sources(model, (4, 7, 1), seed=9)
    engine_logprobs = build_engine(model).target_logprobs(source, target)
    for logprobs, expected in zip(engine_logprobs, model.target_logprobs(source, target), strict=True):
        assert np.allclose(logprobs, expected, atol=1e-4)


def test_a_model_may_be_freed_before_its_states() -> None:
    model = translator()
    engine = build_engine(model)
    state = engine.start(draw_sources(model, (5, 3)), 4)
    engine.library.handle.regard_model_free(engine.handle)
    engine.handle = 0
    del state


def test_wrong_inputs_and_arrays_are_refused() -> None:
    model = translator(positions="learned", max_positions=6)
    engine = build_engine(model)
    with pytest.raises(UsageError, match="outside the source vocabulary"):
        engine.start(Tokens.from_rows([[97]]), 3)
    too_long = draw_sources(model, (7,))
    with pytest.raises(UsageError, match="a source has 7 tokens but the model takes 6: split it"):
        engine.start(too_long, 3)
    with pytest.raises(UsageError, match="7 positions but the model learned 6"):
        engine.start_state(too_long.ids, too_long.offsets)
    state = engine.start(draw_sources(model, (2,)), 3)
    with pytest.raises(UsageError, match="no row 4"):
        state.select(np.array([4]))
    with pytest.raises(ConfigError, match="precision must be one of"):
        TranslatorEngine.from_weights(model.config, {}, "int4")
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    arrays = layout.pack_weights(model.config, weights, "int8")
    with pytest.raises(UsageError, match=r"array encoder_self_norm\.weight of layer 0 has 60 bytes instead of 128"):
        TranslatorEngine(model.config, [*arrays[:3], arrays[3][:15], *arrays[4:]], "int8")


ABSURD_SEARCHES: list[tuple[dict[str, object], str]] = [
    ({"limits": [5]}, "2 sources have 1 limits: each needs one"),
    ({"limits": [5, 5, 5]}, "2 sources have 3 limits"),
    ({"limits": [5, 10**9]}, "a translation may have 512 tokens, the limit is 1000000000"),
    ({"beam": 0}, "beam must be from 1 to 1024 and nbest from 1 to beam, not 0 and 1"),
    ({"beam": -3}, "beam must be from 1"),
    ({"beam": 10**6}, "not 1000000 and 1"),
    ({"beam": 100}, "a beam of 100 is too wide for a vocabulary of 97 tokens"),
    ({"nbest": 3}, "not 2 and 3"),
    ({"nbest": 10**9}, "not 2 and 1000000000"),
    ({"nbest": 0}, "not 2 and 0"),
]


@pytest.mark.parametrize(("changes", "message"), ABSURD_SEARCHES, ids=str)
def test_a_search_that_asks_for_too_much_is_refused(changes: dict[str, object], message: str) -> None:
    model = translator()
    engine = build_engine(model)
    settings: dict[str, object] = {"limits": [5, 5], "beam": 2, "nbest": 1, "length_penalty": 1.0, **changes}
    limits = np.array(settings.pop("limits"))
    source = draw_sources(model, (4, 6))
    with pytest.raises(UsageError, match=message):
        engine.search(source, limits, **settings)
    (hypotheses,) = engine.search(Tokens.from_rows([source.row(0)]), np.array([-7]), beam=1, nbest=1, length_penalty=1)
    assert len(hypotheses[0][0]) <= 1  # limits below 1 count as 1


def test_inputs_that_are_too_long_too_short_or_beyond_32_bits_are_refused() -> None:
    model = translator()
    engine = build_engine(model)
    with pytest.raises(UsageError, match="a source has 100000 tokens but the model takes 512: split it"):
        engine.start(Tokens.from_rows([np.full(100_000, 5)]), 3)
    two_million = Tokens.from_rows([np.full(2_000_000, 5)])
    with pytest.raises(UsageError, match="a text has 2000000 positions but the engine takes 1048576"):
        engine.start_state(two_million.ids, two_million.offsets)
    with pytest.raises(UsageError, match="token ids must be 32-bit integers, not up to 4294967303"):
        engine.start(Tokens(np.array([(1 << 32) + 7]), np.array([0, 1])), 3)
    with pytest.raises(UsageError, match="offsets must be 32-bit"):
        engine.start(Tokens(np.array([7]), np.array([0, (1 << 32) + 1])), 3)
    state = engine.start(draw_sources(model, (2, 3)), 3)
    tokens = np.full(2, 3, np.int32)
    for k in (-1, 98, 10**9):
        with pytest.raises(UsageError, match=f"k must be from 0 to 97, not {k}"):
            engine.run_step(tokens, state, k, None)
    with pytest.raises(UsageError, match="2 tokens have 1 targets"):
        engine.run_step(tokens, state, 3, tokens[:1])
    with pytest.raises(UsageError, match="3 tokens for 2 rows"):
        engine.step(np.full(3, 3, np.int32), state, 3)
    with pytest.raises(UsageError, match="num_rows must be from 0 to 16777216, not -1"):
        engine.library.call(engine.library.handle.regard_select_rows, state.handle, pointer(tokens), -1)
    with pytest.raises(UsageError, match=r"tokens must have at most 2 dimensions, not the shape \(1, 1, 2\)"):
        engine.run_step(tokens[None, None], state, 3, None)
    with pytest.raises(UsageError, match="a step needs at least one token"):
        engine.run_step(tokens[:0], state, 3, None)
    with pytest.raises(UsageError, match="state must not be null"):
        engine.library.call(engine.library.handle.regard_select_rows, None, pointer(tokens), 1)


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read the memory in use from")
def test_positions_that_no_text_needs_take_no_memory() -> None:
    model = translator(hidden_size=64)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    before = resident_bytes()
    config = model.config.override({"max_positions": 1 << 20})
    engine = TranslatorEngine.from_weights(config, weights)
    engine.encode(draw_sources(model, (150,)))
    assert resident_bytes() - before < 64 << 20  # a whole table has 256 MiB, for the source as for the target


def test_sinusoids_have_the_same_bits_within_and_beyond_the_positions_of_the_model() -> None:
    model = translator()
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    source = draw_sources(model, (150, 3, 70))
    hidden = [
        TranslatorEngine.from_weights(model.config.override({"max_positions": count}), weights).run_encoder(source)
        for count in (512, 100, 1)
    ]
    assert np.array_equal(hidden[0], hidden[1]) and np.array_equal(hidden[0], hidden[2])


def test_outputs_that_stand_for_no_token_are_never_among_the_best() -> None:
    for precision in layout.PRECISIONS:
        for bias in (-2e30, -3e38, -np.inf, np.nan):
            model = translator(output_bias=True, target_vocab_size=49, share_embeddings=False)  # of 64 outputs
            with torch.no_grad():
                model.lm_head_bias.fill_(bias)
            for instructions in INSTRUCTION_SETS:
                engine = build_engine(model, precision, instructions)
                state = engine.start(draw_sources(model, (5, 3)), 4)
                for k in (1, 20, 49):
                    candidates, state = engine.step(np.full(2, 3, np.int32), state, k)
                    assert (candidates.ids >= 0).all() and (candidates.ids < 49).all()


def test_an_instruction_set_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSTRUCTIONS_VARIABLE, "portable")
    assert select_instruction_set() == "portable"
    monkeypatch.setenv(INSTRUCTIONS_VARIABLE, "abacus")
    with pytest.raises(ConfigError, match="no instruction set 'abacus'"):
        select_instruction_set()
