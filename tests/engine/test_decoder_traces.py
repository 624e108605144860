"""Tracing changes no answer of the engine: translators and causal language models, and what a trace of them holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.peers import workload
from regard.attention.intervention import ablate
from regard.attention.trace import STORES, Trace, trace
from regard.checkpoint.causal_dir import save_causal_lm
from regard.checkpoint.model_dir import save_translator
from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig, GenerationConfig
from regard.config.models import GptConfig, StackConfig, TransformerConfig
from regard.decoding.constraints import Constraints
from regard.decoding.search import search
from regard.engine import forced_decoding, sites
from regard.engine.base import EngineDecoder
from regard.engine.forced_decoding import vocabulary_logprobs
from regard.engine.layout import PRECISIONS, pack_weights, unpack_weights
from regard.errors import UsageError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.packed_tokens import Tokens
from regard.pipeline.generation import Generation, GenerationPipeline
from regard.pipeline.load import load_generator, load_translator
from regard.pipeline.translation import TranslationPipeline
from regard.pipeline.translation_result import Translation
from regard.text.train import train_tokenizer
from tests.engine.test_shortlist import split_vocabulary
from tests.engine.test_stacks import (
    decoder_weights,
    describe_translator,
    draw_tokens,
    embed,
    encoder_weights,
    random_decoder,
    random_encoder,
)
from tests.scale import scaled

TEXTS = workload.draw_texts([5, 3, 9, 14, 2, 7], 97)
WORDS = TEXTS[0].split()
PROMPTS = ["once", "upon", "a time there was"]
LIMITS = {"max_length_a": 1.0, "max_length_b": 3}
GREEDY = GenerationConfig(max_new_tokens=9, greedy=True)
STACK_BOUNDS = {"float32": 1e-3, "bf16": 3e-2, "int8": 8e-2}  # of random blocks, whose inputs are not normalized
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

    def folder(kind: str, family: str) -> Path:
        load(kind, family)
        return root / f"{kind}-{family}"

    load.folder = folder  # type: ignore[attr-defined]
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


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_shortlist_an_ensemble_and_texts_of_several_sentences_have_the_same_bits(
    models: Any, tmp_path: Path, precision: str
) -> None:
    pipeline = models("translator", "sinusoidal", precision)
    engine = pipeline.backends[0].engine
    engine.shortlist = split_vocabulary(engine)
    text = f"{TEXTS[0]}. {TEXTS[1]}.\n\n{TEXTS[2]}."
    other = models("translator", "rotary", precision)
    ensemble = TranslationPipeline(
        [*pipeline.backends, *other.backends], pipeline.source, pipeline.target, decoding=pipeline.decoding
    )
    try:
        for model in (pipeline, ensemble):
            expected = [translation_bits(translation) for translation in model.translate([text, TEXTS[3]])]
            with trace() as captured:
                traced = [translation_bits(translation) for translation in model.translate([text, TEXTS[3]])]
            assert traced == expected
            assert captured["decoder.0.cross"].shape[0] == 3  # lines of both texts
    finally:
        engine.shortlist = None


@pytest.mark.parametrize("precision", PRECISIONS)
def test_scores_of_given_translations_are_those_of_the_search_with_and_without_a_trace(
    models: Any, precision: str
) -> None:
    pipeline = models("translator", "marian", precision)
    translations = pipeline.translate(TEXTS, beam=2)
    expected = pipeline.score(TEXTS, translations)
    with trace() as captured:
        assert pipeline.score(TEXTS, translations) == expected
    assert captured["encoder.0.self"].shape[0] == len(TEXTS)
    for translation, score in zip(translations, expected, strict=True):
        assert score.logprob == pytest.approx(translation.logprob, abs=1e-6)  # another order of summation


# ---- what a trace holds


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", TRANSLATORS)
def test_weights_of_a_translation_are_those_of_torch(models: Any, family: str, precision: str) -> None:
    pipeline = models("translator", family, precision)
    with trace(full_precision=True) as captured:
        translations = pipeline.translate(TEXTS[:3], beam=2)
    (model,) = build_torch_models(models, "translator", family, precision)
    for row, translation in enumerate(translations):
        (sentence,) = translation.sentences
        source = [*pipeline.source.encode_batch([sentence.source])[0], pipeline.source.eos_id]
        with trace(full_precision=True) as expected:
            model.target_logprobs(Tokens.from_rows([source]), Tokens.from_rows([sentence.ids]))
        assert_row_is_close(captured, row, expected, BOUNDS[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", CAUSAL)
def test_weights_of_a_generated_text_are_those_of_torch(models: Any, family: str, precision: str) -> None:
    pipeline = models("causal", family, precision)
    config = GenerationConfig(max_new_tokens=7, greedy=True)
    with trace(full_precision=True) as captured:
        generations = [texts[0] for texts in pipeline.generate(PROMPTS, config)]
    (model,) = build_torch_models(models, "causal", family, precision)
    for row, generation in enumerate(generations):
        ids = [*pipeline.tokenizer.encode_batch([PROMPTS[row]])[0], *generation.ids]
        with trace(full_precision=True) as expected:
            model.read(Tokens.from_rows([ids]))
        assert_row_is_close(captured, row, expected, BOUNDS[precision])


def build_torch_models(models: Any, kind: str, family: str, precision: str) -> list[Any]:
    """The model in torch with the weights of the engine, dequantized; not the pipeline's own, which stays unbuilt."""
    pipeline = models(kind, family, precision)
    backend = pipeline.backends[0] if kind == "translator" else pipeline.model
    weights = unpack_weights(backend.config, backend.engine.arrays, precision)
    model = build_model(backend.config)
    model.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    return [model.eval()]


