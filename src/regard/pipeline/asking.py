"""One text asked of whatever a folder holds: the answer, and the record of where the model looked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from regard.attention.intervention import intervention, off
from regard.config.embedding import EmbeddingConfig
from regard.config.generation import GenerationConfig
from regard.config.seeing import SeeingConfig
from regard.errors import UsageError
from regard.pipeline.answering import AnsweringPipeline
from regard.pipeline.classification import ClassificationPipeline
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.features import FeaturePipeline
from regard.pipeline.filling import FillingPipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.seeable import Seeable
from regard.pipeline.stories import StoryPipeline
from regard.pipeline.tagging import TaggingPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.view.record import Record

WRITTEN = 24  # tokens that a causal model writes where nobody says how many


@dataclass(frozen=True)
class Asked:
    """What is asked of a model."""

    text: str
    passage: str = ""  # of a question
    story: Sequence[str] = ()  # sentences told before a question
    pair: str | None = None  # a second text to be read beside the first
    options: Mapping[str, Any] | None = None  # beam, prefix, most

    def option(self, name: str, default: Any) -> Any:
        """Return an option, or what holds without it."""
        return (self.options or {}).get(name, default)


def _translated(model: TranslationPipeline, asked: Asked) -> Seeable:
    settings = {"beam": asked.option("beam", None)} if asked.option("beam", None) else {}
    prefix = asked.option("prefix", "")
    start = prefix if isinstance(prefix, str) else "".join(prefix).replace("▁", " ").strip()
    return model.translate([asked.text], prefixes=[start], **settings)[0]


def _generated(model: GenerationPipeline, asked: Asked) -> Seeable:
    prefix = asked.option("prefix", "")
    more = prefix if isinstance(prefix, str) else "".join(prefix).replace("▁", " ")
    config = GenerationConfig(greedy=True, most=int(asked.option("most", WRITTEN)))
    return model.generate([asked.text + more], config)[0][0]


def _answered(model: AnsweringPipeline, asked: Asked) -> Seeable:
    if not asked.passage.strip():
        raise UsageError("this model answers questions about a passage: give one with --passage")
    return model.answers([(asked.text, asked.passage)], best=5)[0]


def _told(model: StoryPipeline, asked: Asked) -> Seeable:
    if not asked.story:
        raise UsageError("this model answers questions about a story: give one with --story")
    return model.answer([*asked.story], asked.text)


def _labelled(model: ClassificationPipeline, asked: Asked) -> Seeable:
    return model(asked.text, asked.pair)


def _embedded(model: EmbeddingPipeline, asked: Asked) -> Seeable:
    return model.embed([asked.text], EmbeddingConfig())


ASKING: dict[type, tuple[str, Callable[[Any, Asked], Seeable]]] = {
    TranslationPipeline: ("translate", _translated),
    GenerationPipeline: ("generate", _generated),
    AnsweringPipeline: ("answer", _answered),
    StoryPipeline: ("stories", _told),
    ClassificationPipeline: ("classify", _labelled),
    EmbeddingPipeline: ("embed", _embedded),
    TaggingPipeline: ("tag", lambda model, asked: model(asked.text)),
    FillingPipeline: ("fill", lambda model, asked: model(asked.text)),
    FeaturePipeline: ("embed", lambda model, asked: model(asked.text)),
}


def ask(pipeline: object, asked: Asked) -> Seeable:
    """Return a pipeline's answer to one text."""
    if not asked.text.strip():
        raise UsageError("the text is blank: there is nothing to see")
    return ASKING[type(pipeline)][1](pipeline, asked)


def task_of(pipeline: object) -> str:
    """Return the task of a pipeline, as records name it."""
    return ASKING[type(pipeline)][0]


def recorded(
    pipeline: object,
    asked: Asked,
    seeing: SeeingConfig | None = None,
    *,
    made: Mapping[str, Any] | None = None,
    heads_off: Sequence[str] = (),
) -> Record:
    """Return the record of a pipeline's answer to one text; heads may be switched off for it."""
    with off(heads_off) if heads_off else nullcontext():
        record = ask(pipeline, asked).record(**(seeing or SeeingConfig()).to_dict())
        silent = intervention()
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    facts = {"when": when, **(made or {}), **({"off": str(silent)} if silent is not None else {})}
    return replace(record, made={**record.made, **facts}, id="")
