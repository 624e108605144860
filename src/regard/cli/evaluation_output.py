"""What `regard evaluate --json` prints for each task, besides the metrics by name and their signatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from regard.metric_table import METRICS
from regard.registry import TASKS, resolve
from regard.tasks.metrics import LengthGroup
from regard.tasks.story_qa import TaskScore
from regard.text.special_tokens import TruncationReport


class TranslationEvaluation(TypedDict):
    """Evaluation of a translation model."""

    sentences: int
    by_length: list[LengthGroup]


class LabelEvaluation(TypedDict):
    """Evaluation of a text classifier."""

    texts: int
    labels: list[str]
    calibration_error: float  # expected calibration error, 15 bins
    accuracy_low: NotRequired[float]  # 95 % interval of the accuracy, in percent
    accuracy_high: NotRequired[float]
    confusion: NotRequired[list[list[int]]]  # rows: true labels, columns: predictions
    f1_by_label: NotRequired[dict[str, float]]  # of a multi-label classifier, in percent
    truncated: int  # texts that were not read completely
    windowed: int  # texts that were read in several windows
    truncation: TruncationReport


class TagEvaluation(TypedDict):
    """Evaluation of a token classifier."""

    sentences: int
    f1_by_label: dict[str, float]  # of entities, in percent
    truncation: TruncationReport


class AnswerEvaluation(TypedDict):
    """Evaluation of extractive question answering."""

    questions: int
    truncation: TruncationReport


class StoryEvaluation(TypedDict):
    """Evaluation of a memory network on stories; every task has the same weight in the means."""

    questions: int
    error: float  # in percent
    support: float | None  # percent of the right answers whose supporting sentences have the largest weights
    tasks: list[TaskScore]


class LanguageModelEvaluation(TypedDict):
    """Evaluation of a language model of any kind."""

    documents: int
    tokens: int
    characters: NotRequired[int]  # of a causal model
    masked: NotRequired[int]  # masked tokens of a masked model
    times_better: NotRequired[float]  # perplexity of a unigram model over that of the masked model


@dataclass(frozen=True)
class EvaluationOutput:
    """What the evaluation of one task prints: fields of its own, and metrics by name."""

    task: str
    fields: Any  # type of the object without metrics
    metrics: tuple[str, ...]

    @property
    def signatures(self) -> tuple[str, ...]:
        """Fields with the signature of a metric."""
        return tuple(f"{name}_signature" for name in self.metrics if METRICS[name].signature)


def evaluation_outputs() -> list[EvaluationOutput]:
    """What the evaluations of all tasks print, plugins' tasks too."""
    outputs = []
    for name, task in TASKS.items():
        fields = resolve(getattr(resolve(task.evaluate), "output", None))
        if fields is not None:
            metrics = [key for key, metric in METRICS.items() if metric.functions.keys() & task.metrics.keys()]
            outputs.append(EvaluationOutput(name, fields, tuple(metrics)))
    return outputs
