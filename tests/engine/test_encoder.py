"""Encoders in the engine: torch's outputs in float32, close in bf16 and int8, the same bits in every batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.checkpoint.encoder_dir import load_encoder
from regard.config.models import ACTIVATIONS, BertConfig, StackConfig
from regard.engine import layout
from regard.engine.encoder import EncoderEngine
from regard.errors import UsageError
from regard.hardware import available_cores
from regard.models.bert import Bert, initialize_bert
from regard.packed_tokens import Tokens
from tests.checkpoint.hf.encoders import random_tokens, save_transformers_model, transformers_outputs
from tests.engine.conftest import INSTRUCTION_SETS
from tests.scale import scaled

BOUNDS = {
    "float32": 2e-5,
    "bf16": 0.03,
    "int8": 0.08,
}  # relative to the largest output, of small models with large weights
RANDOM_BOUNDS = {"float32": 1e-5, "bf16": 0.03, "int8": 0.1}  # of many shapes, with dequantized weights
LENGTHS = (5, 1, 17, 2, 9, 33, 4, 140)


def build_encoder(seed: int = 1, **changes: object) -> Bert:
    """A small encoder with large weights and biases that matter."""
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=37)
    config = BertConfig(vocab_size=97, hidden_size=24, stack=stack, max_positions=150)
    model = Bert(config.override(changes))
    initialize_bert(model, seed, 0.25)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def build_engine(model: Bert, precision: str = "float32", instructions: str = "") -> EncoderEngine:
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return EncoderEngine.from_weights(model.config, weights, precision, instructions)


def draw_texts(lengths: tuple[int, ...], seed: int = 5, num_types: int = 2) -> Tokens:
    rng = np.random.default_rng(seed)
    rows = Tokens.from_rows([rng.integers(0, 97, length) for length in lengths])
    return Tokens(rows.ids, rows.offsets, rng.integers(0, num_types, len(rows.ids)).astype(np.int32))


def relative_error(output: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(output - expected).max() / np.abs(expected).max())


MODERN_BERT = {
    "stack.num_layers": 4,
    "norm_placement": "pre",
    "gated": True,
    "bias": False,
    "first_attention_norm": False,
    "positions": "rotary",
    "rope_theta": 160_000.0,
    "attention_window": 7,
    "num_token_types": 0,
}
GPT = {
    "causal": True,
    "norm_placement": "pre",
    "embedding_norm": False,
    "num_token_types": 0,
    "pooler": False,
    "pooling": "last",
    "activation": "gelu_tanh",
}
VARIANTS = [
    *(
        {"norm_placement": placement, "num_token_types": count}
        for placement in ("pre", "post")
        for count in (0, 1, 2, 3)
    ),
    *({"activation": activation} for activation in ACTIVATIONS),
    *({"head": head, "num_labels": 3} for head in ("label", "token", "span")),
    {"head": "label", "num_labels": 19, "pooler_activation": "gelu"},
    {"position_offset": 2, "scale_embedding": True, "norm_eps": 1e-5},
    {"hidden_size": 64, "stack.num_heads": 1, "stack.feed_forward_size": 128},
    {"hidden_size": 80, "stack.num_heads": 2, "pooler": False},
    {"layer_groups": 1, "embedding_size": 9},  # ALBERT
    {"embedding_size": 40, "norm_placement": "pre"},
    {**MODERN_BERT, "activation": "gelu", "head": "token", "num_labels": 3},
    {**MODERN_BERT, "activation": "silu", "bias": True, "first_attention_norm": True},
    {**MODERN_BERT, "causal": True},
    {**GPT, "head": "label", "num_labels": 3, "classifier_bias": False},
    {**GPT, "head": "token", "num_labels": 5, "positions": "rotary"},
    *({"causal": True, "positions": positions} for positions in ("learned", "alibi", "relative")),
    *(
        {"head": "label", "num_labels": 3, "pooling": pooling, "pooler": pooler}
        for pooling in ("first", "last", "mean")
        for pooler in (False, True)
    ),
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_float32_gives_the_outputs_of_torch(changes: dict[str, object]) -> None:
    model = build_encoder(**changes)
    engine = build_engine(model)
    tokens = draw_texts(LENGTHS, num_types=max(1, model.config.num_token_types))
    assert relative_error(engine.encode(tokens), model.encode(tokens)) < BOUNDS["float32"]
    pooling = ("mean", "cls", "max")
    assert relative_error(engine.embed_texts(tokens, pooling), model.embed_texts(tokens, pooling)) < BOUNDS["float32"]
    if model.config.has_pooler:
        assert relative_error(engine.pooler_output(tokens), model.pooler_output(tokens)) < BOUNDS["float32"]
    if model.config.num_outputs:
        logits = engine.logits(tokens)
        expected = model.logits(tokens)
        assert logits.shape == expected.shape and relative_error(logits, expected) < BOUNDS["float32"]


def test_a_causal_encoder_reads_no_later_tokens() -> None:
    engine = build_engine(build_encoder(causal=True))
    tokens = draw_texts((9,))
    shortened = Tokens.from_rows([tokens.ids[:5]])
    assert np.array_equal(engine.encode(tokens)[:5], engine.encode(shortened, tokens.token_types[:5]))
    both_directions = build_engine(build_encoder())
    assert not np.allclose(both_directions.encode(tokens)[:5], both_directions.encode(shortened)[:5], atol=1e-3)


@pytest.mark.parametrize(
    "model_type", ["bert", "distilbert", "roberta", "electra", "albert", "modernbert", "gpt2", "gpt_neox"]
)
def test_published_encoders_have_the_outputs_of_transformers(model_type: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    published = save_transformers_model(model_type, "plain", tmp_path)
    loaded = load_encoder(tmp_path)
    weights = {name: tensor.numpy() for name, tensor in loaded.weights.items()}
    arrays = layout.pack_weights(loaded.config, weights, "float32")
    tokens = random_tokens(loaded.config.num_token_types)
    expected, _ = transformers_outputs(published, tokens, "plain")
    engine = EncoderEngine(loaded.config, arrays)
    assert relative_error(engine.encode(tokens), expected) < BOUNDS["float32"]
    unpacked = layout.unpack_weights(loaded.config, arrays, "float32")
    assert unpacked.keys() == weights.keys()
    assert all(np.array_equal(unpacked[name], weight) for name, weight in weights.items())


def test_random_shapes_are_within_their_precision() -> None:
    rng = np.random.default_rng(11)
    for index in range(scaled(1000, 120)):
        heads = int(rng.integers(1, 5))
        model = build_encoder(
            seed=index,
            hidden_size=heads * int(rng.integers(16 // heads, 40)),
            norm_placement=str(rng.choice(["pre", "post"])),
            activation=str(rng.choice(ACTIVATIONS)),
            num_token_types=int(rng.integers(0, 3)),
            position_offset=int(rng.integers(0, 3)),
            **{"stack.num_heads": heads, "stack.num_layers": 1, "stack.feed_forward_size": int(rng.integers(1, 99))},
        )
        lengths = tuple(rng.integers(1, 40, rng.integers(1, 9)).tolist())
        tokens = draw_texts(lengths, index, max(1, model.config.num_token_types))
        precision = layout.PRECISIONS[index % 3]
        instructions = INSTRUCTION_SETS[index // 3 % len(INSTRUCTION_SETS)]
        engine = build_engine(model, precision, instructions)
        weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        packed = layout.pack_weights(model.config, weights, precision)
        dequantized = layout.unpack_weights(model.config, packed, precision)
        model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in dequantized.items()})
        error = relative_error(engine.encode(tokens), model.encode(tokens))
        assert error < RANDOM_BOUNDS[precision], (index, precision, instructions, model.config)


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
@pytest.mark.parametrize("precision", layout.PRECISIONS)
def test_every_instruction_set_is_within_its_precision(instructions: str, precision: str) -> None:
    model = build_encoder(hidden_size=48)
    tokens = draw_texts(LENGTHS)
    error = relative_error(build_engine(model, precision, instructions).encode(tokens), model.encode(tokens))
    assert error < BOUNDS[precision]
    assert precision == "float32" or error > 1e-5  # it is computed in that precision


def test_int8_has_the_same_bits_on_every_instruction_set() -> None:
    tokens = draw_texts(LENGTHS)
    for hidden_size in (40, 64):
        model = build_encoder(hidden_size=hidden_size)
        outputs = [build_engine(model, "int8", instructions).encode(tokens) for instructions in INSTRUCTION_SETS]
        assert all(np.array_equal(outputs[0], output) for output in outputs[1:])


@pytest.mark.parametrize("precision", layout.PRECISIONS)
@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
@pytest.mark.parametrize("norm_placement", ["pre", "post"])
def test_a_text_has_the_same_bits_alone_and_in_a_batch(precision: str, instructions: str, norm_placement: str) -> None:
    model = build_encoder(head="label", num_labels=5, norm_placement=norm_placement)
    tokens = draw_texts(LENGTHS)
    engine = build_engine(model, precision, instructions)
    hidden = engine.encode(tokens)
    logits = engine.logits(tokens)
    embeddings = engine.embed_texts(tokens, ("mean", "max"))
    for threads in (1, 2, 3, 7):
        engine.threads = threads
        assert np.array_equal(engine.encode(tokens), hidden)
        assert np.array_equal(engine.embed_texts(tokens, ("mean", "max")), embeddings)
        assert np.array_equal(engine.embed_texts(tokens, ("cls",)), hidden[tokens.offsets[:-1]])
        assert np.array_equal(engine.logits(tokens), logits)
        for row in range(len(tokens)):
            span = slice(tokens.offsets[row], tokens.offsets[row + 1])
            assert tokens.token_types is not None
            single = Tokens(tokens.ids[span], np.array([0, span.stop - span.start], np.int32), tokens.token_types[span])
            assert np.array_equal(engine.encode(single), hidden[span])
            assert np.array_equal(engine.logits(single)[0], logits[row])
            assert np.array_equal(engine.embed_texts(single, ("mean", "max"))[0], embeddings[row])


@pytest.mark.parametrize("precision", layout.PRECISIONS)
def test_more_threads_than_cores_give_the_same_bits(precision: str) -> None:
    threads = 4 * available_cores() + 1
    engine = build_engine(build_encoder(max_positions=8 * threads), precision)
    # Enough tokens for every thread.
    single = draw_texts((8 * threads,))
    batch = draw_texts((8 * threads, 8 * threads - 3, 5))
    expected = [engine.encode(single), engine.encode(batch), engine.embed_texts(batch, ("mean",))]
    engine.threads = threads
    for _ in range(20):
        outputs = [engine.encode(single), engine.encode(batch), engine.embed_texts(batch, ("mean",))]
        assert all(map(np.array_equal, outputs, expected))


def test_large_activations_stay_distinct_in_int8() -> None:
    model = build_encoder(activation="relu")
    tokens = draw_texts((9, 4))
    with torch.no_grad():  # all activations are on one side of 0
        model.encoder.layers[0].feed_forward.up.bias.add_(4)
    assert relative_error(build_engine(model, "int8").encode(tokens), model.encode(tokens)) < 0.03


def test_wrong_inputs_and_models_are_refused() -> None:
    engine = build_engine(build_encoder(max_positions=6))
    with pytest.raises(UsageError, match="a row has 7 tokens but the model takes 6: split it"):
        engine.encode(draw_texts((7,)))
    with pytest.raises(UsageError, match="outside the source vocabulary"):
        engine.encode(Tokens.from_rows([[97]]))
    with pytest.raises(UsageError, match="token type 2 is not one of 2"):
        engine.encode(Tokens.from_rows([[5]]), np.array([2], np.int32))
    with pytest.raises(UsageError, match="2 types"):
        engine.encode(Tokens.from_rows([[5]]), np.array([0, 1], np.int32))
    with pytest.raises(UsageError, match="a model without a head has hidden states"):
        engine.logits(draw_texts((3,)))
    with pytest.raises(UsageError, match="at least one source text"):
        engine.encode(Tokens.from_rows([]))
    with pytest.raises(UsageError, match="it has no masked head"):
        build_engine(build_encoder(head="masked"))
    with pytest.raises(UsageError, match="no block-sparse attention"):
        build_engine(build_encoder(attention="blocks"))
    with pytest.raises(UsageError, match="it has no attention pooling before a label head"):
        build_engine(build_encoder(head="label", num_labels=3, pooling="attention"))
    with pytest.raises(UsageError, match="encodes and does not generate"):
        zeros = np.zeros(2, np.int32)
        arguments = engine.handle, zeros.ctypes.data, zeros.ctypes.data, 1, None
        engine.library.call(engine.library.handle.regard_start, *arguments)
