"""Which backend answers: the engine where it can, torch wherever someone watches, one line where neither does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import workload
from regard.attention.trace import trace
from regard.checkpoint.model_dir import save_translator
from regard.config.inference import DecodingConfig
from regard.engine import library
from regard.errors import ConfigError, UsageError
from regard.pipeline.load import load_translator
from tests.engine.conftest import translator

TEXTS = workload.draw_texts([5, 3, 9, 14, 2, 7], 97)
LIMITS = {"max_length_a": 1.0, "max_length_b": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words, model = workload.build_tokenizer(97), translator(output_bias=True)
    place = tmp_path_factory.mktemp("models") / "plain"
    tokenizers = {"source": words, "target": words}
    save_translator(
        place, model.config, model.state_dict(), tokenizers=tokenizers, decoding=DecodingConfig(), task={}, card="# x\n"
    )
    return place


@pytest.mark.parametrize(
    "settings", [{"beam": 1}, {"beam": 4, "nbest": 3}, {"sample": True}, {"no_repeat_ngram": 2}], ids=str
)
def test_both_backends_give_the_same_texts_and_scores(folder: Path, settings: dict[str, object]) -> None:
    found, wanted = (
        load_translator(folder, backend=backend).translate(TEXTS, **settings, **LIMITS)
        for backend in ("engine", "torch")
    )
    for one, other in zip(found, wanted, strict=True):
        assert [str(one), *one.alternatives] == [str(other), *other.alternatives]
        assert abs(one.score - other.score) < 1e-4
        assert abs(one.logprob - other.logprob) < 1e-3


def test_automatic_is_the_engine_unless_someone_watches(folder: Path) -> None:
    pipeline = load_translator(folder)
    assert pipeline.engines and pipeline._select_generator(pipeline.decoding) is pipeline.engines[0]
    assert pipeline._select_generator(DecodingConfig(coverage_penalty=0.2)) is pipeline.models[0]
    plain = pipeline.translate(TEXTS, beam=2, **LIMITS)
    with trace("decoder.1.cross") as seen:
        watched = pipeline.translate(TEXTS, beam=2, **LIMITS)
    assert [*map(str, watched)] == [*map(str, plain)] and "decoder.1.cross" in seen
    assert pipeline.translate(TEXTS[:2], coverage_penalty=0.2, **LIMITS)
    assert plain[0].attention["decoder.1.cross"].weights.shape[0] == 4


def test_scores_of_given_texts_agree(folder: Path) -> None:
    targets = workload.draw_texts([4, 2, 8, 3, 5, 6], 97)
    found, wanted = (load_translator(folder, backend=one).score(TEXTS, targets) for one in ("engine", "torch"))
    assert np.allclose([one.logprob for one in found], [one.logprob for one in wanted], atol=1e-3)


def test_workers_and_batch_sizes_change_nothing(folder: Path) -> None:
    alone = load_translator(folder, precision="int8", threads=1).translate(TEXTS, batch_size=1, **LIMITS)
    beside = load_translator(folder, precision="int8", threads=2).translate(TEXTS, batch_size=3, **LIMITS)
    assert [(str(one), one.logprob) for one in alone] == [(str(one), one.logprob) for one in beside]


def test_several_engines_decide_together(folder: Path) -> None:
    found, wanted = (
        load_translator([folder, folder], backend=one).translate(TEXTS, beam=2, **LIMITS) for one in ("auto", "torch")
    )
    assert [*map(str, found)] == [*map(str, wanted)]


def test_without_the_library_torch_computes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "FILE", Path("nowhere/regard_engine.so"))
    library._found.cache_clear()
    try:
        assert not load_translator(folder).engines
        with pytest.raises(UsageError, match="the engine cannot be used: it was not built: install a C\\+\\+ compiler"):
            load_translator(folder, backend="engine")
        with pytest.raises(UsageError, match="int8 is computed by the engine, which cannot be used"):
            load_translator(folder, precision="int8")
    finally:
        library._found.cache_clear()


def test_wrong_names_are_told(folder: Path) -> None:
    with pytest.raises(ConfigError, match="backend must be one of auto, engine, torch"):
        load_translator(folder, backend="motor")
    with pytest.raises(ConfigError, match=r"not 'int9' \(did you mean int8\?\)"):
        load_translator(folder, precision="int9")
