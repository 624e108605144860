"""Encoders in the engine: torch's numbers in float32, close in bf16 and int8, the same bits whatever is read beside."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.config.models import ACTIVATIONS, BertConfig, StackConfig
from regard.engine import layout
from regard.engine.encoder import EncoderEngine
from regard.errors import UsageError
from regard.hardware import available_cores
from regard.models.bert import Bert, initialize_bert
from regard.tokens import Tokens
from tests.engine.conftest import SETS
from tests.scale import scaled

BOUNDS = {"float32": 2e-5, "bf16": 0.03, "int8": 0.08}  # of the largest number, in small models with sharp weights
WIDEST = {"float32": 1e-5, "bf16": 0.03, "int8": 0.1}  # of many shapes, with weights as the engine keeps them
LENGTHS = (5, 1, 17, 2, 9, 33, 4, 140)


def encoder(seed: int = 1, **changes: object) -> Bert:
    """A small encoder with sharp weights and biases that matter."""
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=37)
    config = BertConfig(vocab_size=97, hidden_size=24, stack=stack, max_positions=150)
    model = Bert(config.override(changes))
    initialize_bert(model, seed, 0.25)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=noise))
    return model.eval()


def compiled(model: Bert, precision: str = "float32", instructions: str = "") -> EncoderEngine:
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return EncoderEngine.from_weights(model.config, weights, precision, instructions)


def texts(lengths: tuple[int, ...], seed: int = 5, types: int = 2) -> Tokens:
    chance = np.random.default_rng(seed)
    rows = Tokens.from_rows([chance.integers(0, 97, length) for length in lengths])
    return Tokens(rows.ids, rows.offsets, chance.integers(0, types, len(rows.ids)).astype(np.int32))


def away(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


VARIANTS = [
    *({"norm": norm, "num_token_types": types} for norm in ("before", "after") for types in (0, 1, 2, 3)),
    *({"activation": one} for one in ACTIVATIONS),
    *({"head": head, "num_labels": 3} for head in ("label", "token", "span")),
    {"head": "label", "num_labels": 19, "pooler_activation": "gelu"},
    {"position_offset": 2, "scale_embedding": True, "norm_eps": 1e-5},
    {"hidden_size": 64, "stack.num_heads": 1, "stack.feed_forward_size": 128},
    {"hidden_size": 80, "stack.num_heads": 2, "pooler": False},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_float32_gives_the_numbers_of_torch(changes: dict[str, object]) -> None:
    model = encoder(**changes)
    tokens, engine = texts(LENGTHS, types=max(1, model.config.num_token_types)), compiled(model)
    assert away(engine.encode(tokens), model.encode(tokens)) < BOUNDS["float32"]
    kinds = ("mean", "cls", "max")
    assert away(engine.embed_texts(tokens, kinds), model.embed_texts(tokens, kinds)) < BOUNDS["float32"]
    if model.config.has_pooler:
        assert away(engine.pooler_output(tokens), model.pooler_output(tokens)) < BOUNDS["float32"]
    if model.config.num_outputs:
        found, wanted = engine.logits(tokens), model.logits(tokens)
        assert found.shape == wanted.shape and away(found, wanted) < BOUNDS["float32"]


def test_random_shapes_are_within_their_precision() -> None:
    chance = np.random.default_rng(11)
    for turn in range(scaled(1000, 120)):
        heads = int(chance.integers(1, 5))
        model = encoder(
            seed=turn,
            hidden_size=heads * int(chance.integers(16 // heads, 40)),
            norm=str(chance.choice(["before", "after"])),
            activation=str(chance.choice(ACTIVATIONS)),
            num_token_types=int(chance.integers(0, 3)),
            position_offset=int(chance.integers(0, 3)),
            **{"stack.num_heads": heads, "stack.num_layers": 1, "stack.feed_forward_size": int(chance.integers(1, 99))},
        )
        tokens = texts(
            tuple(chance.integers(1, 40, chance.integers(1, 9)).tolist()), turn, max(1, model.config.num_token_types)
        )
        precision, instructions = layout.PRECISIONS[turn % 3], SETS[turn // 3 % len(SETS)]
        engine = compiled(model, precision, instructions)
        weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        kept = layout.unpack_weights(model.config, layout.pack_weights(model.config, weights, precision), precision)
        model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in kept.items()})
        found = away(engine.encode(tokens), model.encode(tokens))
        assert found < WIDEST[precision], (turn, precision, instructions, model.config)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("precision", layout.PRECISIONS)
def test_every_instruction_set_is_within_its_precision(instructions: str, precision: str) -> None:
    model, tokens = encoder(hidden_size=48), texts(LENGTHS)
    found = away(compiled(model, precision, instructions).encode(tokens), model.encode(tokens))
    assert found < BOUNDS[precision]
    assert precision == "float32" or found > 1e-5  # it is computed in that precision


def test_int8_has_the_same_bits_on_every_instruction_set() -> None:
    for width in (40, 64):
        model, tokens = encoder(hidden_size=width), texts(LENGTHS)
        first, *others = (compiled(model, "int8", one).encode(tokens) for one in SETS)
        assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("precision", layout.PRECISIONS)
@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("norm", ["before", "after"])
def test_a_text_has_the_same_bits_alone_and_among_others(precision: str, instructions: str, norm: str) -> None:
    model, tokens = encoder(head="label", num_labels=5, norm=norm), texts(LENGTHS)
    engine = compiled(model, precision, instructions)
    states, scores, vectors = engine.encode(tokens), engine.logits(tokens), engine.embed_texts(tokens, ("mean", "max"))
    for threads in (1, 2, 3, 7):
        engine.threads = threads
        assert np.array_equal(engine.encode(tokens), states)
        assert np.array_equal(engine.embed_texts(tokens, ("mean", "max")), vectors)
        assert np.array_equal(engine.embed_texts(tokens, ("cls",)), states[tokens.offsets[:-1]])
        assert np.array_equal(engine.logits(tokens), scores)
        for number in range(len(tokens)):
            part = slice(tokens.offsets[number], tokens.offsets[number + 1])
            assert tokens.token_types is not None
            alone = Tokens(tokens.ids[part], np.array([0, part.stop - part.start], np.int32), tokens.token_types[part])
            assert np.array_equal(engine.encode(alone), states[part])
            assert np.array_equal(engine.logits(alone)[0], scores[number])
            assert np.array_equal(engine.embed_texts(alone, ("mean", "max"))[0], vectors[number])


@pytest.mark.parametrize("precision", layout.PRECISIONS)
def test_more_threads_than_cores_give_the_same_bits(precision: str) -> None:
    threads = 4 * available_cores() + 1
    model = encoder(max_positions=8 * threads)
    engine = compiled(model, precision)
    lone, several = texts((8 * threads,)), texts((8 * threads, 8 * threads - 3, 5))  # enough rows for every thread
    expected = [engine.encode(lone), engine.encode(several), engine.embed_texts(several, ("mean",))]
    engine.threads = threads
    for _ in range(20):
        found = [engine.encode(lone), engine.encode(several), engine.embed_texts(several, ("mean",))]
        assert all(map(np.array_equal, found, expected))


def test_large_activations_are_told_apart_in_bytes() -> None:
    model, tokens = encoder(activation="relu"), texts((9, 4))
    with torch.no_grad():  # all activations are on one side of 0
        model.stack.blocks[0].feedforward.inner.bias.add_(4)
    assert away(compiled(model, "int8").encode(tokens), model.encode(tokens)) < 0.03


def test_what_is_wrong_is_told() -> None:
    engine = compiled(encoder(max_positions=6))
    with pytest.raises(UsageError, match="a row has 7 tokens but the model takes 6: split it"):
        engine.encode(texts((7,)))
    with pytest.raises(UsageError, match="outside the source vocabulary"):
        engine.encode(Tokens.from_rows([[97]]))
    with pytest.raises(UsageError, match="token type 2 is not one of 2"):
        engine.encode(Tokens.from_rows([[5]]), np.array([2], np.int32))
    with pytest.raises(UsageError, match="2 types"):
        engine.encode(Tokens.from_rows([[5]]), np.array([0, 1], np.int32))
    with pytest.raises(UsageError, match="a model without a head gives states"):
        engine.logits(texts((3,)))
    with pytest.raises(UsageError, match="at least one source text"):
        engine.encode(Tokens.from_rows([]))
    with pytest.raises(UsageError, match="it has no masked head"):
        compiled(encoder(head="masked"))
    with pytest.raises(UsageError, match="not blocks at blocks"):
        compiled(encoder(attention="blocks"))
    with pytest.raises(UsageError, match="share weights"):
        compiled(encoder(layer_groups=1))
    with pytest.raises(UsageError, match="words narrower than the states"):
        compiled(encoder(embedding_size=8))
    with pytest.raises(UsageError, match="encodes and does not generate"):
        engine.library.call(
            engine.library.handle.regard_start, engine.handle, *(np.zeros(2, np.int32).ctypes.data,) * 2, 1
        )
