"""Choice of the backend: the engine where it can, torch while a trace is active, one message where neither can."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import workload
from regard import cli
from regard.attention.trace import trace
from regard.checkpoint.model_dir import expected_shapes
from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.config.rnn_models import Seq2SeqConfig
from regard.engine import library
from regard.engine.backend import HybridTranslator, Lazy
from regard.engine.folder import weight_shapes
from regard.errors import ConfigError, UsageError
from regard.pipeline.load import load_translator

TEXTS = workload.draw_texts([5, 3, 9, 14, 2, 7], 97)
LIMITS = {"max_length_a": 1.0, "max_length_b": 3}


@pytest.mark.parametrize(
    "settings", [{"beam": 1}, {"beam": 4, "nbest": 3}, {"sample": True}, {"no_repeat_ngram": 2}], ids=str
)
def test_both_backends_give_the_same_texts_and_scores(folder: Path, settings: dict[str, object]) -> None:
    engine_results = load_translator(folder, backend="engine").translate(TEXTS, **settings, **LIMITS)
    torch_results = load_translator(folder, backend="torch").translate(TEXTS, **settings, **LIMITS)
    for result, expected in zip(engine_results, torch_results, strict=True):
        assert [str(result), *result.alternatives] == [str(expected), *expected.alternatives]
        assert abs(result.score - expected.score) < 1e-4
        assert abs(result.logprob - expected.logprob) < 1e-3


def test_auto_is_the_engine_with_and_without_a_trace_and_torch_for_a_coverage_penalty(folder: Path) -> None:
    pipeline = load_translator(folder)
    (backend,) = pipeline.backends
    assert isinstance(backend, HybridTranslator) and backend.generator() is backend.engine
    translations = pipeline.translate(TEXTS, beam=2, **LIMITS)
    with trace("decoder.1.cross") as attention:
        traced = pipeline.translate(TEXTS, beam=2, **LIMITS)
    assert [*map(str, traced)] == [*map(str, translations)] and "decoder.1.cross" in attention
    assert translations[0].attention["decoder.1.cross"].weights.shape[0] == 4
    assert not backend._torch_model.is_built
    assert pipeline.translate(TEXTS[:2], coverage_penalty=0.2, **LIMITS)
    assert backend._torch_model.is_built and backend.generator(with_attention=True) is backend.torch_model()


def test_portable_kernels_are_timed_against_torch_once_for_a_model_shape(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    assert isinstance(load_translator(folder).backends[0], HybridTranslator)
    assert not (tmp_path / "backend").exists(), "kernels of the processor need no measurement"
    monkeypatch.setenv(library.INSTRUCTIONS_VARIABLE, "portable")
    load_translator(folder, backend="engine")
    assert not (tmp_path / "backend").exists()
    measured = load_translator(folder).backends[0]
    (path,) = (tmp_path / "backend").iterdir()
    timing = json.loads(path.read_text())
    assert timing["precision"] == "float32" and min(timing["engine"], timing["torch"]) > 0
    assert isinstance(measured, HybridTranslator) == (timing["engine"] <= timing["torch"])
    for engine_seconds in (0.25, 0.75):  # as another machine would have measured
        path.write_text(json.dumps({**timing, "engine": engine_seconds, "torch": 0.5}))
        pipeline = load_translator(folder)
        assert isinstance(pipeline.backends[0], HybridTranslator) == (engine_seconds < 0.5)
        assert str(pipeline(TEXTS[0], **LIMITS))
    assert isinstance(load_translator(folder, backend="auto", precision="int8").backends[0], HybridTranslator)
    assert cli.run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "the engine has only portable kernels here" in out and "float32 engine 750 ms, torch 500 ms" in out


def test_scores_of_references_agree(folder: Path) -> None:
    targets = workload.draw_texts([4, 2, 8, 3, 5, 6], 97)
    engine_scores = load_translator(folder, backend="engine").score(TEXTS, targets)
    torch_scores = load_translator(folder, backend="torch").score(TEXTS, targets)
    engine_logprobs = [score.logprob for score in engine_scores]
    assert np.allclose(engine_logprobs, [score.logprob for score in torch_scores], atol=1e-3)


def test_workers_and_batch_sizes_change_nothing(folder: Path) -> None:
    single = load_translator(folder, precision="int8", threads=1).translate(TEXTS, batch_size=1, **LIMITS)
    batched = load_translator(folder, precision="int8", threads=2).translate(TEXTS, batch_size=3, **LIMITS)
    assert [(str(result), result.logprob) for result in single] == [(str(result), result.logprob) for result in batched]


def test_an_ensemble_of_engines_agrees_with_torch(folder: Path) -> None:
    engine_results = load_translator([folder, folder], backend="auto").translate(TEXTS, beam=2, **LIMITS)
    torch_results = load_translator([folder, folder], backend="torch").translate(TEXTS, beam=2, **LIMITS)
    assert [*map(str, engine_results)] == [*map(str, torch_results)]


def test_without_the_library_torch_computes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "FILE", Path("nowhere/regard_engine.so"))
    library._load_library_or_reason.cache_clear()
    try:
        assert not isinstance(load_translator(folder).backends[0], HybridTranslator)
        with pytest.raises(UsageError, match="the engine cannot be used: it was not built: install a C\\+\\+ compiler"):
            load_translator(folder, backend="engine")
        with pytest.raises(UsageError, match="int8 is computed by the engine, which cannot be used"):
            load_translator(folder, precision="int8")
    finally:
        library._load_library_or_reason.cache_clear()


def test_wrong_names_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="backend must be one of auto, engine, torch"):
        load_translator(folder, backend="motor")
    with pytest.raises(ConfigError, match=r"not 'int9' \(did you mean int8\?\)"):
        load_translator(folder, precision="int9")


def test_a_lazy_value_is_built_once_by_eight_threads() -> None:
    calls: list[int] = []

    def build() -> str:
        calls.append(1)
        time.sleep(0.05)
        return "built"

    value = Lazy(build)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: value.get(), range(8))) == {"built"}
    assert len(calls) == 1


@pytest.mark.parametrize(
    "config",
    [
        TransformerConfig(),
        TransformerConfig(norm_placement="post", share_embeddings=False, tie_embeddings=False, output_bias=True),
        TransformerConfig(positions="learned", tie_embeddings=False),
        TransformerConfig(positions="rotary", output_bias=True),
        Seq2SeqConfig(),
        BertConfig(),
        BertConfig(head="label", num_labels=3, norm_placement="pre"),
        BertConfig(head="span", num_token_types=0),
        BertConfig(head="masked"),
        BertConfig(pooler=True, position_offset=2),
        GptConfig(eos_id=0),
        GptConfig(eos_id=0, tie_embeddings=False, positions="rotary"),
        GptConfig(eos_id=-1),
    ],
    ids=str,
)
def test_the_layout_has_the_names_and_shapes_of_the_torch_model(config: Any) -> None:
    assert weight_shapes(config) == expected_shapes(config)
