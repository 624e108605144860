"""Random stacks of blocks: for every setting of a block, the engine gives the hidden states and logprobs of torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.masks import BoundMask
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import Alibi, RelativeBias, Rotary
from regard.config.description import LayerDescription, StackDescription
from regard.engine.base import EngineDecoder, EngineModel
from regard.engine.description import ModelDescription
from regard.engine.layout import PRECISIONS, pack_weights, unpack_weights
from regard.models.layers.layer_spec import LayerSpec, same_layers
from regard.models.layers.stack import TransformerStack
from regard.packed_tokens import Tokens
from tests.engine.conftest import INSTRUCTION_SETS
from tests.models.layers.random_stacks import random_config, random_stack
from tests.scale import scaled

NUM_SETTINGS = 200
SETTINGS_PER_TEST = 20
VOCAB_SIZE = 50
LENGTHS = (9, 1, 17, 5, 40)
PROMPT_LENGTH = 3
NUM_STEPS = 6
BOUNDS = {"float32": 1e-5, "bf16": 0.1, "int8": 0.25}  # relative to the largest output

Weights = Mapping[str, np.ndarray]


def describe_stack(stack: TransformerStack, side: str) -> StackDescription:
    """The description of a torch stack, encoder or decoder."""
    tables = bias_tables(stack)
    layers = [describe_layer(layer, tables) for layer in stack.layer_specs]
    bias_names = [f"{side}.relative_bias.{index}" for index in range(len(tables))]
    return StackDescription(stack.config, tuple(layers), tuple(bias_names))


def bias_tables(stack: TransformerStack) -> list[RelativeBias]:
    """Relative biases of a stack; layers may share one."""
    return list(dict.fromkeys(layer.positions for layer in stack.layer_specs if is_relative(layer)))


def is_relative(layer: LayerSpec) -> bool:
    return isinstance(layer.positions, RelativeBias)


def describe_layer(layer: LayerSpec, tables: list[RelativeBias]) -> LayerDescription:
    positions = layer.positions
    shared = {"block": layer.block, "window": layer.window}
    if isinstance(positions, Rotary):
        return LayerDescription(
            **shared,
            positions="rotary",
            theta=positions.theta,
            rotary_dim=positions.rotary_dim,
            interleaved=positions.interleaved,
            scaling=positions.scaling,
            factor=positions.factor,
        )
    if isinstance(positions, RelativeBias):
        return LayerDescription(
            **shared,
            positions="relative",
            bias_table=tables.index(positions),
            num_buckets=positions.num_buckets,
            max_distance=positions.max_distance,
        )
    return LayerDescription(**shared, positions="alibi" if isinstance(positions, Alibi) else "none")


def stack_weights(side: str, stack: TransformerStack) -> dict[str, np.ndarray]:
    """Weights of a stack and of its relative biases, by the names of the engine."""
    weights = {f"{side}.{name}": tensor.float().numpy() for name, tensor in stack.state_dict().items()}
    for index, table in enumerate(bias_tables(stack)):
        weight = table.relative_attention_bias.weight.detach()
        weights[f"{side}.relative_bias.{index}.weight"] = weight.float().numpy()
    return weights


def random_table(seed: int, hidden_size: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((VOCAB_SIZE, hidden_size)).astype(np.float32)


def draw_tokens(seed: int, lengths: tuple[int, ...]) -> Tokens:
    rng = np.random.default_rng(seed)
    return Tokens.from_rows([rng.integers(0, VOCAB_SIZE, length) for length in lengths])


def embed(table: np.ndarray, tokens: Tokens) -> tuple[Tensor, PackedBatch]:
    """Embeddings in float64: without residual connections, float32 loses more than the tolerance in torch, too."""
    return torch.from_numpy(table[tokens.ids]).double(), PackedBatch(tokens.lengths)


def relative_error(output: np.ndarray, expected: np.ndarray) -> float:
    assert output.shape == expected.shape
    assert np.isfinite(expected).all()
    return float(np.abs(output - expected).max() / max(1.0, np.abs(expected).max()))


def to_double(stack: TransformerStack) -> TransformerStack:
    for layer in stack.layer_specs:
        layer.positions.double()
    return stack.double()


# ---- models of random stacks


def describe_encoder(stack: TransformerStack) -> ModelDescription:
    return ModelDescription(
        encoder=describe_stack(stack, "encoder"), source_vocab_size=VOCAB_SIZE, source_embedding="source_embedding"
    )


def describe_decoder(stack: TransformerStack) -> ModelDescription:
    return ModelDescription(
        decoder=describe_stack(stack, "decoder"),
        target_vocab_size=VOCAB_SIZE,
        target_embedding="target_embedding",
        output="lm_head.weight",
    )


def describe_translator(encoder: TransformerStack, decoder: TransformerStack) -> ModelDescription:
    return ModelDescription(
        encoder=describe_stack(encoder, "encoder"),
        decoder=describe_stack(decoder, "decoder"),
        source_vocab_size=VOCAB_SIZE,
        target_vocab_size=VOCAB_SIZE,
        source_embedding="source_embedding",
        target_embedding="target_embedding",
        output="lm_head.weight",
    )


def decoder_weights(decoder: TransformerStack) -> dict[str, np.ndarray]:
    return {
        "target_embedding.weight": random_table(2),
        "lm_head.weight": 0.3 * random_table(3),
        **stack_weights("decoder", decoder),
    }


def encoder_weights(encoder: TransformerStack) -> dict[str, np.ndarray]:
    return {"source_embedding.weight": random_table(1), **stack_weights("encoder", encoder)}


def random_decoder(seed: int, *, cross_attention: bool, **changes: object) -> TransformerStack:
    """The random stack of a seed, with or without cross-attention."""
    return to_double(random_stack(seed, is_causal=True, changes={"cross_attention": cross_attention, **changes}))


def random_encoder(seed: int, **changes: object) -> TransformerStack:
    return to_double(random_stack(seed, is_causal=False, changes={"cross_attention": False, **changes}))


# ---- the same computations in torch and in the engine


def torch_logprobs(
    decoder: TransformerStack,
    weights: Weights,
    tokens: np.ndarray,  # [rows, length]
    *,
    source_hidden: Tensor | None = None,
    source_batch: PackedBatch | None = None,
) -> np.ndarray:  # [rows, length, vocabulary]
    """Log-probabilities after each token, from whole sequences."""
    hidden, batch = embed(weights["target_embedding.weight"], Tokens.from_rows(list(tokens)))
    sources = []
    source_mask: BoundMask | None = None
    if source_hidden is not None and source_batch is not None:
        sources = decoder.precompute_keys_values(source_hidden, source_batch)
        source_mask = source_batch.cross_mask(batch)
    output = decoder(hidden, batch, sources=sources, source_mask=source_mask)
    logits = output @ torch.from_numpy(weights["lm_head.weight"]).double().T
    return logits.log_softmax(-1).unflatten(0, tokens.shape).numpy()


def engine_logprobs(engine: EngineDecoder, prompt: Tokens, tokens: np.ndarray) -> np.ndarray:
    """Log-probabilities after each of these tokens [rows, steps], from cached steps; rows swap places on the way."""
    ids = prompt.ids.astype(np.int32)
    state = engine.start_state(ids, prompt.offsets.astype(np.int32))
    logprobs = []
    for step in range(tokens.shape[1]):
        is_swapped = step % 2 == 1
        order = np.arange(len(tokens))[:: -1 if is_swapped else 1]
        if step:
            state = state.select(np.arange(len(tokens))[::-1])
        candidates, _ = engine.run_step(np.ascontiguousarray(tokens[order, step]), state, 0, None)
        logprobs.append(candidates.logprobs[order])
    return np.stack(logprobs, axis=1)


def check_encoder(seed: int, precision: str, instructions: str, **changes: object) -> float:
    """Error of a random encoder on packed texts."""
    stack = random_encoder(seed, **changes)
    model = describe_encoder(stack)
    weights = encoder_weights(stack)
    engine = EngineModel(model, pack_weights(model, weights, precision), precision, instructions)
    tokens = draw_tokens(seed, LENGTHS)
    hidden, batch = embed(weights["source_embedding.weight"], tokens)
    return relative_error(engine.run_encoder(tokens), stack(hidden, batch).numpy())


def check_causal(seed: int, precision: str, instructions: str, **changes: object) -> float:
    """Error of a random causal decoder after a prompt."""
    stack = random_decoder(seed, cross_attention=False, **changes)
    model = describe_decoder(stack)
    weights = decoder_weights(stack)
    engine = EngineDecoder(model, pack_weights(model, weights, precision), precision, instructions)
    tokens = np.random.default_rng(seed).integers(0, VOCAB_SIZE, (3, PROMPT_LENGTH + NUM_STEPS)).astype(np.int32)
    prompt = Tokens.from_rows(list(tokens[:, :PROMPT_LENGTH]))
    logprobs = engine_logprobs(engine, prompt, tokens[:, PROMPT_LENGTH:])
    return relative_error(logprobs, torch_logprobs(stack, weights, tokens)[:, PROMPT_LENGTH:])


def check_translator(seed: int, precision: str, instructions: str, **changes: object) -> float:
    """Error of a random encoder–decoder."""
    encoder = random_encoder(seed + 1000, **changes)
    decoder = random_decoder(seed, cross_attention=True, **changes)
    model = describe_translator(encoder, decoder)
    weights = {**encoder_weights(encoder), **decoder_weights(decoder)}
    engine = EngineDecoder(model, pack_weights(model, weights, precision), precision, instructions)
    source = draw_tokens(seed, (4, 11, 4))
    tokens = np.random.default_rng(seed).integers(0, VOCAB_SIZE, (3, NUM_STEPS)).astype(np.int32)
    hidden, batch = embed(weights["source_embedding.weight"], source)
    expected = torch_logprobs(decoder, weights, tokens, source_hidden=encoder(hidden, batch), source_batch=batch)
    return relative_error(engine_logprobs(engine, source, tokens), expected)


CHECKS = {"encoder": check_encoder, "causal": check_causal, "translator": check_translator}


@pytest.mark.parametrize("first_seed", range(0, scaled(NUM_SETTINGS, 100), SETTINGS_PER_TEST))
@pytest.mark.parametrize("kind", CHECKS)
@torch.inference_mode()
def test_float32_gives_the_outputs_of_torch(kind: str, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SETTINGS_PER_TEST):
        instructions = INSTRUCTION_SETS[seed % len(INSTRUCTION_SETS)]
        error = CHECKS[kind](seed, "float32", instructions)
        assert error < BOUNDS["float32"], (seed, instructions, random_config(np.random.default_rng(seed)))


@pytest.mark.parametrize("kind", CHECKS)
@pytest.mark.parametrize("precision", ["bf16", "int8"])
@torch.inference_mode()
def test_lower_precisions_are_close(kind: str, precision: str) -> None:
    for seed in range(scaled(100, 24)):
        instructions = INSTRUCTION_SETS[seed % len(INSTRUCTION_SETS)]
        error = CHECKS[kind](seed, precision, instructions, residual=True)
        assert error < BOUNDS[precision], (seed, instructions, random_config(np.random.default_rng(seed)))


@torch.inference_mode()
def test_windows_and_biases_of_long_texts() -> None:
    """Several blocks of keys: most of them are outside of a window."""
    for seed in range(20):
        stack = random_encoder(seed)
        layers = [LayerSpec(layer.block, layer.positions, window=20) for layer in stack.layer_specs]
        stack.layer_specs = tuple(layers)
        model = describe_encoder(stack)
        weights = encoder_weights(stack)
        engine = EngineModel(model, pack_weights(model, weights, "float32"))
        tokens = draw_tokens(seed, (150, 33, 290))
        hidden, batch = embed(weights["source_embedding.weight"], tokens)
        output = engine.run_encoder(tokens)
        assert relative_error(output, stack(hidden, batch).numpy()) < BOUNDS["float32"]
        assert np.array_equal(engine.run_encoder(tokens, threads=3), output)


@pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])
@torch.inference_mode()
def test_relative_buckets_of_all_distances(is_causal: bool) -> None:
    """T5's bias, shared by all layers, in a long text: the buckets of the engine are those of torch."""
    for num_buckets, max_distance in ((32, 128), (6, 8), (20, 50)):
        positions = RelativeBias(3, is_causal=is_causal, num_buckets=num_buckets, max_distance=max_distance)
        torch.manual_seed(1)
        positions.relative_attention_bias.weight.normal_()
        changes = {"cross_attention": False, "num_heads": 3, "num_kv_heads": 0}
        stack = random_stack(5, is_causal, changes=changes)
        stack.layer_specs = tuple(same_layers(3, positions, is_causal=is_causal))
        assert_same_outputs(to_double(stack), is_causal)


