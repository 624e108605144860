"""Compare the models of a task: `compare_architectures` trains them first, `compare_runs` takes finished ones.

plan = TrainingPlan(
    "classify",
    parse_candidates(["counts", "rnn:mean", "rnn:attention"], "classify"),
    {"data.train": ["train.tsv"]},
    seeds=(1, 2, 3),
    minutes=1.5,
)
report = compare_architectures(plan, ["test.tsv"], Path("report"))
report.best.interval, report.paired_test("rnn:attention", "rnn:mean")
report.models[1].statistics.seed_scores, report.models[1].predictions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.checkpoint.locate import read_task_file, resolve_model_path
from regard.config.data import DataConfig, ReadConfig
from regard.errors import UsageError
from regard.formatting import format_count
from regard.hardware import available_cores, processor_name
from regard.metric_table import METRICS
from regard.registry import TASKS, resolve
from regard.report.comparison.evaluation import ComparisonEvaluator, ModelEvaluation, read_history
from regard.report.comparison.report import ComparisonReport, build_report
from regard.report.comparison.tasks import TaskComparison
from regard.report.comparison.training import (
    ComparedRuns,
    Notify,
    TrainingPlan,
    check_task,
    finished_runs,
    finished_task,
    read_run_config,
)
from regard.tasks.scoring import Scoring
from regard.training.listeners import Listener

MINUTES = "minutes per run"  # among the details of a report
NOTE = "note"
TRAINING_NOTE = "the test data contain training data: scores are optimistic"
VALIDATION_NOTE = "the test data contain validation data, which select the checkpoints: scores are optimistic"


@dataclass(frozen=True)
class ComparisonOptions:
    """What is reported, beside the models and the test data."""

    metric: str = ""  # that ranks the models; empty: that of the task
    example: int = 0  # number of the test example that is shown, from 1; 0: one of suitable length
    threads: int = 0  # of inference; 0: all cores


def compare_architectures(
    plan: TrainingPlan,
    test_files: Sequence[str],
    out: Path,
    options: ComparisonOptions | None = None,
    *,
    listeners: Sequence[Listener] = (),
    notify: Notify = lambda text: None,
) -> ComparisonReport:
    """Train the architectures of a plan in `out` and compare them on the test data; finished runs are kept."""
    if len(plan.candidates) < 2:
        raise UsageError("a comparison needs at least two models")
    check_task(plan.task)
    test = _TestSet.read(plan.task, test_files, plan.data.read, options or ComparisonOptions(), notify=notify)
    test.check_metric(test.comparison.prediction_kind(test.examples))
    test.comparison.check_labels(test.examples, plan.data)
    overlap = _describe_overlap(test_files, [plan.data], notify)
    runs = plan.train(out, listeners, notify)
    details = {"training data": ", ".join(plan.data.train), **_describe_minutes(plan.run_minutes()), **overlap}
    return test.compare(runs, plan.seeds, details, data=plan.data)


def _describe_minutes(minutes: Mapping[str, float]) -> dict[str, Any]:
    """Time limits of the runs, for the details of a report: one number, or one for each architecture.

    >>> _describe_minutes({"rnn": 0.5, "transformer": 0.5}), _describe_minutes({"rnn": 0.5, "tuned": 1.0})
    ({'minutes per run': 0.5}, {'minutes per run': 'rnn 0.5, tuned 1'})
    """
    if not minutes:
        return {}
    if len({*minutes.values()}) == 1:
        return {MINUTES: next(iter(minutes.values()))}
    return {MINUTES: ", ".join(f"{name} {limit:g}" for name, limit in minutes.items())}


def _describe_overlap(test_files: Sequence[str], data: Sequence[DataConfig], notify: Notify) -> dict[str, str]:
    """Note for the details of a report, and for the user, where a test file is one of training or validation, too."""
    files_by_note = {
        TRAINING_NOTE: [file for config in data for file in config.train],
        VALIDATION_NOTE: [file for config in data for file in config.valid],
    }
    test = {Path(file).resolve() for file in test_files}
    for note, files in files_by_note.items():
        if not test.isdisjoint(Path(file).resolve() for file in files):
            notify(note)
            return {NOTE: note}
    return {}


def compare_runs(
    folders: Sequence[str],
    test_files: Sequence[str],
    read_config: ReadConfig | None = None,
    options: ComparisonOptions | None = None,
    *,
    notify: Notify = lambda text: None,
) -> ComparisonReport:
    """Compare finished models of one task on the test data."""
    if len(folders) < 2:
        raise UsageError("a comparison needs at least two models")
    task = check_task(finished_task(folders))
    runs = finished_runs(folders)
    metadata = read_task_file(resolve_model_path(runs[0].folders[0]))
    options = options or ComparisonOptions()
    test = _TestSet.read(task, test_files, read_config or ReadConfig(), options, metadata=metadata, notify=notify)
    configs = [read_run_config(run.folders[0]) for run in runs]
    overlap = _describe_overlap(test_files, [config.data for config in configs if config is not None], notify)
    return test.compare(runs, (), overlap)


@dataclass(frozen=True)
class _TestSet:
    """Test data of a comparison, read and checked before anything is trained."""

    task: str
    files: Sequence[str]
    comparison: TaskComparison[Any]
    examples: Any
    options: ComparisonOptions
    notify: Notify

    @classmethod
    def read(
        cls,
        task: str,
        files: Sequence[str],
        read_config: ReadConfig,
        options: ComparisonOptions,
        *,
        notify: Notify,
        metadata: Mapping[str, Any] | None = None,
    ) -> _TestSet:
        """Read test files; refuse a metric or an example that does not exist."""
        comparison: TaskComparison[Any] = resolve(TASKS[task].comparison)(task)
        examples = comparison.read(files, read_config, metadata or {})
        for note in examples.notes:
            notify(note)
        if not 0 <= options.example <= len(examples):
            raise UsageError(f"there is no example {options.example}: the test data have 1 to {len(examples)}")
        test = cls(task, files, comparison, examples, options, notify)
        test.check_metric()
        return test

    def check_metric(self, kind: str = "") -> None:
        """Refuse a metric that is unknown, not for the task or for predictions of a kind, or has no interval."""
        metric = self.options.metric
        if not metric:
            return
        scoring = Scoring(self.task, (metric,))
        scoring.check()
        if kind:
            scoring.check(kind)
        kinds = {kind} if kind else {*TASKS[self.task].metrics}
        if METRICS[metric].statistics.keys().isdisjoint(kinds):
            names = [name for name, row in METRICS.items() if row.statistics.keys() & kinds]
            raise UsageError(f"the metric {metric} has no confidence interval: choose {', '.join(names)}")

    def compare(
        self,
        runs: Sequence[ComparedRuns],
        seeds: Sequence[int],
        details: Mapping[str, Any],
        data: DataConfig | None = None,
    ) -> ComparisonReport:
        """Evaluate every model on the test data and report."""
        index = self.options.example - 1 if self.options.example else self.comparison.choose_example(self.examples)
        evaluator = ComparisonEvaluator(self.comparison, self.examples, index, threads=self.options.threads)
        evaluations = []
        for run in runs:
            self.notify(f"{run.name}: predicting {format_count(len(self.examples), 'example')}")
            if run.folders:
                evaluations.append(evaluator.evaluate(run))
            else:
                assert data is not None
                evaluations.append(evaluator.evaluate_baseline(run.name, data))
        metric = self._choose_metric(evaluations)
        self.comparison.check_comparable([evaluation.predictions[0] for evaluation in evaluations])
        histories = [read_history(run.folders, metric) for run in runs]
        return build_report(
            [replace(pair[0], history=pair[1]) for pair in zip(evaluations, histories, strict=True)],
            self.comparison.lengths(self.examples),
            task=self.task,
            metric=metric,
            title=f"{len(runs)} models compared on {', '.join(Path(file).name for file in self.files)}",
            seeds=seeds,
            text=self.comparison.text(self.examples, index),
            reference=self.comparison.reference(self.examples, index),
            details={
                "test examples": len(self.examples),
                **details,
                "processor": f"{processor_name()}, {format_count(available_cores(), 'core')}",
            },
        )

    def _choose_metric(self, evaluations: Sequence[ModelEvaluation]) -> str:
        """The requested metric, or that which ranks models of the task."""
        kinds = {evaluation.name: evaluation.predictions[0].kind for evaluation in evaluations}
        if len(set(kinds.values())) > 1:
            described = ", ".join(f"those of {name} are {kind}" for name, kind in kinds.items())
            raise UsageError(f"models with different kinds of predictions cannot be compared: {described}")
        return self.options.metric or Scoring(self.task).main(evaluations[0].predictions[0].kind)
