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
)
from regard.tasks.scoring import Scoring
from regard.training.listeners import Listener


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
    test.comparison.check_labels(test.examples, plan.data)
    runs = plan.train(out, listeners, notify)
    details = {"training data": ", ".join(plan.data.train), "minutes per run": plan.minutes}
    return test.compare(runs, plan.seeds, details, data=plan.data)


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
    return test.compare(runs, (), {})


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
        if options.metric:
            Scoring(task, (options.metric,)).check()
            if not METRICS[options.metric].statistics:
                names = [name for name, row in METRICS.items() if row.statistics.keys() & TASKS[task].metrics.keys()]
                raise UsageError(f"the metric {options.metric} has no confidence interval: choose {', '.join(names)}")
        comparison: TaskComparison[Any] = resolve(TASKS[task].comparison)(task)
        examples = comparison.read(files, read_config, metadata or {})
        for note in examples.notes:
            notify(note)
        if not 0 <= options.example <= len(examples):
            raise UsageError(f"there is no example {options.example}: the test data have 1 to {len(examples)}")
        return cls(task, files, comparison, examples, options, notify)

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
