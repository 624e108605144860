"""Small translators in torch and in the engine; without the engine these tests are skipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.peers import workload
from regard.checkpoint.model_dir import save_translator
from regard.config.inference import DecodingConfig
from regard.config.models import StackConfig, TransformerConfig
from regard.engine.library import load_library, unavailable_reason
from regard.engine.translator import TranslatorEngine
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.models.transformer import Transformer
from regard.tokens import Tokens

SETS = [] if unavailable_reason() else load_library().instructions


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason=f"no engine: {unavailable_reason()}")
    for item in items if unavailable_reason() else []:
        if "engine" in item.path.parts:
            item.add_marker(missing)


def translator(seed: int = 1, **changes: object) -> Transformer:
    """A small translator with sharp weights and biases that matter."""
    encoder = StackConfig(num_layers=2, num_heads=2, feed_forward_size=37)
    decoder = StackConfig(num_layers=2, num_heads=4, feed_forward_size=41)
    config = TransformerConfig(
        source_vocab_size=97, target_vocab_size=97, hidden_size=24, encoder=encoder, decoder=decoder
    )
    model = build_model(config.override(changes))
    initialize_weights(model, seed)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=noise))
    return model.eval()


def compiled(model: Transformer, precision: str = "float32", instructions: str = "") -> TranslatorEngine:
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return TranslatorEngine.of(model.config, weights, precision, instructions)


def sources(model: Transformer, lengths: tuple[int, ...], seed: int = 5) -> Tokens:
    chance = np.random.default_rng(seed)
    return Tokens.from_rows([chance.integers(4, model.config.source_vocab_size, length) for length in lengths])


def forced(generator, source: Tokens, steps: int, seed: int = 3) -> np.ndarray:
    """All log-probabilities [steps, R, V] of the same drawn tokens."""
    chance, state, made = np.random.default_rng(seed), generator.start(source, steps), []
    tokens = np.full(len(source), generator.bos_id, np.int32)
    for _ in range(steps):
        found, state = generator.step(tokens, state, 0)
        made.append(found.logprobs)
        tokens = chance.integers(4, generator.vocab_size, len(source)).astype(np.int32)
    return np.stack(made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with made-up weights."""
    words = workload.build_tokenizer(97)
    place = tmp_path_factory.mktemp("models") / "plain"
    model = translator(output_bias=True)
    tokenizers = {"source": words, "target": words}
    save_translator(
        place, model.config, model.state_dict(), tokenizers=tokenizers, decoding=DecodingConfig(), task={}, card="# x\n"
    )
    return place
