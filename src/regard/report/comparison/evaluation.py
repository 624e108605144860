"""Evaluation of the models of a comparison: predictions of every seed, speed, training history, and one example."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Generic

import numpy as np

from regard.attention.sites import site_name
from regard.checkpoint.run_dir import RunDirectory
from regard.config.data import DataConfig
from regard.interpret.record_request import run_request
from regard.pipeline.load import load
from regard.pipeline.result import PipelineResult
from regard.report.charts import Points, heat_map
from regard.report.comparison.tasks import ExamplesT, TaskComparison
from regard.report.comparison.training import ComparedRuns
from regard.report.info import describe_folder
from regard.tasks.predictions import Predictions
from regard.training.multi_seed import find_published_run
from regard.view.drawing import truncate_text
from regard.view.record.record import Record
from regard.view.selection import select_attention

LABEL_ROOM = 110.0  # width of the labels of a heat map, in points
LABEL_SIZE = 9.0
RATE = "_per_second"  # ending of the fields of a log with a speed


@dataclass(frozen=True)
class LearningCurve:
    """Values of a metric or a loss during training."""

    points: Points = ()  # minute, value
    is_validation: bool = True  # otherwise on training data, of a run with fewer than two evaluations


@dataclass(frozen=True)
class TrainingHistory:
    """Speed, duration and learning curves of training; empty for a model that was not trained here."""

    rate: float | None = None  # per second, the median over the updates
    unit: str = ""  # what is counted: tokens, texts, words
    minutes: float | None = None
    loss: LearningCurve = LearningCurve()
    metric: LearningCurve = LearningCurve()  # that ranks the models


@dataclass(frozen=True)
class Example:
    """Prediction of one model for the example that is shown."""

    prediction: str = ""
    picture: str = ""  # SVG of its attention; empty where there is none
    site: str = ""  # layer or head that the picture shows
    has_attention: bool = False


@dataclass(frozen=True)
class ModelEvaluation:
    """Predictions of one model on the test data, one element for each seed, and what else is reported of it."""

    name: str
    summary: str
    parameters: int
    predictions: Sequence[Predictions]
    examples_per_second: float
    is_pretrained: bool | None
    is_baseline: bool = False
    example: Example = field(default_factory=Example)
    history: TrainingHistory = field(default_factory=TrainingHistory)


@dataclass(frozen=True)
class ComparisonEvaluator(Generic[ExamplesT]):
    """Evaluates the models of a comparison on one test set."""

    comparison: TaskComparison[ExamplesT]
    test: ExamplesT
    example: int  # index of the example that is shown
    threads: int = 0

    def evaluate(self, runs: ComparedRuns) -> ModelEvaluation:
        """Evaluate the model of every seed; the first one's predicts the example that is shown."""
        predictions: list[Predictions] = []
        seconds = 0.0
        example = Example()
        for folder in runs.folders:
            pipeline: Any = load(folder, threads=self.threads)
            result = run_request(pipeline, self.comparison.request(self.test, self.example))  # warms caches, too
            start = time.perf_counter()
            predictions.append(pipeline.predict_examples(self.test))
            seconds += time.perf_counter() - start
            if len(predictions) == 1:
                example = self._show(predictions[0], result)
        info = describe_folder(runs.folders[0])
        return ModelEvaluation(
            runs.name,
            summary=info.model.summary() if info.model else "",
            parameters=info.parameters,
            predictions=predictions,
            examples_per_second=len(self.test) * len(predictions) / seconds,
            is_pretrained=runs.is_pretrained,
            example=example,
        )

    def evaluate_baseline(self, name: str, data: DataConfig) -> ModelEvaluation:
        """Fit the baseline of the task to the training data, and evaluate it."""
        baseline = self.comparison.fit_baseline(data)
        start = time.perf_counter()
        predictions = baseline.predict(self.test)
        seconds = time.perf_counter() - start
        return ModelEvaluation(
            name,
            summary=baseline.summary,
            parameters=baseline.parameters,
            predictions=[predictions],
            examples_per_second=len(self.test) / seconds,
            is_pretrained=False,
            is_baseline=True,
            example=self._show(predictions, None),
        )

    def _show(self, predictions: Predictions, result: PipelineResult | None) -> Example:
        """Prediction of the example that is shown, and the attention of its record."""
        prediction = self.comparison.format_prediction(predictions, self.test, self.example, result)
        return Example(prediction) if result is None else draw_attention(result.record(), prediction)


def draw_attention(record: Record, prediction: str) -> Example:
    """Draw the attention of a record between words: its best head, or the mean of its last layer.

    Where one row attends, as the question of a memory network, there is a row for each layer. Weights are relative to
    the largest.
    """
    if not record.attention:
        return Example(prediction)
    selection = select_attention(record, words=True)
    table = selection.table
    row_labels = [unit.label for unit in selection.rows]
    site = selection.site
    layers = selection.attention.layers
    if len(row_labels) == 1 and len(layers) > 1:
        name = selection.attention.name
        table = np.concatenate([select_attention(record, name, layer, words=True).table for layer in layers])
        row_labels = [site_name(name, layer) for layer in layers]
        site = f"{row_labels[0]} to {row_labels[-1]}"
    rows = [truncate_text(label, LABEL_SIZE, LABEL_ROOM) for label in row_labels]
    columns = [truncate_text(unit.label, LABEL_SIZE, LABEL_ROOM) for unit in selection.columns]
    picture = heat_map(table / max(1e-9, float(table.max(initial=0.0))), rows, columns, title=f"attention of {site}")
    return Example(prediction, picture, site=site, has_attention=True)


def read_history(folders: Sequence[Path], metric: str) -> TrainingHistory:
    """Read the history from the files of the runs; learning curves are those of the first one.

    Of a run with several seeds or restarts, speed and curves are those of the one whose model it published.
    """
    directories = [RunDirectory(folder) for folder in folders]
    results: list[dict[str, Any]] = [directory.read_run().get("result") or {} for directory in directories]
    if not results or not all(results):
        return TrainingHistory()
    published = [find_published_run(directory) for directory in directories]
    logs = [directory.read_log() for directory in published]
    rates = [
        (name.removesuffix(RATE), value)
        for events in logs
        for event in events
        for name, value in event.items()
        if name.endswith(RATE)
    ]
    minutes_per_step = published[0].minutes_per_step()
    return TrainingHistory(
        rate=median(value for _, value in rates) if rates else None,
        unit=rates[0][0] if rates else "",
        minutes=fmean(result["seconds"] / 60 for result in results),
        loss=_read_curve(logs[0], "loss", minutes_per_step),
        metric=_read_curve(logs[0], metric, minutes_per_step),
    )


def _read_curve(events: Sequence[Mapping[str, Any]], name: str, minutes_per_step: float) -> LearningCurve:
    """Values of the evaluations in a log; of fewer than two, those of the updates."""
    curves: dict[str, list[tuple[float, float]]] = {"evaluate": [], "step": []}
    for event in events:
        value = event.get(name, event.get(f"valid_{name}"))
        if event.get("event") in curves and isinstance(value, int | float):
            curves[event["event"]].append((minutes_per_step * event["step"], float(value)))
    if len(curves["evaluate"]) > 1:
        return LearningCurve(curves["evaluate"])
    return LearningCurve(curves["step"], is_validation=False)
