"""Causal language models in the engine: torch's log-probabilities, also beyond the model's positions; same texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.attention.intervention import ablate
from regard.attention.trace import trace
from regard.checkpoint.causal_dir import save_causal_lm
from regard.checkpoint.export.convert import convert
from regard.config.data import TokenizerConfig
from regard.config.models import GptConfig, StackConfig
from regard.engine.backend import HybridCausalLM
from regard.engine.causal import CausalEngine
from regard.engine.library import CODES
from regard.errors import ConfigError, UsageError
from regard.models.base import initialize_weights
from regard.models.gpt import Gpt
from regard.packed_tokens import Tokens
from regard.pipeline.load import load, load_generator, load_translator
from regard.text.train import train_tokenizer
from tests.engine.conftest import INSTRUCTION_SETS, force_decode

STACK = StackConfig(num_layers=2, num_heads=4, feed_forward_size=41)
VARIANTS = [
    *({"positions": positions} for positions in CODES["positions"]),
    *({"activation": activation} for activation in ("relu", "gelu", "gelu_tanh")),
    {"tie_embeddings": False, "norm_eps": 1e-3},
    {"max_positions": 9},  # prompt and generated text are longer: half of it is read again
]


def build_gpt(seed: int = 1, **changes: object) -> Gpt:
    """A small model with large weights."""
    model = Gpt(GptConfig(vocab_size=97, hidden_size=24, stack=STACK, max_positions=40).override(changes))
    initialize_weights(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model.eval()


def build_engine(model: Gpt, precision: str = "float32", instructions: str = "") -> CausalEngine:
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return CausalEngine.from_weights(model.config, weights, precision, instructions)


def draw_prompts(rows: int = 7, length: int = 6) -> Tokens:
    return Tokens.from_rows(np.random.default_rng(5).integers(4, 97, (rows, length)).tolist())


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_float32_gives_the_logprobs_of_torch(changes: dict[str, object]) -> None:
    model = build_gpt(**changes)
    engine = build_engine(model)
    for length in (1, 6, 12):
        prompts = draw_prompts(150, length)
        expected = force_decode(model, prompts, 12)
        assert np.allclose(force_decode(engine, prompts, 12), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
@pytest.mark.parametrize(("precision", "bound"), [("float32", 2e-6), ("bf16", 0.02), ("int8", 0.05)])
def test_every_instruction_set_is_within_its_precision(instructions: str, precision: str, bound: float) -> None:
    model = build_gpt(seed=2, hidden_size=48)
    engine = build_engine(model, precision, instructions)
    expected = force_decode(model, draw_prompts(), 4)
    error = np.abs(force_decode(engine, draw_prompts(), 4) - expected).max() / np.abs(expected).max()
    assert error < bound
    if precision != "float32":
        assert error > 1e-6  # it is computed in that precision


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_text_is_continued_alone_as_in_a_batch(precision: str) -> None:
    engine = build_engine(build_gpt(), precision)
    source = draw_prompts()
    tokens = np.full(len(source), 3, np.int32)
    first_of_all, state = engine.step(tokens, engine.start(source, 4), 0)
    second_of_all, _ = engine.step(tokens[:4] + 7, state.select(np.array([6, 2, 2, 0])), 0)
    for selected_row, row in enumerate((6, 2, 2, 0)):
        first, single_state = engine.step(tokens[:1], engine.start(Tokens.from_rows([source.row(row)]), 4), 0)
        second, _ = engine.step(tokens[:1] + 7, single_state, 0)
        assert np.array_equal(first.logprobs[0], first_of_all.logprobs[row])
        assert np.array_equal(second.logprobs[0], second_of_all.logprobs[selected_row])


def test_prompts_and_models_that_it_cannot_run_are_refused() -> None:
    engine = build_engine(build_gpt())
    with pytest.raises(UsageError, match="equally many tokens, at least one"):
        engine.start(Tokens.from_rows([[5, 6], [7]]), 4)
    with pytest.raises(UsageError, match="outside the target vocabulary"):
        engine.start(Tokens.from_rows([[5, 97, 6]]), 4)
    with pytest.raises(UsageError, match="generates and does not encode"):
        engine.run_encoder(draw_prompts())
    with pytest.raises(UsageError, match="it needs an end-of-text token"):
        build_engine(build_gpt(eos_id=-1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_tokenizer(
        ["once upon a time there was"] * 9, TokenizerConfig(kind="characters")
    ).without_special_tokens()
    model = build_gpt(vocab_size=tokenizer.vocab_size, eos_id=tokenizer.eos_id, max_positions=16, positions="learned")
    path = tmp_path_factory.mktemp("models") / "gpt"
    save_causal_lm(
        path, model.config, model.state_dict(), tokenizer=tokenizer, metadata={"document": "file"}, card="# x\n"
    )
    return path


@pytest.mark.parametrize(
    "settings", [{"greedy": True}, {"seed": 3, "temperature": 0.8, "top_k": 5, "samples": 3}], ids=str
)
def test_both_backends_generate_the_same_texts(folder: Path, settings: dict[str, object]) -> None:
    texts = ["once", "upon a", "a time there was"]
    engine = load_generator(folder, backend="engine")
    torch_model = load_generator(folder, backend="torch")
    engine_results = [engine(text, max_new_tokens=30, **settings) for text in texts]
    torch_results = [torch_model(text, max_new_tokens=30, **settings) for text in texts]
    assert [*map(str, engine_results)] == [*map(str, torch_results)]
    engine_logprobs = [result.logprob for result in engine_results]
    assert np.allclose(engine_logprobs, [result.logprob for result in torch_results], atol=1e-3)


def test_torch_computes_while_a_trace_is_active(folder: Path) -> None:
    model = load(folder)
    assert isinstance(model.model, HybridCausalLM)
    generated = model("once", greedy=True, max_new_tokens=9)
    with trace("decoder.1.self") as attention:
        assert model("once", greedy=True, max_new_tokens=9) == generated
    assert "decoder.1.self" in attention
    assert generated.attention["decoder.1.self"].weights.shape[0] == 4
    with pytest.raises(UsageError, match="decoder.7.self"), ablate("decoder.7.self:0"):
        load_generator(folder)  # before any token is generated


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_engine_folder_generates_too(folder: Path, tmp_path: Path, precision: str) -> None:
    converted = convert(folder, tmp_path / "engine", precision=precision)
    assert converted.model_type == f"gpt2 for the engine, {precision}"
    engine = load(converted.folder)
    original = load_generator(folder, precision=precision)
    assert [engine("once", max_new_tokens=20, seed=seed) for seed in range(3)] == [
        original("once", max_new_tokens=20, seed=seed) for seed in range(3)
    ]
    assert load_generator(converted.folder, backend="torch")("once", max_new_tokens=20, greedy=True)
    assert engine.task["document"] == "file"
    with pytest.raises(UsageError, match=f"holds {precision} weights, bf16 was requested"):
        load_generator(converted.folder, precision="bf16")
    with pytest.raises(UsageError, match="a model for the task 'causal-lm'; one for 'translate' is needed"):
        load_translator(converted.folder)
    with pytest.raises(ConfigError, match="not 'int9'"):
        load_generator(folder, precision="int9")
