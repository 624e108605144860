"""One text asked of whatever a folder holds: the answer, and the record of where the model looked.

What a record can hold beside where heads looked, when it is asked for: attribution, and what heads are worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from regard.attention.intervention import ablate, active_intervention
from regard.config.inference import EmbeddingConfig, GenerationConfig, RecordConfig
from regard.errors import UsageError
from regard.interpret.ablation import add_head_importance
from regard.interpret.attribution import add_attribution
from regard.pipeline.classification import ClassificationPipeline
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.features import FeaturePipeline
from regard.pipeline.fill_mask import FillMaskPipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.pipeline.result import PipelineResult
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.tagging import TokenClassificationPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.view.record.record import Record

WRITTEN = 24  # tokens that a causal model writes where nobody says how many


@dataclass(frozen=True)
class PipelineRequest:
    """What is asked of a model."""

    text: str
    passage: str = ""  # of a question
    story: Sequence[str] = ()  # sentences told before a question
    pair: str | None = None  # a second text to be read beside the first
    options: Mapping[str, Any] | None = None  # beam, prefix, most

    def option(self, name: str, default: Any) -> Any:
        """Return an option, or what holds without it."""
        return (self.options or {}).get(name, default)


def _translated(model: TranslationPipeline, asked: PipelineRequest) -> PipelineResult:
    settings = {"beam": asked.option("beam", None)} if asked.option("beam", None) else {}
    prefix = asked.option("prefix", "")
    start = prefix if isinstance(prefix, str) else "".join(prefix).replace("▁", " ").strip()
    return model.translate([asked.text], prefixes=[start], **settings)[0]


def _generated(model: GenerationPipeline, asked: PipelineRequest) -> PipelineResult:
    prefix = asked.option("prefix", "")
    more = prefix if isinstance(prefix, str) else "".join(prefix).replace("▁", " ")
    config = GenerationConfig(greedy=True, max_new_tokens=int(asked.option("most", WRITTEN)))
    return model.generate([asked.text + more], config)[0][0]


def _answered(model: QuestionAnsweringPipeline, asked: PipelineRequest) -> PipelineResult:
    if not asked.passage.strip():
        raise UsageError("this model answers questions about a passage: give one with --passage")
    return model.answer([(asked.text, asked.passage)], top_k=5)[0]


def _told(model: StoryQAPipeline, asked: PipelineRequest) -> PipelineResult:
    if not asked.story:
        raise UsageError("this model answers questions about a story: give one with --story")
    return model.answer([*asked.story], asked.text)


def _labelled(model: ClassificationPipeline, asked: PipelineRequest) -> PipelineResult:
    return model(asked.text, asked.pair)


def _embedded(model: EmbeddingPipeline, asked: PipelineRequest) -> PipelineResult:
    return model.embed([asked.text], EmbeddingConfig())


ASKING: dict[type, tuple[str, Callable[[Any, PipelineRequest], PipelineResult]]] = {
    TranslationPipeline: ("translate", _translated),
    GenerationPipeline: ("generate", _generated),
    QuestionAnsweringPipeline: ("answer", _answered),
    StoryQAPipeline: ("stories", _told),
    ClassificationPipeline: ("classify", _labelled),
    EmbeddingPipeline: ("embed", _embedded),
    TokenClassificationPipeline: ("tag", lambda model, asked: model(asked.text)),
    FillMaskPipeline: ("fill", lambda model, asked: model(asked.text)),
    FeaturePipeline: ("embed", lambda model, asked: model(asked.text)),
}


def run_request(pipeline: object, request: PipelineRequest) -> PipelineResult:
    """Return a pipeline's answer to one text."""
    if not request.text.strip():
        raise UsageError("the text is blank: there is nothing to see")
    return ASKING[type(pipeline)][1](pipeline, request)


def task_of(pipeline: object) -> str:
    """Return the task of a pipeline, as records name it."""
    return ASKING[type(pipeline)][0]


def record_request(
    pipeline: object,
    request: PipelineRequest,
    config: RecordConfig | None = None,
    *,
    provenance: Mapping[str, Any] | None = None,
    ablated: Sequence[str] = (),
) -> Record:
    """Return the record of a pipeline's answer to one text; heads may be switched off for it."""
    with ablate(ablated) if ablated else nullcontext():
        record = run_request(pipeline, request).record(**(config or RecordConfig()).to_dict())
        silent = active_intervention()
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    facts = {"when": when, **(provenance or {}), **({"off": str(silent)} if silent is not None else {})}
    return replace(record, made={**record.made, **facts}, id="")


def add_explanations(
    record: Record, pipeline: object, request: PipelineRequest, *, attribution: bool = False, importance: bool = False
) -> Record:
    """Return the record of what was asked with what its answer hangs on, and with what is lost without each head."""
    given = _given(record, pipeline, request)
    if attribution and isinstance(pipeline, EmbeddingPipeline):
        raise UsageError("a vector has no chance to be explained: attribution is for labels, answers and translations")
    if attribution:
        record = add_attribution(record, pipeline, *given)
    return add_head_importance(record, pipeline, *given) if importance else record


def _given(record: Record, pipeline: object, asked: PipelineRequest) -> tuple[str, ...]:
    """Return the texts that an answer is a function of."""
    if isinstance(pipeline, TranslationPipeline):
        return asked.text, record.texts["target"].text
    if isinstance(pipeline, QuestionAnsweringPipeline):
        return asked.text, asked.passage
    if isinstance(pipeline, ClassificationPipeline):
        return (asked.text,) if asked.pair is None else (asked.text, asked.pair)
    if isinstance(pipeline, EmbeddingPipeline):
        return (asked.text,)
    raise UsageError(
        "attribution and what heads are worth are for labels, answers and translations, and heads for vectors too: "
        f"not for a {type(pipeline).__name__}"
    )
