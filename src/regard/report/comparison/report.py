"""The report of a comparison: scores with intervals, paired tests against the best model, and attention's verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.metric_table import METRICS, Metric
from regard.report.comparison.conclusion import conclude
from regard.report.comparison.evaluation import Example, ModelEvaluation, TrainingHistory
from regard.report.json_output import ComparedModelDict, ComparisonReportDict, PairedTestDict
from regard.tasks.example_statistics import collect_statistics
from regard.tasks.metrics import LENGTH_LIMITS, LONG_SOURCE_WORDS, SHORT_SOURCE_WORDS, UNLIMITED
from regard.tasks.predictions import Predictions
from regard.tasks.scoring import Scoring
from regard.tasks.significance import (
    ExampleStatistics,
    PairedTest,
    ScoreInterval,
    compare_pairs,
    compare_with_best,
    score_interval,
)

MIN_GROUP = 20  # examples of a length, below which no conclusion is drawn from them
Lengths = NDArray[np.int64]  # [examples], in words


@dataclass(frozen=True)
class LengthScore:
    """Score on the test examples of similar length."""

    words: str  # range of the number of words
    examples: int
    score: float


@dataclass(frozen=True)
class ComparedModel:
    """Scores of one model, over all of its seeds, and what else is reported of it."""

    name: str
    summary: str
    parameters: int
    statistics: ExampleStatistics  # of the metric that ranks the models
    interval: ScoreInterval
    scores: Mapping[str, Sequence[float]]  # each metric, one value for each seed
    test: PairedTest | None  # against the best model: this one minus the best; None for the best one itself
    examples_per_second: float
    by_length: Sequence[LengthScore] = ()
    retained_on_long: float | None = None  # score on long texts over that on short ones; None where there are few
    is_pretrained: bool | None = None  # whether it started from another model; None: unknown
    is_baseline: bool = False  # of the task, such as word counts
    example: Example = field(default_factory=Example)
    history: TrainingHistory = field(default_factory=TrainingHistory)
    predictions: Sequence[Predictions] = ()  # of each seed

    @property
    def mean(self) -> float:
        """Mean score over the seeds."""
        return self.interval.mean

    def to_dict(self) -> ComparedModelDict:
        """All but predictions and picture as plain values."""
        history = self.history
        groups = self.by_length
        return {
            "name": self.name,
            "summary": self.summary,
            "parameters": self.parameters,
            "pretrained": self.is_pretrained,
            "attention": self.example.has_attention,
            "score": self.mean,
            "low": self.interval.low,
            "high": self.interval.high,
            "deviation": self.statistics.deviation,
            "scores": {name: list(values) for name, values in self.scores.items()},
            "test": None if self.test is None else test_dict(self.test),
            "by_length": [{"words": group.words, "examples": group.examples, "score": group.score} for group in groups],
            "retained_on_long": self.retained_on_long,
            "examples_per_second": self.examples_per_second,
            "training_rate": history.rate,
            "training_unit": history.unit,
            "minutes": history.minutes,
            "loss_curve": [list(point) for point in history.loss.points],
            "metric_curve": [list(point) for point in history.metric.points],
            "prediction": self.example.prediction,
        }


def test_dict(test: PairedTest) -> PairedTestDict:
    """A test as plain values."""
    return {
        "difference": test.difference,
        "low": test.low,
        "high": test.high,
        "p_value": test.p_value,
        "significant": test.is_significant,
    }


@dataclass(frozen=True)
class AttentionVerdict:
    """The best model with attention against the best one without, of those that did not start from another model."""

    attending: str  # name of the model with attention
    plain: str
    test: PairedTest  # the former minus the latter; adjusted for all pairs of a model with attention and one without
    is_plain_baseline: bool = False


@dataclass(frozen=True)
class ComparisonReport:
    """A comparison in the order in which its models were named."""

    title: str
    task: str
    metric: str  # that ranks the models
    models: Sequence[ComparedModel]
    seeds: Sequence[int] = (1,)
    text: str = ""  # example that is shown through every model
    reference: str = ""
    attention: AttentionVerdict | None = None  # None where there are not both kinds of models
    details: Mapping[str, Any] = field(default_factory=dict)  # data, budget

    @property
    def metric_row(self) -> Metric:
        """Row of the metric in the table of metrics."""
        return METRICS[self.metric]

    @property
    def best(self) -> ComparedModel:
        """The model with the best score."""
        return _best_of(self.models, self.metric_row)

    def paired_test(self, first: str, second: str) -> PairedTest:
        """Test the difference of two models by name: first minus second."""
        return self.paired_tests([(first, second)])[0]

    def paired_tests(self, pairs: Sequence[tuple[str, str]]) -> list[PairedTest]:
        """Test the differences of pairs that were chosen beforehand, with p-values adjusted for their number."""
        indices = {model.name: index for index, model in enumerate(self.models)}
        statistics = [model.statistics for model in self.models]
        return compare_pairs(statistics, [(indices[first], indices[second]) for first, second in pairs])

    @property
    def conclusion(self) -> str:
        """The conclusion in words."""
        return conclude(self)

    def to_dict(self) -> ComparisonReportDict:
        """The report as plain values."""
        verdict = self.attention
        return {
            "title": self.title,
            "task": self.task,
            "metric": self.metric,
            "seeds": list(self.seeds),
            "details": dict(self.details),
            "conclusion": self.conclusion,
            "attention": None
            if verdict is None
            else {"attending": verdict.attending, "plain": verdict.plain, "test": test_dict(verdict.test)},
            "text": self.text,
            "reference": self.reference,
            "models": [model.to_dict() for model in self.models],
        }


def build_report(
    evaluations: Sequence[ModelEvaluation],
    lengths: Sequence[int],
    *,
    task: str,
    metric: str,
    title: str,
    seeds: Sequence[int] = (1,),
    text: str = "",
    reference: str = "",
    details: Mapping[str, Any] | None = None,
) -> ComparisonReport:
    """Compute scores, intervals and tests; `lengths` are the words of each test example, or none."""
    scoring = Scoring(task, (metric,))
    statistics = [collect_statistics(metric, evaluation.predictions) for evaluation in evaluations]
    ranks = [METRICS[metric].rank(model.mean) for model in statistics]
    best = int(np.argmax(ranks))
    tests = compare_with_best(statistics, best)
    words = np.array(lengths, dtype=np.int64)
    models = [
        ComparedModel(
            evaluation.name,
            summary=evaluation.summary,
            parameters=evaluation.parameters,
            statistics=statistics[index],
            interval=score_interval(statistics[index]),
            scores=_collect_scores(scoring, evaluation.predictions),
            test=tests.get(index),
            examples_per_second=evaluation.examples_per_second,
            by_length=_scores_by_length(statistics[index], words) if len(words) else [],
            retained_on_long=_retained_on_long(statistics[index], words) if len(words) else None,
            is_pretrained=evaluation.is_pretrained,
            is_baseline=evaluation.is_baseline,
            example=evaluation.example,
            history=evaluation.history,
            predictions=evaluation.predictions,
        )
        for index, evaluation in enumerate(evaluations)
    ]
    return ComparisonReport(
        title,
        task=task,
        metric=metric,
        models=models,
        seeds=seeds,
        text=text,
        reference=reference,
        attention=_judge_attention(models, METRICS[metric]),
        details=details or {},
    )


def _best_of(models: Sequence[ComparedModel], metric: Metric) -> ComparedModel:
    return max(models, key=lambda model: metric.rank(model.mean))


def _collect_scores(scoring: Scoring, predictions: Sequence[Predictions]) -> dict[str, list[float]]:
    """Every metric of a finished model, one value for each seed."""
    scores: dict[str, list[float]] = {}
    for seed in predictions:
        for name, value in scoring.compute_final(seed).items():
            if name in METRICS:
                scores.setdefault(name, []).append(float(value))
    return scores


def _scores_by_length(statistics: ExampleStatistics, words: Lengths) -> list[LengthScore]:
    """Score by the length of the input, without groups that have no examples."""
    groups = []
    for low, high in pairwise((0, *LENGTH_LIMITS, UNLIMITED)):
        in_group = (words > low) & (words <= high)
        if in_group.any():
            name = f"{low + 1}–{high}" if high < UNLIMITED else f"over {low}"
            groups.append(LengthScore(name, int(in_group.sum()), score=statistics.select(in_group).mean))
    return groups


def _retained_on_long(statistics: ExampleStatistics, words: Lengths) -> float | None:
    """Score on long texts over that on short ones."""
    is_short = words <= SHORT_SOURCE_WORDS
    is_long = words > LONG_SOURCE_WORDS
    if min(is_short.sum(), is_long.sum()) < MIN_GROUP:
        return None
    short = statistics.select(is_short).mean
    return statistics.select(is_long).mean / short if short else None


def _judge_attention(models: Sequence[ComparedModel], metric: Metric) -> AttentionVerdict | None:
    """Compare the best model with attention and the best one without; pretrained ones have read other texts."""
    scratch = [model for model in models if model.is_pretrained is False]
    attending = [index for index, model in enumerate(scratch) if model.example.has_attention]
    plain = [index for index, model in enumerate(scratch) if not model.example.has_attention]
    if not attending or not plain:
        return None

    def best_of(indices: Sequence[int]) -> int:
        return max(indices, key=lambda index: metric.rank(scratch[index].mean))

    first = best_of(attending)
    second = best_of(plain)
    pairs = [*product(attending, plain)]  # both are chosen on the same examples: adjust for all of these
    tests = compare_pairs([model.statistics for model in scratch], pairs)
    return AttentionVerdict(
        scratch[first].name,
        scratch[second].name,
        test=tests[pairs.index((first, second))],
        is_plain_baseline=scratch[second].is_baseline,
    )