def assert_row_is_close(captured: Trace, row: int, expected: Trace, bound: float) -> None:
    """One row of a trace has these weights, and zeros where other rows are longer."""
    assert sorted(captured) == sorted(expected) and len(expected)
    for site in expected:
        weights = captured[site].weights[row]
        reference = expected[site].weights[0]
        _, queries, keys = reference.shape
        assert np.abs(weights[:, :queries, :keys] - reference).max() < bound, site
        assert not weights[:, :, keys:].any()


def test_a_trace_of_one_text_has_the_shape_of_torchs_greedy_search(models: Any) -> None:
    pipeline = models("translator", "rotary")
    (model,) = build_torch_models(models, "translator", "rotary", "float32")
    with trace() as captured:
        translation = pipeline(TEXTS[3], beam=1)
    source = [*pipeline.source.encode_batch([TEXTS[3]])[0], pipeline.source.eos_id]
    with trace() as expected:
        search(model, Tokens.from_rows([source]), DecodingConfig(beam=1), max_lengths=[len(source) + 3])
    assert len(translation.sentences[0].ids) > 3
    assert [captured[site].shape for site in sorted(captured)] == [expected[site].shape for site in sorted(expected)]
    assert_row_is_close(captured, 0, expected, 2e-3)  # half precision


def test_a_batch_has_the_bits_of_single_texts(models: Any) -> None:
    for precision in PRECISIONS:
        pipeline = models("translator", "alibi", precision)
        with trace(full_precision=True) as together:
            pipeline.translate(TEXTS, beam=2)
        for row in (0, 3):
            with trace(full_precision=True) as alone:
                pipeline.translate([TEXTS[row]], beam=2)
            for site in alone:
                weights = alone[site].weights[0]
                _, queries, keys = weights.shape
                assert np.abs(together[site].weights[row, :, :queries, :keys] - weights).max() < 1e-6, site


