"""Gradient norms during training by layer and distance, from the log of a run that was trained with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from regard.checkpoint.run_dir import RunDirectory, folder_kind
from regard.errors import CheckpointError, UsageError
from regard.formatting import format_count
from regard.report.charts import Points, chart_page, line_chart
from regard.training.gradient_log import EVENT

MAX_LINES = 6  # evaluations in one chart
MISSING = "–"


class GradientEvaluationDict(TypedDict):
    """Gradient norms at one evaluation."""

    step: int
    weights: dict[str, float]  # layer → norm over its weights, of the mean loss
    distances: list[int]  # first distance of each range, in tokens from the end of the text
    hidden: dict[str, list[float | None]]  # layer → mean norm of a token's hidden state by distance, of its row's loss


class GradientHistoryDict(TypedDict):
    """JSON form of a `GradientHistory`."""

    run: str
    evaluations: list[GradientEvaluationDict]


@dataclass(frozen=True)
class GradientHistory:
    """Gradient norms at all evaluations of a run."""

    run: str
    evaluations: tuple[GradientEvaluationDict, ...]

    def to_dict(self) -> GradientHistoryDict:
        """Convert to plain values."""
        return {"run": self.run, "evaluations": list(self.evaluations)}

    def layers(self) -> list[str]:
        """Layers whose hidden states have norms at several distances."""
        hidden = self.evaluations[-1]["hidden"]
        return [layer for layer, norms in hidden.items() if sum(norm is not None for norm in norms) > 1]

    def table(self) -> list[list[str]]:
        """Header, and one row for each evaluation and layer: its norm by distance."""
        distances = self.evaluations[-1]["distances"]
        rows = [["step", "layer", *(f"from {distance}" for distance in distances)]]
        for evaluation in self.evaluations:
            for layer in self.layers():
                norms = evaluation["hidden"].get(layer, [])
                rows.append([str(evaluation["step"]), layer, *map(_format, norms)])
        return rows

    def tsv(self) -> Iterable[str]:
        """Lines of tab-separated values."""
        return ("\t".join(row) for row in self.table())

    def summary(self) -> list[str]:
        """Describe what the norms are of."""
        return [
            f"gradients of {self.run} at {format_count(len(self.evaluations), 'evaluation')}, of the first batch of "
            "its training data",
            "norm of the gradient of a row's loss by a token's hidden state, mean over the tokens of a range of "
            "distances from the end of the text",
        ]

    def charts(self) -> dict[str, str]:
        """Charts as SVG by title, of logarithms."""
        charts = {}
        last = self.evaluations[-1]
        by_layer = {layer: _log_points(last["distances"], last["hidden"][layer]) for layer in self.layers()}
        if by_layer:
            title = f"By layer and distance at step {last['step']}"
            charts[title] = _chart(title, by_layer, "tokens from the end of the text")
        for layer in self.layers()[:1]:
            title = f"By distance during training: {layer}"
            lines = {
                f"step {evaluation['step']}": _log_points(evaluation["distances"], evaluation["hidden"].get(layer, []))
                for evaluation in _spread(self.evaluations)
            }
            charts[title] = _chart(title, lines, "tokens from the end of the text")
        steps = [evaluation["step"] for evaluation in self.evaluations]
        weights = {
            layer: _log_points(steps, [evaluation["weights"].get(layer) for evaluation in self.evaluations])
            for layer in last["weights"]
        }
        title = "Of the weights of each layer during training"
        charts[title] = _chart(title, weights, "updates")
        return charts

    def page(self) -> str:
        """The history as one self-contained page without scripts."""
        return chart_page(f"Gradients of {self.run} during training", self.summary(), self.charts())


def read_gradient_history(folder: str | Path) -> GradientHistory:
    """Read the gradient norms that a run has logged."""
    path = Path(folder)
    if folder_kind(path) != "run":
        raise CheckpointError(f"{path}: not a run; the history is in the folder that regard train writes")
    evaluations = [_parse(event) for event in RunDirectory(path).read_log() if event.get("event") == EVENT]
    if not evaluations:
        raise UsageError(f"{path} has no gradients in its log: train with --log-gradients")
    return GradientHistory(path.name, tuple(evaluations))


def _parse(event: Mapping[str, Any]) -> GradientEvaluationDict:
    return {
        "step": event["step"],
        "weights": event["weights"],
        "distances": event["distances"],
        "hidden": event["hidden"],
    }


def _spread(evaluations: Sequence[GradientEvaluationDict]) -> list[GradientEvaluationDict]:
    """The first and the last evaluation, and some in between."""
    last = len(evaluations) - 1
    count = min(MAX_LINES, len(evaluations))
    return [evaluations[round(index * last / max(1, count - 1))] for index in range(count)]


def _log_points(xs: Sequence[float], norms: Sequence[float | None]) -> Points:
    """Points with logarithms of norms; those of zero are left out."""
    return [(float(x), math.log10(norm)) for x, norm in zip(xs, norms, strict=False) if norm]


def _chart(title: str, series: Mapping[str, Points], x_label: str) -> str:
    return line_chart(series, title=title, x_label=x_label, y_label="norm of the gradient, logarithm to base 10")


def _format(norm: float | None) -> str:
    return MISSING if norm is None else f"{norm:.3g}"
