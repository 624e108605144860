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
from regard.packed_tokens import Tokens

INSTRUCTION_SETS = [] if unavailable_reason() else load_library().instructions


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = unavailable_reason()
    if not reason:
        return
    for item in items:
        if "engine" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=f"no engine: {reason}"))


def translator(seed: int = 1, **changes: object) -> Transformer:
    """A small translator with large weights and biases that matter."""
    encoder = StackConfig(num_layers=2, num_heads=2, feed_forward_size=37)
    decoder = StackConfig(num_layers=2, num_heads=4, feed_forward_size=41)
    config = TransformerConfig(
        source_vocab_size=97, target_vocab_size=97, hidden_size=24, encoder=encoder, decoder=decoder
    )
    model = build_model(config.override(changes))
    initialize_weights(model, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def build_engine(model: Transformer, precision: str = "float32", instructions: str = "") -> TranslatorEngine:
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return TranslatorEngine.from_weights(model.config, weights, precision, instructions)


def draw_sources(model: Transformer, lengths: tuple[int, ...], seed: int = 5) -> Tokens:
    rng = np.random.default_rng(seed)
    return Tokens.from_rows([rng.integers(4, model.config.source_vocab_size, length) for length in lengths])


def force_decode(generator, source: Tokens, steps: int, seed: int = 3) -> np.ndarray:
    """Log-probabilities [steps, rows, vocabulary] after the same random tokens."""
    rng = np.random.default_rng(seed)
    state = generator.start(source, steps)
    logprobs = []
    tokens = np.full(len(source), generator.bos_id, np.int32)
    for _ in range(steps):
        candidates, state = generator.step(tokens, state, 0)
        logprobs.append(candidates.logprobs)
        tokens = rng.integers(4, generator.vocab_size, len(source)).astype(np.int32)
    return np.stack(logprobs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with random weights."""
    tokenizer = workload.build_tokenizer(97)
    path = tmp_path_factory.mktemp("models") / "plain"
    model = translator(output_bias=True)
    save_translator(
        path,
        model.config,
        model.state_dict(),
        tokenizers={"source": tokenizer, "target": tokenizer},
        decoding=DecodingConfig(),
        metadata={},
        card="# x\n",
    )
    return path
