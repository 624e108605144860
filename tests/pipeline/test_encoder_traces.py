"""Pipelines over the engine: traces, records and ablation change no bit of an answer, and build no torch model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.attention.intervention import ablate
from regard.attention.trace import STORES, trace
from regard.engine.backend import HybridEncoder
from regard.engine.layout import PRECISIONS
from regard.engine.library import unavailable_reason
from regard.errors import UsageError
from regard.pipeline.classification import EncoderClassifier
from regard.pipeline.result import PipelineResult
from tests.model_folders import TEXTS, predict, save_model_folders

ENCODER_TASKS = ("classify", "tag", "answer", "embed")
BOUNDS = {"float32": 1e-3, "bf16": 1e-2, "int8": 2e-2}  # of weights
SELECTIONS: list[dict[str, Any]] = [{}, {"heads": [1]}, {"layers": [0]}, {"queries": [1, 2]}, {"full_precision": True}]
pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason="no engine")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_model_folders(tmp_path_factory.mktemp("models"))


def encoder_of(pipeline: Any) -> HybridEncoder:
    """The backend of an encoder's pipeline."""
    holder = pipeline
    for name in ("classifier", "tagger"):
        holder = getattr(holder, name, holder)
    assert isinstance(holder.model, HybridEncoder)
    return holder.model


def result_of(task: str, pipeline: Any) -> PipelineResult:
    """The result of a single text."""
    calls: dict[str, Callable[[], PipelineResult]] = {
        "classify": lambda: pipeline(TEXTS[2]),
        "tag": lambda: pipeline(TEXTS[2]),
        "answer": lambda: pipeline("cat", TEXTS[2]),
        "embed": lambda: pipeline.embed([TEXTS[2]]),
    }
    return calls[task]()


def predict_single(task: str, pipeline: Any) -> str:
    """All that a result has of a single text; numbers with all digits."""
    result = result_of(task, pipeline)
    values = {name: value for name, value in vars(result).items() if name not in result.transient_attributes}
    return repr({name: getattr(value, "tolist", lambda value=value: value)() for name, value in values.items()})


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("task", ENCODER_TASKS)
def test_a_trace_changes_no_bit_of_an_answer(task: str, precision: str, folders: dict[str, Path]) -> None:
    pipeline = regard.load(folders[task], precision=precision)
    answers = predict(task, pipeline)
    single = predict_single(task, pipeline)
    for store in STORES:
        for selection in SELECTIONS:
            with trace(store=store, **selection) as traced:
                assert predict(task, pipeline) == answers
                assert predict_single(task, pipeline) == single
            assert len(traced)
    with ablate("encoder.1.self:0"):
        ablated = predict(task, pipeline)
        with trace():
            assert predict(task, pipeline) == ablated
    assert ablated != answers
    assert not encoder_of(pipeline)._torch_model.is_built


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("task", ENCODER_TASKS)
def test_a_result_shows_the_attention_of_the_engine(task: str, precision: str, folders: dict[str, Path]) -> None:
    pipeline = regard.load(folders[task], precision=precision)
    model = encoder_of(pipeline)
    result = result_of(task, pipeline)
    attention = result.attention
    record = result.record(store_qkv="best")
    assert not model._torch_model.is_built
    assert [*attention] == ["encoder.0.self", "encoder.1.self"] and len(record.qkv) == 1
    model.engine = model.torch_model()  # type: ignore[assignment]  # the same pipeline on torch, with the same weights
    expected = result_of(task, pipeline)
    for site in expected.attention:
        difference = np.abs(attention[site].weights - expected.attention[site].weights)
        assert difference.max() < BOUNDS[precision]
    positions = expected.record().positions
    assert record.positions is not None and positions is not None
    assert record.positions.kind == positions.kind
    assert np.abs(record.positions.encodings - positions.encodings).max() < 1e-5


def test_wrong_heads_are_refused_before_any_text_is_read(folders: dict[str, Path]) -> None:
    with (
        pytest.raises(UsageError, match=r"no encoder\.9\.self \(did you mean encoder\.1\.self"),
        ablate("encoder.9.self"),
    ):
        regard.load(folders["classify"])
    with ablate("encoder.1.self:1"):
        pipeline = regard.load(folders["classify"])
        assert isinstance(pipeline.classifier, EncoderClassifier)
        assert pipeline(TEXTS[0]).attention["encoder.1.self"].weights.shape[0] == 2
    assert not encoder_of(pipeline)._torch_model.is_built
