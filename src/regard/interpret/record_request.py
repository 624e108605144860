"""One request to any pipeline, as `regard see` and the page run it: its result, its record and explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from regard.attention.intervention import ablate, active_intervention
from regard.config.inference import EmbeddingConfig, GenerationConfig, RecordConfig
from regard.errors import UsageError
from regard.pipeline.classification import ClassificationPipeline
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.pipeline.result import PipelineResult
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.registry import TASKS, resolve
from regard.view.record.record import Record

if TYPE_CHECKING:
    from regard.pipeline.generation import GenerationPipeline

MAX_NEW_TOKENS = 24  # of a causal language model, by default


@dataclass(frozen=True)
class PipelineRequest:
    """Input of one prediction, for any task."""

    text: str
    passage: str = ""  # of a question
    story: Sequence[str] = ()  # sentences before a question
    pair: str | None = None  # second text of a pair
    options: Mapping[str, Any] | None = None  # beam, target_prefix, max_new_tokens

    def option(self, name: str, default: Any) -> Any:
        """An option, or its default."""
        return (self.options or {}).get(name, default)


def _join_prefix(prefix: str | Sequence[str]) -> str:
    """A prefix as text; it may come as a list of subwords."""
    return prefix if isinstance(prefix, str) else "".join(prefix).replace("▁", " ")


def translate_text(pipeline: TranslationPipeline, request: PipelineRequest) -> PipelineResult:
    """Translate the text, with the beam and the prefix of the request."""
    beam = request.option("beam", None)
    settings = {"beam": beam} if beam else {}
    prefix = request.option("target_prefix", "")
    if not isinstance(prefix, str):
        prefix = _join_prefix(prefix).strip()
    return pipeline.translate([request.text], prefixes=[prefix], **settings)[0]


def generate_text(pipeline: GenerationPipeline, request: PipelineRequest) -> PipelineResult:
    """Continue the text and the prefix of the request, greedily."""
    prompt = request.text + _join_prefix(request.option("target_prefix", ""))
    config = GenerationConfig(greedy=True, max_new_tokens=int(request.option("max_new_tokens", MAX_NEW_TOKENS)))
    return pipeline.generate([prompt], config)[0][0]


def answer_question(pipeline: QuestionAnsweringPipeline, request: PipelineRequest) -> PipelineResult:
    """Answer the question by a span of the passage."""
    if not request.passage.strip():
        raise UsageError("this model answers questions about a passage: give one with --passage")
    return pipeline.answer([(request.text, request.passage)], top_k=5)[0]


def answer_story(pipeline: StoryQAPipeline, request: PipelineRequest) -> PipelineResult:
    """Answer the question about the story."""
    if not request.story:
        raise UsageError("this model answers questions about a story: give one with --story")
    return pipeline.answer([*request.story], request.text)


def classify_text(pipeline: ClassificationPipeline, request: PipelineRequest) -> PipelineResult:
    """Classify the text, or pair of texts."""
    return pipeline(request.text, request.pair)


def embed_text(pipeline: EmbeddingPipeline, request: PipelineRequest) -> PipelineResult:
    """Embed the text."""
    return pipeline.embed([request.text], EmbeddingConfig())


def call_pipeline(pipeline: Any, request: PipelineRequest) -> PipelineResult:
    """Call the pipeline with the text alone."""
    result: PipelineResult = pipeline(request.text)
    return result


def run_request(pipeline: object, request: PipelineRequest) -> PipelineResult:
    """Run a pipeline on one request."""
    if not request.text.strip():
        raise UsageError("the text is blank: there is no attention to show")
    result: PipelineResult = resolve(TASKS[task_name(pipeline)].request)(pipeline, request)
    return result


def task_name(pipeline: object) -> str:
    """Task of a pipeline, as records name it."""
    name: str = pipeline.task_name  # type: ignore[attr-defined]  # every pipeline has it
    return name


def record_request(
    pipeline: object,
    request: PipelineRequest,
    config: RecordConfig | None = None,
    *,
    provenance: Mapping[str, Any] | None = None,
    ablated: Sequence[str] = (),
) -> Record:
    """Run a pipeline on one request and record it, with these heads ablated."""
    config = config or RecordConfig()
    with ablate(ablated) if ablated else nullcontext():
        record = run_request(pipeline, request).record(**config.to_dict())
        intervention = active_intervention()
    metadata: dict[str, Any] = {"when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), **(provenance or {})}
    if intervention is not None:
        metadata["ablated"] = str(intervention)
    return replace(record, provenance={**record.provenance, **metadata}, id="")


def add_explanations(
    record: Record, pipeline: object, request: PipelineRequest, *, attribution: bool = False, importance: bool = False
) -> Record:
    """Add attribution and head importance to the record of a request."""
    inputs = _explained_inputs(record, pipeline, request)
    if attribution and isinstance(pipeline, EmbeddingPipeline):
        raise UsageError(
            "an embedding has no probability to explain: attribution is for labels, answers and translations"
        )
    from regard.interpret.ablation import add_head_importance
    from regard.interpret.attribution import add_attribution

    if attribution:
        record = add_attribution(record, pipeline, *inputs)
    return add_head_importance(record, pipeline, *inputs) if importance else record


def _explained_inputs(record: Record, pipeline: object, request: PipelineRequest) -> tuple[str, ...]:
    """Texts that `explain` and `head_importance` take for this pipeline."""
    if isinstance(pipeline, TranslationPipeline):
        return request.text, record.texts["target"].text
    if isinstance(pipeline, QuestionAnsweringPipeline):
        return request.text, request.passage
    if isinstance(pipeline, StoryQAPipeline):
        return (request.text, *request.story)
    if isinstance(pipeline, ClassificationPipeline):
        return (request.text,) if request.pair is None else (request.text, request.pair)
    if isinstance(pipeline, EmbeddingPipeline):
        return (request.text,)
    raise UsageError(
        "attribution and head importance are for labels, answers and translations, head importance for embeddings, "
        f"too: not for a {type(pipeline).__name__}"
    )
