"""Causal language models in the engine: torch's numbers, beyond the model's places too, and the same texts."""

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
from regard.engine.causal import CausalEngine
from regard.engine.folder import SwitchingCausalLM
from regard.errors import ConfigError, UsageError
from regard.models.base import initialize_weights
from regard.models.gpt import Gpt
from regard.pipeline.load import load, load_translator
from regard.pipeline.loaders import load_generator
from regard.text.train import train_tokenizer
from regard.tokens import Tokens
from tests.engine.conftest import SETS, forced

STACK = StackConfig(num_layers=2, num_heads=4, feed_forward_size=41)
VARIANTS = [
    *({"positions": kind} for kind in ("learned", "rotary", "sinusoidal")),
    *({"activation": one} for one in ("relu", "gelu", "gelu_tanh")),
    {"tie_embeddings": False, "norm_eps": 1e-3},
    {"max_positions": 9},  # what is given and written is longer: half of it is read again
]


def gpt(seed: int = 1, **changes: object) -> Gpt:
    """A small model with sharp weights."""
    model = Gpt(GptConfig(vocab_size=97, hidden_size=24, stack=STACK, max_positions=40).override(changes))
    initialize_weights(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model.eval()


def compiled(model: Gpt, precision: str = "float32", instructions: str = "") -> CausalEngine:
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return CausalEngine.of(model.config, weights, precision, instructions)


def prompts(rows: int = 7, length: int = 6) -> Tokens:
    return Tokens.from_rows(np.random.default_rng(5).integers(4, 97, (rows, length)).tolist())


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_float32_gives_the_numbers_of_torch(changes: dict[str, object]) -> None:
    model = gpt(**changes)
    for length in (1, 6, 12):
        wanted = forced(model, prompts(150, length), 12)
        assert np.allclose(forced(compiled(model), prompts(150, length), 12), wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize(("precision", "bound"), [("float32", 2e-6), ("bf16", 0.02), ("int8", 0.05)])
def test_every_instruction_set_is_within_its_precision(instructions: str, precision: str, bound: float) -> None:
    model = gpt(hidden_size=48)
    wanted = forced(model, prompts(), 4)
    away = np.abs(forced(compiled(model, precision, instructions), prompts(), 4) - wanted).max() / np.abs(wanted).max()
    assert away < bound
    if precision != "float32":
        assert away > 1e-6  # it is computed in that precision


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_text_is_continued_alone_as_among_others(precision: str) -> None:
    engine, source = compiled(gpt(), precision), prompts()
    tokens = np.full(len(source), 3, np.int32)
    found, state = engine.step(tokens, engine.start(source, 4), 0)
    more, _ = engine.step(tokens[:4] + 7, state.select(np.array([6, 2, 2, 0])), 0)
    for place, number in enumerate((6, 2, 2, 0)):
        first, lone = engine.step(tokens[:1], engine.start(Tokens.from_rows([source.row(number)]), 4), 0)
        second, _ = engine.step(tokens[:1] + 7, lone, 0)
        assert np.array_equal(first.logprobs[0], found.logprobs[number])
        assert np.array_equal(second.logprobs[0], more.logprobs[place])


def test_what_it_cannot_continue_is_told() -> None:
    engine = compiled(gpt())
    with pytest.raises(UsageError, match="equally many tokens, at least one"):
        engine.start(Tokens.from_rows([[5, 6], [7]]), 4)
    with pytest.raises(UsageError, match="outside the target vocabulary"):
        engine.start(Tokens.from_rows([[5, 97, 6]]), 4)
    with pytest.raises(UsageError, match="generates and does not encode"):
        engine.run_encoder(prompts())
    with pytest.raises(UsageError, match="it writes texts that have an end"):
        compiled(gpt(eos_id=-1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_tokenizer(
        ["once upon a time there was"] * 9, TokenizerConfig(kind="characters")
    ).without_special_tokens()
    model = gpt(vocab_size=tokenizer.vocab_size, eos_id=tokenizer.eos_id, max_positions=16, positions="learned")
    place = tmp_path_factory.mktemp("models") / "gpt"
    save_causal_lm(
        place, model.config, model.state_dict(), tokenizer=tokenizer, facts={"document": "file"}, card="# x\n"
    )
    return place


@pytest.mark.parametrize(
    "settings", [{"greedy": True}, {"seed": 3, "temperature": 0.8, "top_k": 5, "samples": 3}], ids=str
)
def test_both_backends_write_the_same_texts(folder: Path, settings: dict[str, object]) -> None:
    texts = ["once", "upon a", "a time there was"]
    found, wanted = (
        [load_generator(folder, backend=one)(text, max_new_tokens=30, **settings) for text in texts]
        for one in ("engine", "torch")
    )
    assert [*map(str, found)] == [*map(str, wanted)]
    assert np.allclose([one.logprob for one in found], [one.logprob for one in wanted], atol=1e-3)


def test_torch_answers_while_someone_watches(folder: Path) -> None:
    model = load(folder)
    assert isinstance(model.model, SwitchingCausalLM)
    plain = model("once", greedy=True, max_new_tokens=9)
    with trace("decoder.1.self") as seen:
        assert model("once", greedy=True, max_new_tokens=9) == plain
    assert "decoder.1.self" in seen
    assert plain.attention["decoder.1.self"].weights.shape[0] == 4
    with pytest.raises(UsageError, match="decoder.7.self"), ablate("decoder.7.self:0"):
        load_generator(folder)  # before anything is written


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_folder_for_the_engine_writes_too(folder: Path, tmp_path: Path, precision: str) -> None:
    made = convert(folder, tmp_path / "ready", precision=precision)
    assert made.model_type == f"gpt2 for the engine, {precision}"
    ready, same = load(made.folder), load_generator(folder, precision=precision)
    assert [ready("once", max_new_tokens=20, seed=seed) for seed in range(3)] == [
        same("once", max_new_tokens=20, seed=seed) for seed in range(3)
    ]
    assert load_generator(made.folder, backend="torch")("once", max_new_tokens=20, greedy=True)
    assert ready.task["document"] == "file"
    with pytest.raises(UsageError, match=f"holds {precision} weights, bf16 was asked for"):
        load_generator(made.folder, precision="bf16")
    with pytest.raises(UsageError, match="a causal language model, where a translator is needed"):
        load_translator(made.folder)
    with pytest.raises(ConfigError, match="not 'int9'"):
        load_generator(folder, precision="int9")