@pytest.mark.parametrize("seed", range(scaled(60, 15)))
@torch.inference_mode()
def test_random_blocks_have_the_weights_of_torch(seed: int) -> None:
    """Grouped keys, norms of heads, windows, scales, shared blocks: settings that no config of a family has."""
    precision = PRECISIONS[seed % 3]
    changes = {"residual": True, "attention_scale": 0.0}
    encoder = random_encoder(seed + 1000, **changes)
    decoder = random_decoder(seed, cross_attention=True, **changes)
    model = describe_translator(encoder, decoder)
    weights = {**encoder_weights(encoder), **decoder_weights(decoder)}
    engine = EngineDecoder(model, pack_weights(model, weights, precision), precision)
    source = draw_tokens(seed, (4, 11, 4))
    inputs = draw_tokens(seed + 1, (7, 3, 12))
    plain = vocabulary_logprobs(engine, inputs, source)
    with trace(full_precision=True) as captured:
        assert np.array_equal(vocabulary_logprobs(engine, inputs, source), plain)
    load_dequantized(model, engine, encoder, decoder, precision)
    with trace(full_precision=True) as expected:
        hidden, batch = embed(weights["source_embedding.weight"], source)
        source_hidden = encoder(hidden, batch)
        target_hidden, target_batch = embed(weights["target_embedding.weight"], inputs)
        sources = decoder.precompute_keys_values(source_hidden, batch)
        decoder(target_hidden, target_batch, sources=sources, source_mask=batch.cross_mask(target_batch))
    traced_encoder = [site for site in captured if site.startswith("encoder")]
    assert traced_encoder and len(captured) == len(traced_encoder) + 2 * len(decoder.layer_specs)
    for site in captured:
        if site in traced_encoder:
            continue  # `test_capture` has those; torch's trace joins both stacks, which have one name
        weights_of_site = expected[site].captures[-1].values
        for row, length in enumerate(inputs.lengths):
            difference = captured[site].weights[row, :, :length] - weights_of_site[row, :, :length]
            assert np.abs(difference).max() < STACK_BOUNDS[precision], (seed, site)


def load_dequantized(model: Any, engine: EngineDecoder, encoder: Any, decoder: Any, precision: str) -> None:
    """Give torch stacks the weights that the engine has."""
    unpacked = unpack_weights(model, engine.arrays, precision)
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        for name, parameter in stack.named_parameters():
            if f"{side}.{name}" in unpacked:
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(unpacked[f"{side}.{name}"])))


