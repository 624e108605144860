"""Small translators in torch and in the engine; without the engine these tests are skipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.peers import workload
from regard.checkpoint.model_folder import save_model
from regard.config.decoding import DecodingConfig
from regard.config.model import StackConfig, TranslatorConfig
from regard.engine.library import absence, library
from regard.engine.translator import Engine
from regard.models import build
from regard.models.base import start_weights
from regard.models.translator import Translator
from regard.tokens import Tokens

SETS = [] if absence() else library().instructions


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason=f"no engine: {absence()}")
    for item in items if absence() else []:
        if "engine" in item.path.parts:
            item.add_marker(missing)


def translator(seed: int = 1, **changes: object) -> Translator:
    """A small translator with sharp weights and biases that matter."""
    encoder = StackConfig(layers=2, heads=2, feedforward=37)
    decoder = StackConfig(layers=2, heads=4, feedforward=41)
    config = TranslatorConfig(source_vocabulary=97, target_vocabulary=97, width=24, encoder=encoder, decoder=decoder)
    model = build(config.override(changes))
    start_weights(model, seed)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=noise))
    return model.eval()


def compiled(model: Translator, precision: str = "float32", instructions: str = "") -> Engine:
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return Engine.of(model.config, weights, precision, instructions)


def sources(model: Translator, lengths: tuple[int, ...], seed: int = 5) -> Tokens:
    chance = np.random.default_rng(seed)
    return Tokens.from_rows([chance.integers(4, model.config.source_vocabulary, length) for length in lengths])


def forced(generator, source: Tokens, steps: int, seed: int = 3) -> np.ndarray:
    """All log-probabilities [steps, R, V] of the same drawn tokens."""
    chance, state, made = np.random.default_rng(seed), generator.start(source, steps), []
    tokens = np.full(len(source), generator.start_token, np.int32)
    for _ in range(steps):
        found, state = generator.step(tokens, state, 0)
        made.append(found.logp)
        tokens = chance.integers(4, generator.vocabulary, len(source)).astype(np.int32)
    return np.stack(made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with made-up weights."""
    words = workload.build_tokenizer(97)
    place = tmp_path_factory.mktemp("models") / "plain"
    model = translator(output_bias=True)
    tokenizers = {"source": words, "target": words}
    save_model(
        place, model.config, model.state_dict(), tokenizers=tokenizers, decoding=DecodingConfig(), task={}, card="# x\n"
    )
    return place
