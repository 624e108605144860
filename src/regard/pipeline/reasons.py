"""What a record can hold beside where heads looked, when it is asked for: attribution, and what heads are worth."""

from __future__ import annotations

from regard.errors import UsageError
from regard.pipeline.answering import AnsweringPipeline
from regard.pipeline.asking import Asked
from regard.pipeline.attribution import with_attribution
from regard.pipeline.classification import ClassificationPipeline
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.importance import with_importance
from regard.pipeline.translation import TranslationPipeline
from regard.view.record import Record


def with_reasons(
    record: Record, pipeline: object, asked: Asked, *, attribution: bool = False, importance: bool = False
) -> Record:
    """Return the record of what was asked with what its answer hangs on, and with what is lost without each head."""
    given = _given(record, pipeline, asked)
    if attribution and isinstance(pipeline, EmbeddingPipeline):
        raise UsageError("a vector has no chance to be explained: attribution is for labels, answers and translations")
    if attribution:
        record = with_attribution(record, pipeline, *given)
    return with_importance(record, pipeline, *given) if importance else record


def _given(record: Record, pipeline: object, asked: Asked) -> tuple[str, ...]:
    """Return the texts that an answer is a function of."""
    if isinstance(pipeline, TranslationPipeline):
        return asked.text, record.texts["target"].text
    if isinstance(pipeline, AnsweringPipeline):
        return asked.text, asked.passage
    if isinstance(pipeline, ClassificationPipeline):
        return (asked.text,) if asked.pair is None else (asked.text, asked.pair)
    if isinstance(pipeline, EmbeddingPipeline):
        return (asked.text,)
    raise UsageError(
        "attribution and what heads are worth are for labels, answers and translations, and heads for vectors too: "
        f"not for a {type(pipeline).__name__}"
    )