# ---- ablation


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("heads", ["encoder.1.self:1", "decoder.0.self", "decoder.1.cross:0,decoder.1.cross:2"])
def test_ablated_heads_change_the_answer_as_in_torch_with_and_without_a_trace(
    models: Any, precision: str, heads: str
) -> None:
    pipeline = models("translator", "sinusoidal", precision)
    intact = translate(pipeline, beam=2, nbest=2)
    with ablate(heads):
        expected = translate(pipeline, beam=2, nbest=2)
        with trace() as captured:
            assert translate(pipeline, beam=2, nbest=2) == expected
        translations = pipeline.translate(TEXTS, beam=2)
        scores = [score.logprob for score in pipeline.score(TEXTS, translations)]
    assert expected != intact and len(captured)
    (model,) = build_torch_models(models, "translator", "sinusoidal", precision)
    for text, translation, score in zip(TEXTS, translations, scores, strict=True):
        source = [*pipeline.source.encode_batch([text])[0], pipeline.source.eos_id]
        target = Tokens.from_rows([translation.sentences[0].ids])
        with ablate(heads):
            (logprobs,) = model.target_logprobs(Tokens.from_rows([source]), target)
        if not translation.finished:
            logprobs = logprobs[:-1]  # the end is not counted
        assert score == pytest.approx(translation.logprob, abs=1e-6)
        assert score == pytest.approx(float(logprobs.sum()), abs={"float32": 1e-3, "bf16": 0.3, "int8": 0.5}[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_ablated_heads_of_a_causal_model_change_what_it_generates(models: Any, precision: str) -> None:
    pipeline = models("causal", "gpt2", precision)
    intact = generate(pipeline, greedy=True)
    with ablate("decoder.0.self,decoder.1.self:3"):
        expected = generate(pipeline, greedy=True)
        with trace():
            assert generate(pipeline, greedy=True) == expected
    assert expected != intact
    model = models("causal", "gpt2", "float32", "torch")
    with ablate("decoder.0.self,decoder.1.self:3"):
        by_torch = [generation.ids for texts in model.generate(PROMPTS, GREEDY) for generation in texts]
        by_engine = models("causal", "gpt2").generate(PROMPTS, GREEDY)
    assert [generation.ids for texts in by_engine for generation in texts] == by_torch


def test_wrong_names_have_the_messages_of_torch(models: Any) -> None:
    pipeline = models("translator", "rotary")
    with pytest.raises(UsageError, match=r"did you mean decoder\.1\.cross"), trace("decoder.7.cross"):
        pipeline(TEXTS[0])
    with pytest.raises(UsageError, match=r"did you mean decoder\.1\.cross"), ablate("decoder.7.cross:0"):
        pipeline(TEXTS[0])
    with pytest.raises(UsageError, match="did you mean decoder.0.self:3"), ablate("decoder.0.self:4"):
        pipeline(TEXTS[0])
    assert not pipeline.backends[0]._torch_model.is_built


# ---- results


@pytest.mark.parametrize("precision", PRECISIONS)
def test_results_show_the_attention_of_the_engine(models: Any, precision: str) -> None:
    pipeline = models("translator", "rotary", precision)
    with trace(full_precision=True) as captured:
        translation, other = pipeline.translate(TEXTS[:2], beam=2, nbest=2)
    for result in (translation, translation.alternatives[0], other):
        assert result.backend == f"engine {precision}"
        assert result.attention["decoder.1.cross"].weights.shape[0] == 4
        assert result.alignment == result.alignment
    _, queries, keys = translation.attention["decoder.1.cross"].weights.shape
    weights = captured["decoder.1.cross"].weights[0, :, :queries, :keys]
    assert np.abs(translation.attention["decoder.1.cross"].weights - weights).max() < 1e-3
    assert translation.record(beam_tree=True).steps[0].beams
    num_scored = len(translation.sentences[0].ids) + translation.finished  # without the end, where the text was cut
    logprobs = [np.log(step.probability) for step in translation.steps[:num_scored]]
    assert sum(logprobs) == pytest.approx(translation.logprob, abs=1e-4)
    generation = models("causal", "neox", precision)("once", greedy=True, max_new_tokens=5)
    assert generation.backend == f"engine {precision}"
    assert generation.attention["decoder.1.self"].weights.shape[0] == 4
    logprobs = [np.log(step.probability) for step in generation.steps[: len(generation.ids)]]
    assert sum(logprobs) == pytest.approx(generation.logprob, abs=1e-3)
    assert not pipeline.backends[0]._torch_model.is_built


def test_with_a_coverage_penalty_torch_answers_with_and_without_a_trace(models: Any) -> None:
    pipeline = load_translator(models.folder("translator", "bart"))
    expected = translate(pipeline, coverage_penalty=0.2)
    with trace() as captured:
        assert translate(pipeline, coverage_penalty=0.2) == expected
        scores = pipeline.score(TEXTS, [bits[0] for bits in expected], coverage_penalty=0.2)
    assert scores == pipeline.score(TEXTS, [bits[0] for bits in expected], coverage_penalty=0.2)
    assert "decoder.1.cross" in captured
    translation = pipeline(TEXTS[0], coverage_penalty=0.2)
    assert translation.backend == "torch float32"
    assert pipeline(TEXTS[0]).backend == "engine float32"
    assert translation.attention["decoder.1.cross"].weights.shape[0] == 4


def test_memory_of_a_trace_is_bounded(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = models("translator", "rotary")
    with trace(full_precision=True) as together:
        pipeline.translate(TEXTS, beam=1)
    monkeypatch.setattr(sites, "MAX_CAPTURED_BYTES", 1)  # one site at a time
    monkeypatch.setattr(forced_decoding, "MAX_BATCH_ROWS", 2)
    monkeypatch.setattr(forced_decoding, "MAX_STEP_TOKENS", 6)
    with trace(full_precision=True) as in_parts:
        pipeline.translate(TEXTS, beam=1)
    for site in together:
        assert np.array_equal(in_parts[site].weights, together[site].weights), site
