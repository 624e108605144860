"""The engine: torch's numbers in float32, close in bf16 and int8, the same bits whatever stands beside a row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.config.inference import DecodingConfig
from regard.config.models import ACTIVATIONS, POSITIONS
from regard.decoding.constraints import ForcedPhrases
from regard.decoding.search import _Search, _SearchRequest, search
from regard.engine import layout
from regard.engine.library import CODES, VARIABLE, load_library, pointer, select_instruction_set
from regard.engine.translator import TranslatorEngine
from regard.errors import ConfigError, UsageError
from regard.tokens import Tokens
from tests.engine.conftest import SETS, compiled, forced, sources, translator

VARIANTS = [
    *({"norm": norm, "positions": kind} for norm in ("before", "after") for kind in POSITIONS),
    *({"activation": one} for one in ACTIVATIONS),
    {"share_embeddings": False, "source_vocab_size": 53},
    {"tie_embeddings": False, "output_bias": True},
    {"scale_embedding": False, "norm_eps": 1e-3},
    {"hidden_size": 64, "encoder.num_heads": 1, "decoder.num_heads": 2, "encoder.feed_forward_size": 128},
]
LENGTHS = (5, 1, 17, 2, 9, 33, 4)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_float32_gives_the_numbers_of_torch(changes: dict[str, object]) -> None:
    model = translator(**changes)
    source = sources(model, LENGTHS)
    wanted, engine = forced(model, source, 5), compiled(model)
    assert np.allclose(forced(engine, source, 5), wanted, rtol=1e-4, atol=2e-5)
    states, _ = model.encode(source)
    assert np.allclose(engine.encode(source), states.detach().numpy(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize(("precision", "bound"), [("float32", 2e-6), ("bf16", 0.02), ("int8", 0.05)])
def test_every_instruction_set_is_within_its_precision(instructions: str, precision: str, bound: float) -> None:
    model = translator(hidden_size=48)
    source = sources(model, LENGTHS)
    wanted = forced(model, source, 4)
    away = np.abs(forced(compiled(model, precision, instructions), source, 4) - wanted).max() / np.abs(wanted).max()
    assert away < bound
    if precision != "float32":
        assert away > 1e-6  # it is computed in that precision


def test_int8_has_the_same_bits_on_every_instruction_set() -> None:
    model = translator(hidden_size=40)
    source = sources(model, LENGTHS)
    first, *others = (forced(compiled(model, "int8", one), source, 4) for one in SETS)
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("instructions", SETS)
def test_integer_sums_are_exact(instructions: str) -> None:
    chance, calls = np.random.default_rng(1), load_library().handle
    for rows, inputs, outputs in [
        (1, 1, 1),
        (1, 64, 100),
        (2, 64, 100),
        (3, 65, 100),
        (7, 64, 33),
        (13, 517, 100),
        (6, 4096, 17),
    ]:
        weights = np.full((outputs, inputs), -1.0, np.float32)  # the extremes, where 8-bit tricks overflow
        weights[:, chance.random(inputs) < 0.4] = 1.0
        padded, blocks = -(-inputs // 16) * 16, -(-outputs // 16) * 16
        given = np.full((rows, padded), 255, np.uint8)
        given[:, chance.random(padded) < 0.4] = 0
        given[:, chance.random(padded) < 0.1] = 128
        given[:, inputs:] = 128
        packed = np.empty(calls.regard_packed_bytes(outputs, inputs, CODES["precision"]["int8"]), np.uint8)
        scales, corrections = np.empty(blocks, np.float32), np.empty(blocks, np.int32)
        calls.regard_pack_weights(
            *(pointer(weights), outputs, inputs, CODES["precision"]["int8"], pointer(packed), pointer(scales)),
            pointer(corrections),
        )
        sums = np.empty((rows, blocks), np.int32)
        calls.regard_integer_sums(
            *(instructions.encode(), pointer(given), rows, inputs, pointer(packed), pointer(corrections), outputs),
            pointer(sums),
        )
        whole = np.rint(weights / scales[:outputs, None]).astype(np.int64)
        wanted = (given[:, :inputs].astype(np.int64) - 128) @ whole.T
        assert np.array_equal(sums[:, :outputs], wanted)


@pytest.mark.parametrize("precision", layout.PRECISIONS)
@pytest.mark.parametrize("instructions", SETS)
def test_a_row_has_the_same_bits_alone_and_among_others(precision: str, instructions: str) -> None:
    model = translator()
    engine = compiled(model, precision, instructions)
    source = sources(model, LENGTHS)
    tokens = np.full(len(source), 3, np.int32)
    found, state = engine.step(tokens, engine.start(source, 4), 0)
    more, _ = engine.step(tokens[:4] + 7, state.select(np.array([6, 2, 2, 0])), 0)
    for place, number in enumerate((6, 2, 2, 0)):
        lone = engine.start(Tokens.from_rows([source.row(number)]), 4)
        first, lone = engine.step(tokens[:1], lone, 0)
        second, _ = engine.step(tokens[:1] + 7, lone, 0)
        assert np.array_equal(first.logprobs[0], found.logprobs[number])
        assert np.array_equal(second.logprobs[0], more.logprobs[place])


def test_random_shapes_give_the_numbers_of_torch() -> None:
    chance = np.random.default_rng(11)
    for turn in range(100):
        heads, others = (int(one) for one in chance.integers(1, 5, 2))
        model = translator(
            seed=turn,
            hidden_size=2 * heads * others * int(chance.integers(1, 6)),
            norm=str(chance.choice(["before", "after"])),
            positions=str(chance.choice(POSITIONS)),
            activation=str(chance.choice(ACTIVATIONS)),
            **{
                "encoder.num_heads": heads,
                "decoder.num_heads": others,
                "encoder.num_layers": 1,
                "decoder.num_layers": 1,
            },
            **{
                "encoder.feed_forward_size": int(chance.integers(1, 99)),
                "decoder.feed_forward_size": int(chance.integers(1, 99)),
            },
        )
        source = sources(model, tuple(chance.integers(1, 30, chance.integers(1, 9)).tolist()), seed=turn)
        instructions = SETS[turn % len(SETS)]
        found, wanted = forced(compiled(model, "float32", instructions), source, 2), forced(model, source, 2)
        assert np.allclose(found, wanted, rtol=1e-4, atol=5e-5), (turn, model.config, instructions)


def test_the_best_few_are_those_of_all() -> None:
    model = translator()
    engine, source = compiled(model), sources(model, LENGTHS)
    every, _ = engine.step(np.full(7, 3, np.int32), engine.start(source, 2), 0)
    few, _ = engine.step(np.full(7, 3, np.int32), engine.start(source, 2), 6)
    best = np.argsort(-every.logprobs, axis=1, kind="stable")[:, :6]
    assert np.array_equal(few.ids, best)
    assert np.array_equal(few.logprobs, np.take_along_axis(every.logprobs, best, 1))
    assert few.eos_logprobs is not None and np.array_equal(few.eos_logprobs, every.logprobs[:, 1])
    assert np.allclose(np.exp(every.logprobs).sum(1), 1, atol=1e-5)


SEARCHES = [
    {"beam": 1},
    {"beam": 4},
    {"beam": 5, "nbest": 5, "length_penalty": 0.6},
    {"beam": 3, "length_penalty": 0.0},
]


@pytest.mark.parametrize("settings", SEARCHES, ids=str)
def test_its_own_search_is_the_search(settings: dict[str, float]) -> None:
    config, ended = DecodingConfig(**settings), set()
    for liking in (0.0, 4.0, 8.0):  # for the end: texts reach their limits, or end by themselves
        model = translator(output_bias=True)
        with torch.no_grad():
            model.output_bias[1] += liking
        engine, source = compiled(model), sources(model, (3, 8, 1, 21, 12, 6, 2, 9, 4, 15))
        limits = source.lengths.astype(np.int64) + 4
        ours = search(engine, source, config, max_lengths=limits)
        wishes = _SearchRequest(limits, [[]] * len(source), [ForcedPhrases.none()] * len(source))
        assert ours == _Search(engine, source, config, wishes, ()).run()
        in_torch = search(model, source, config, max_lengths=limits)
        for some, others in zip(ours, in_torch, strict=True):
            assert [(one.ids, one.finished) for one in some] == [(one.ids, one.finished) for one in others]
            ended |= {one.finished for one in some}
    assert ended == {True, False}


def test_given_texts_are_scored_as_torch_scores_them() -> None:
    model = translator()
    source, target = sources(model, (5, 3, 8)), sources(model, (4, 7, 1), seed=9)
    for ours, wanted in zip(
        compiled(model).target_logprobs(source, target), model.target_logprobs(source, target), strict=True
    ):
        assert np.allclose(ours, wanted, atol=1e-4)


def test_a_model_may_be_freed_before_its_states() -> None:
    model = translator()
    engine = compiled(model)
    state = engine.start(sources(model, (5, 3)), 4)
    engine.library.handle.regard_model_free(engine.handle)
    engine.handle = 0
    del state


def test_what_is_wrong_is_told() -> None:
    model = translator(positions="learned", max_positions=6)
    engine = compiled(model)
    with pytest.raises(UsageError, match="outside the source vocabulary"):
        engine.start(Tokens.from_rows([[97]]), 3)
    with pytest.raises(UsageError, match="7 positions but the model learned 6"):
        engine.start(sources(model, (7,)), 3)
    state = engine.start(sources(model, (2,)), 3)
    with pytest.raises(UsageError, match="no row 4"):
        state.select(np.array([4]))
    with pytest.raises(ConfigError, match="precision must be one of"):
        TranslatorEngine.of(model.config, {}, "int4")
    arrays = layout.pack_weights(model.config, {n: t.numpy() for n, t in model.state_dict().items()}, "int8")
    with pytest.raises(UsageError, match=r"array encoder_self_norm\.weight of layer 0 has 60 bytes instead of 128"):
        TranslatorEngine(model.config, [*arrays[:3], arrays[3][:15], *arrays[4:]], "int8")


def test_an_instruction_set_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "portable")
    assert select_instruction_set() == "portable"
    monkeypatch.setenv(VARIABLE, "abacus")
    with pytest.raises(ConfigError, match="no instruction set 'abacus'"):
        select_instruction_set()