def assert_same_outputs(stack: TransformerStack, is_causal: bool) -> None:
    length = 200
    tokens = np.random.default_rng(1).integers(0, VOCAB_SIZE, (1, length)).astype(np.int32)
    if is_causal:
        model = describe_decoder(stack)
        weights = decoder_weights(stack)
        engine = EngineDecoder(model, pack_weights(model, weights, "float32"))
        logprobs = engine_logprobs(engine, Tokens.from_rows([[]]), tokens)
        assert relative_error(logprobs, torch_logprobs(stack, weights, tokens)) < BOUNDS["float32"]
        return
    model = describe_encoder(stack)
    weights = encoder_weights(stack)
    encoder = EngineModel(model, pack_weights(model, weights, "float32"))
    texts = Tokens.from_rows(list(tokens))
    hidden, batch = embed(weights["source_embedding.weight"], texts)
    assert relative_error(encoder.run_encoder(texts), stack(hidden, batch).numpy()) < BOUNDS["float32"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_unpacked_weights_have_the_names_of_the_stack(precision: str) -> None:
    for seed in range(20):
        encoder = random_encoder(seed + 1000)
        decoder = random_decoder(seed, cross_attention=True)
        model = describe_translator(encoder, decoder)
        weights = {**encoder_weights(encoder), **decoder_weights(decoder)}
        unpacked = unpack_weights(model, pack_weights(model, weights, precision), precision)
        assert unpacked.keys() == weights.keys()
        for name, array in weights.items():
            assert np.abs(unpacked[name] - array).max() <= 0.02 * np.abs(array).max(), name
