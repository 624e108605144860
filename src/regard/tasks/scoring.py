"""Metrics by name: which ones a task reports, what computes them, and how they rank models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.config.settings import AUTO
from regard.errors import RegardError, UsageError, nearest
from regard.metric_table import METRICS, metrics_for, metrics_of
from regard.registry import TASKS, TaskMetrics, resolve
from regard.tasks.predictions import PredictedTranslations, Predictions


@dataclass(frozen=True)
class Scoring:
    """Metrics of a task, and further ones by name; the first of these ranks models, otherwise the task's own does.

    >>> translations = PredictedTranslations(predictions=["ein Hund"], references=["ein Hund"], loss=0.5)
    >>> {name: round(value) for name, value in Scoring("translate", ("chrf",)).compute(translations).items()}
    {'loss': 0, 'perplexity': 2, 'bleu': 0, 'exact_match': 100, 'chrf': 100}
    >>> Scoring("story-qa", ("chrf",)).check()
    Traceback (most recent call last):
    regard.errors.UsageError: the metric chrf is not for story-qa: choose one of loss, accuracy, error
    """

    task: str
    requested: tuple[str, ...] = ()  # beside the metrics of the task

    @classmethod
    def for_run(cls, task: str, metric: str) -> Scoring:
        """Scoring of a run, by its setting `training.metric`."""
        return cls(task, () if metric == AUTO else (metric,))

    # ---- names

    def check(self, kind: str = "") -> None:
        """Refuse a requested metric that is unknown, a baseline's, or not for the task or the kind of predictions."""
        known = metrics_for(kind) if kind else metrics_of(self.task)
        choice = f"choose one of {', '.join(known)}"
        for name in self.requested:
            if name not in METRICS:
                raise UsageError(f"unknown metric {name!r}{nearest(name, known)}: {choice}")
            if METRICS[name].is_baseline:
                raise UsageError(f"the metric {name} is that of a baseline, the same for all models: {choice}")
            if name not in known:
                owner = f"predictions that are {kind}" if kind else self.task
                raise UsageError(f"the metric {name} is not for {owner}: {choice}")

    def reported(self, kind: str) -> list[str]:
        """Names of the metrics of every evaluation: those of the task, then the requested ones."""
        return list(dict.fromkeys((*self._task_metrics(kind).reported, *self.requested)))

    def final(self, kind: str) -> list[str]:
        """Names of the metrics of a finished model."""
        metrics = self._task_metrics(kind)
        return list(dict.fromkeys((*(metrics.final or metrics.reported), *self.requested)))

    def ranking(self, kind: str) -> tuple[str, ...]:
        """Names of the metrics that rank models: the selecting one, then those that break ties.

        >>> Scoring("translate").ranking("translations"), Scoring("translate", ("chrf",)).ranking("translations")
        (('bleu', 'loss'), ('chrf', 'loss', 'bleu'))
        """
        main, *ties = self._task_metrics(kind).ranking
        return tuple(dict.fromkeys((*(self.requested[:1] or (main,)), *ties, main)))

    def main(self, kind: str) -> str:
        """Name of the metric that selects the best model."""
        return self.ranking(kind)[0]

    def _task_metrics(self, kind: str) -> TaskMetrics:
        """Metrics in the task's row, or else those of another task with predictions of this kind."""
        rows = (TASKS[self.task], *TASKS.values())
        metrics = next((row.metrics[kind] for row in rows if kind in row.metrics), None)
        if metrics is None:
            raise UsageError(f"the task {self.task} names no metrics for predictions that are {kind!r}: add them to it")
        return metrics

    # ---- values

    def compute(self, predictions: Predictions) -> dict[str, float]:
        """Metrics of an evaluation during training, by name."""
        return self._compute(self.reported(predictions.kind), predictions)

    def compute_final(self, predictions: Predictions) -> dict[str, Any]:
        """Metrics of a finished model, by name, with the signatures of those that have one."""
        scores: dict[str, Any] = {}
        for name, value in self._compute(self.final(predictions.kind), predictions).items():
            scores[name] = value
            signature = resolve(METRICS[name].signature)
            if signature is not None:
                scores[f"{name}_signature"] = signature()
        return scores

    def _compute(self, names: list[str], predictions: Predictions) -> dict[str, float]:
        if self.requested:
            self.check(predictions.kind)
        values = {}
        for name in names:
            compute = require_metric if name in self.requested else compute_metric
            values[name] = compute(name, predictions)
        return {name: value for name, value in values.items() if value is not None}

    def sort_key(self, metrics: dict[str, float], kind: str) -> tuple[float, ...]:
        """Values that compare evaluations; the larger is the better. Metrics that the data does not have are left out.

        >>> Scoring("translate").sort_key({"loss": 0.5, "bleu": 31.25}, "translations")
        (31.25, -0.5)
        """
        return tuple(METRICS[name].rank(metrics[name]) for name in self.ranking(kind) if name in metrics)


def compute_metric(name: str, predictions: Predictions) -> float | None:
    """Value of a metric; None where the data has none.

    A function that fails, or whose value is not a number, raises `UsageError` with the metric and its module.
    """
    function = resolve(METRICS[name].functions[predictions.kind])
    owner = f"the metric {name} of {getattr(function, '__module__', METRICS.owner(name))}"
    try:
        value = function(predictions)
        if value is None:
            return None
        value = float(value)
    except RegardError:
        raise
    except Exception as error:
        raise UsageError(
            f"{owner} failed: {type(error).__name__}: {error}: repair it, or choose another with --metric"
        ) from error
    if math.isnan(value):
        raise UsageError(
            f"{owner} is not a number (nan) on this data: repair it, choose another with --metric, or lower "
            "--learning-rate where training diverged"
        )
    return value


def require_metric(name: str, predictions: Predictions) -> float:
    """Value of a metric; the data must have one."""
    value = compute_metric(name, predictions)
    if value is None:
        raise UsageError(f"the metric {name} has no value on this data: choose another with --metric")
    return value


def translation_scores(
    hypotheses: Sequence[str], references: Sequence[str], scoring: Scoring | None = None
) -> dict[str, Any]:
    """Final metrics of translations with sacrebleu's signatures: BLEU (cased and lower-cased), chrF, TER, exact match.

    >>> scores = translation_scores(["the cat sat on the mat"], ["the cat sat on the mat"])
    >>> scores["sentences"], round(scores["chrf"]), scores["exact_match"]
    (1, 100, 100.0)
    """
    if len(hypotheses) != len(references):
        raise UsageError(f"{len(hypotheses)} translations cannot be compared with {len(references)} references")
    if not references:
        raise UsageError("there is nothing to compare: the test set is empty")
    scoring = scoring or Scoring("translate")
    predictions = PredictedTranslations(predictions=hypotheses, references=references)
    return {"sentences": len(references), **scoring.compute_final(predictions)}
