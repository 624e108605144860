"""Tracing changes no answer of the engine: translators and causal language models, and what a trace of them holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.peers import workload
from regard.attention.trace import STORES, trace
from regard.checkpoint.causal_dir import save_causal_lm
from regard.checkpoint.model_dir import save_translator
from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig, GenerationConfig
from regard.config.models import GptConfig, StackConfig, TransformerConfig
from regard.decoding.constraints import Constraints
from regard.engine.layout import PRECISIONS
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.pipeline.generation import Generation, GenerationPipeline
from regard.pipeline.load import load_generator, load_translator
from regard.pipeline.translation import TranslationPipeline
from regard.pipeline.translation_result import Translation
from regard.text.train import train_tokenizer

TEXTS = workload.draw_texts([5, 3, 9, 14, 2, 7], 97)
WORDS = TEXTS[0].split()
PROMPTS = ["once", "upon", "a time there was"]
LIMITS = {"max_length_a": 1.0, "max_length_b": 3}
BOUNDS = {"float32": 1e-3, "bf16": 1e-2, "int8": 2e-2}  # of weights, against torch's with the same weights
NARROW = StackConfig(num_layers=2, num_heads=4, feed_forward_size=41)
TRANSLATORS: dict[str, dict[str, Any]] = {
    **{positions: {"positions": positions} for positions in ("sinusoidal", "rotary", "alibi", "relative", "none")},
    "marian": {"norm_placement": "post", "activation": "silu", "output_bias": True},
    "bart": {"norm_placement": "post", "activation": "gelu", "positions": "learned", "tie_embeddings": False},
    "whole blocks": {"hidden_size": 64},  # heads of 16 values: keys and values are paired in bf16
}
CAUSAL = {
    "gpt2": {"positions": "learned"},
    "neox": {"positions": "rotary", "tie_embeddings": False},
    **{positions: {"positions": positions} for positions in ("sinusoidal", "alibi", "relative", "none")},
    "whole blocks": {"hidden_size": 64},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 3, "nbest": 2},
    "batched": {"beam": 2, "batch_size": 2},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Pipelines in the engine by family and precision, each loaded once."""
    root = tmp_path_factory.mktemp("models")

    @cache
    def load(kind: str, family: str, precision: str = "float32", backend: str = "engine") -> Any:
        folder = root / f"{kind}-{family}"
        if not folder.exists():
            SAVE[kind](folder, family)
        return LOAD[kind](folder, precision=precision, backend=backend)

    return load


def save_random_translator(folder: Path, family: str) -> None:
    tokenizer = workload.build_tokenizer(97)
    config = TransformerConfig(
        source_vocab_size=97, target_vocab_size=97, hidden_size=24, encoder=NARROW, decoder=NARROW
    ).override(TRANSLATORS[family])
    save_translator(
        folder,
        config,
        random_weights(config),
        tokenizers={"source": tokenizer, "target": tokenizer},
        decoding=DecodingConfig(**LIMITS),
        metadata={},
        card="",
    )


def save_random_causal_lm(folder: Path, family: str) -> None:
    trained = train_tokenizer(PROMPTS * 9, TokenizerConfig(kind="characters"))
    tokenizer = trained.without_special_tokens()
    config = GptConfig(
        vocab_size=tokenizer.vocab_size, eos_id=tokenizer.eos_id, hidden_size=24, stack=NARROW, max_positions=32
    ).override(CAUSAL[family])
    metadata = {"document": "file"}
    save_causal_lm(folder, config, random_weights(config), tokenizer=tokenizer, metadata=metadata, card="")


def random_weights(config: Any) -> dict[str, torch.Tensor]:
    model = build_model(config)
    initialize_weights(model, 1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or "relative_attention_bias" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.state_dict()


SAVE = {"translator": save_random_translator, "causal": save_random_causal_lm}
LOAD = {"translator": load_translator, "causal": load_generator}


def translation_bits(translation: Translation) -> tuple[Any, ...]:
    """Everything that a translation consists of; equal if it has the same bits."""
    sentences = [sentence.ids for sentence in translation.sentences]
    alternatives = [translation_bits(alternative) for alternative in translation.alternatives]
    return str(translation), translation.score, translation.logprob, translation.finished, sentences, alternatives


def generation_bits(generation: Generation) -> tuple[Any, ...]:
    return str(generation), generation.ids, generation.logprob, generation.finished


def translate(pipeline: TranslationPipeline, **settings: Any) -> list[Any]:
    return [translation_bits(translation) for translation in pipeline.translate(TEXTS, **settings)]


def generate(pipeline: GenerationPipeline, **settings: Any) -> list[Any]:
    config = GenerationConfig(max_new_tokens=9, **settings)
    return [generation_bits(text) for texts in pipeline.generate(PROMPTS, config) for text in texts]


def traces() -> Iterator[Any]:
    """One trace of each kind."""
    for store in STORES:
        yield trace(store=store)
    yield trace("decoder.1.*", heads=[1, 2], queries=[0, 2], full_precision=True)


# ---- the same bits


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", TRANSLATORS)
def test_a_trace_changes_no_bit_of_a_translation(models: Any, family: str, precision: str, search: str) -> None:
    pipeline = models("translator", family, precision)
    expected = translate(pipeline, **SEARCHES[search])
    for open_trace in traces():
        with open_trace as captured:
            assert translate(pipeline, **SEARCHES[search]) == expected
        assert "decoder.1.cross" in captured and "decoder.1.self" in captured
    assert not pipeline.backends[0]._torch_model.is_built


@pytest.mark.parametrize("settings", [{"greedy": True}, {"seed": 3, "top_k": 5, "samples": 2}], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", CAUSAL)
def test_a_trace_changes_no_bit_of_a_generated_text(
    models: Any, family: str, precision: str, settings: dict[str, Any]
) -> None:
    pipeline = models("causal", family, precision)
    expected = generate(pipeline, **settings)
    for open_trace in traces():
        with open_trace as captured:
            assert generate(pipeline, **settings) == expected
        assert "decoder.1.self" in captured
    assert not pipeline.model._torch_model.is_built


@pytest.mark.parametrize(
    "settings",
    [
        {"sample": True, "top_k": 4},
        {"no_repeat_ngram": 2},
        {"beam": 4, "nbest": 4, "diversity_penalty": 0.5},
        {"prefixes": [" ".join(WORDS[:2])] * len(TEXTS)},
        {"constraints": Constraints(force=(" ".join(WORDS[1:3]),))},
        {"constraints": Constraints(forbid=(WORDS[0],))},
        {"split": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_every_kind_of_search_has_the_same_bits(models: Any, precision: str, settings: dict[str, Any]) -> None:
    pipeline = models("translator", "sinusoidal", precision)
    expected = translate(pipeline, **settings)
    with trace():
        assert translate(pipeline, **settings) == expected
