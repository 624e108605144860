"""Report on the reach of several models: influence and exact match by distance, as table, TSV, JSON and page."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from regard.config.data import ReadConfig
from regard.interpret.reach import (
    ReachCurve,
    ReachCurveDict,
    ReachPoint,
    ReachSample,
    distance_bins,
    pooled_correlation,
    reach_curve,
)
from regard.report.charts import chart_page, html_table, line_chart

MISSING = "–"
BINS = 12  # ranges of distances
DISTANCE_LABEL = "tokens between the token and the prediction"
Notify = Callable[[str], object]
Value = Callable[[ReachPoint], float]
Column = tuple[str, Value, str]


class ReachReportDict(TypedDict):
    """JSON form of a `ReachReport`."""

    data: str
    minutes: float  # limit for each model
    gradient_and_exact_match: float | None  # rank correlation over the points of all models; null where there is none
    occlusion_and_exact_match: float | None
    models: list[ReachCurveDict]


@dataclass(frozen=True)
class Chart:
    """A line for each model: a value of its points by distance."""

    title: str
    y_label: str
    value: Value
    needs_recalled: bool  # whether the value is of predictions that recall a token


CHARTS = (
    Chart(
        "Influence of the token to recall: gradient",
        "share of its row's gradient norms, %",
        lambda point: 100 * point.recalled_gradient,
        needs_recalled=True,
    ),
    Chart("Exact match", "% of the predictions", lambda point: point.exact_match, needs_recalled=True),
    Chart(
        "Influence of the token to recall: occlusion",
        "loss of log-probability without it, nats",
        lambda point: point.recalled_occlusion,
        needs_recalled=True,
    ),
    Chart(
        "Influence of any token: gradient",
        "share of its row's gradient norms, %",
        lambda point: 100 * point.gradient,
        needs_recalled=False,
    ),
    Chart(
        "Influence of any token: occlusion",
        "loss of log-probability without it, nats",
        lambda point: point.occlusion,
        needs_recalled=False,
    ),
)
COLUMNS: tuple[Column, ...] = (  # title, value of a point, number format
    ("gradient %", lambda point: 100 * point.gradient, ".2f"),
    ("gradient norm", lambda point: point.gradient_norm, ".3g"),
    ("occlusion", lambda point: point.occlusion, ".3f"),
    ("recalled", lambda point: point.recalled or math.nan, ".0f"),
    ("its gradient %", lambda point: 100 * point.recalled_gradient, ".2f"),
    ("its occlusion", lambda point: point.recalled_occlusion, ".3f"),
    ("exact match %", lambda point: point.exact_match, ".1f"),
)


@dataclass(frozen=True)
class ReachReport:
    """Curves of several models on the same data, in the order in which the models were named."""

    data: str
    minutes: float
    curves: tuple[ReachCurve, ...]

    @property
    def has_recalled(self) -> bool:
        """Whether any prediction recalls a token."""
        return any(curve.has_recalled for curve in self.curves)

    def to_dict(self) -> ReachReportDict:
        """Convert to plain values."""
        return {
            "data": self.data,
            "minutes": self.minutes,
            "gradient_and_exact_match": pooled_correlation(self.curves, "recalled_gradient", "exact_match"),
            "occlusion_and_exact_match": pooled_correlation(self.curves, "recalled_occlusion", "exact_match"),
            "models": [curve.to_dict() for curve in self.curves],
        }

    def summary(self) -> list[str]:
        """Describe what was measured, and how the curves agree."""
        counts = ", ".join(f"{curve.model} {curve.predictions:,}" for curve in self.curves)
        lines = [
            f"predictions on {self.data}: {counts}",
            "gradient: norm of the gradient of the reference token's log-probability by a token's embedding, as a "
            "share of its row; occlusion: loss of log-probability, in nats, where another token replaces it",
        ]
        if not self.has_recalled:
            return [*lines, "no reference token occurs exactly once in its text: there is no exact match by distance"]
        lines.append(
            "recalled: predictions whose reference token occurs exactly once in the text, at this distance; exact "
            "match: those in which it is the most probable token"
        )
        for curve in self.curves:
            lines.append(
                f"{curve.model}: rank correlation with exact match over {curve.gradient_and_exact_match.bins} ranges: "
                f"gradient {curve.gradient_and_exact_match}, occlusion {curve.occlusion_and_exact_match}; "
                f"gradient with occlusion {curve.gradient_and_occlusion}"
            )
        if len(self.curves) > 1:
            pooled = self.to_dict()
            lines.append(
                f"all models together: gradient {_format(pooled['gradient_and_exact_match'], '+.2f')}, "
                f"occlusion {_format(pooled['occlusion_and_exact_match'], '+.2f')}"
            )
        if any(curve.gradient_and_exact_match.value is None for curve in self.curves):
            lines.append(f"{MISSING}: one of the two curves is constant, or has fewer than three ranges: no ranks")
        return lines

    def columns(self) -> list[Column]:
        """Columns that have a value in any row."""
        points = [point for curve in self.curves for point in curve.points]
        return [column for column in COLUMNS if any(not math.isnan(column[1](point)) for point in points)]

    def table(self) -> list[list[str]]:
        """Titles, and one row for each model and range of distances."""
        columns = self.columns()
        rows = [["model", "distance", *(title for title, _, _ in columns)]]
        for curve in self.curves:
            for point in curve.points:
                cells = [_format(value(point), number_format) for _, value, number_format in columns]
                rows.append([curve.model, point.label, *cells])
        return rows

    def tsv(self) -> Iterable[str]:
        """Lines of tab-separated values."""
        return ("\t".join(row) for row in self.table())

    def charts(self) -> dict[str, str]:
        """Charts as SVG by title; those that have no value are left out."""
        drawings = {}
        for chart in CHARTS:
            series = {curve.model: _series(curve, chart) for curve in self.curves}
            if any(series.values()):
                drawings[chart.title] = line_chart(
                    series, title=chart.title, x_label=DISTANCE_LABEL, y_label=chart.y_label
                )
        return drawings

    def page(self) -> str:
        """The report as one self-contained page without scripts."""
        models = "".join(
            f"<dt>{html.escape(curve.model)}</dt><dd>{html.escape(curve.summary)}</dd>" for curve in self.curves
        )
        after = f"<h2>Models</h2><dl>{models}</dl>{html_table(self.table())}"
        title = f"Reach of {', '.join(curve.model for curve in self.curves)}"
        return chart_page(title, self.summary(), self.charts(), after)


def measure_reach(
    models: Sequence[str],
    files: Sequence[str],
    read_config: ReadConfig | None = None,
    *,
    sample: int = 1000,
    minutes: float = 2.0,
    bins: int = BINS,
    seed: int = 0,
    notify: Notify = lambda line: None,
    **load_options: Any,
) -> ReachReport:
    """Measure the reach of each model on the same predictions of the files; `minutes` is the limit of each model."""
    from regard.interpret.reach_sample import build_reach_subject, sample_reach
    from regard.pipeline.load import load

    distance_bins(0, bins)  # refuses wrong bins before anything is computed
    samples: list[ReachSample] = []
    summaries = []
    for model in models:
        notify(f"{model}: measuring up to {sample:,} predictions")
        subject = build_reach_subject(load(model, **load_options), files, read_config)
        samples.append(sample_reach(subject, sample=sample, minutes=minutes, seed=seed))
        summaries.append(subject.summary)
    edges = distance_bins(max(int(measured.distance.max()) for measured in samples), bins)
    curves = [
        reach_curve(measured, edges, model=name, summary=summary)
        for measured, name, summary in zip(samples, model_names(models), summaries, strict=True)
    ]
    return ReachReport(" ".join(Path(file).name for file in files), minutes, tuple(curves))


def model_names(models: Sequence[str]) -> list[str]:
    """Names of the folders, or their paths where two have one name.

    >>> model_names(["runs/rnn", "runs/gru/"]), model_names(["a/run", "b/run"])
    (['rnn', 'gru'], ['a/run', 'b/run'])
    """
    names = [Path(model).name for model in models]
    return names if len(set(names)) == len(names) else list(models)


def _series(curve: ReachCurve, chart: Chart) -> list[tuple[float, float]]:
    points = [(point.distance, chart.value(point)) for point in curve.points]
    return [(distance, value) for distance, value in points if not math.isnan(value)]


def _format(value: float | None, number_format: str) -> str:
    return MISSING if value is None or math.isnan(value) else f"{value:{number_format}}"
