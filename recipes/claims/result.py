"""The outcome of checking a claim: what was measured, every rule with its interval, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from recipes.claims.claim import ClaimConfig
from recipes.claims.measure import Measurement, Points
from recipes.claims.rules import Interval, combine_verdicts
from regard.checkpoint.atomic import json_bytes, read_json, write_file
from regard.formatting import finite_values


@dataclass(frozen=True)
class RuleResult:
    """One rule, the 95 % interval of its quantity, and the verdict."""

    rule: str
    interval: Interval
    verdict: str
    count: int  # of seeds or examples that the interval is over
    unit: str  # seeds or examples

    def describe(self) -> str:
        """Describe the outcome in one line.

        >>> RuleResult("plain < 20", Interval(3.0, 1.5, 4.5), verdict="holds", count=3, unit="seeds").describe()
        'plain < 20: 3 (95 %: 1.5 to 4.5, over 3 seeds): holds'
        """
        interval = self.interval
        if math.isnan(interval.estimate):
            return f"{self.rule}: not known: {self.verdict}"
        spread = f" (95 %: {interval.low:.3g} to {interval.high:.3g}, over {self.count} {self.unit})"
        if self.count == 1:
            spread = ""
        return f"{self.rule}: {interval.estimate:.3g}{spread}: {self.verdict}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {
            "rule": self.rule,
            "estimate": self.interval.estimate,
            "interval": [self.interval.low, self.interval.high],
            "verdict": self.verdict,
            "over": self.unit,
            "count": self.count,
        }


@dataclass(frozen=True)
class ClaimResult:
    """The verdict on a claim, and what led to it."""

    name: str
    config: ClaimConfig
    seeds: Sequence[int]
    rules: Sequence[RuleResult]
    measurements: Mapping[str, Sequence[Measurement]]  # model → one per seed
    machine: Mapping[str, Any]
    minutes: float

    @property
    def verdict(self) -> str:
        """Verdict on the claim: all of its rules must hold."""
        return combine_verdicts([rule.verdict for rule in self.rules])

    def curves(self) -> dict[str, Points]:
        """Mean curve of each model that has one."""
        return {
            model: average_curves([run.curve for run in runs])
            for model, runs in self.measurements.items()
            if runs[0].curve
        }

    def table(self) -> list[list[str]]:
        """Tabulate the numbers: a header, then one row per model and number."""
        header = ["number", *(f"seed {seed}" for seed in self.seeds), "mean"]
        rows = []
        for model, runs in self.measurements.items():
            for name in runs[0].numbers:
                values = [run.numbers[name] for run in runs]
                rows.append([f"{model}.{name}", *(f"{value:.4g}" for value in values), f"{fmean(values):.4g}"])
        return [header, *rows]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        values: dict[str, Any] = finite_values(
            {
                "name": self.name,
                "claim": self.config.claim,
                "source": self.config.source,
                "recipe": self.config.digest(),
                "verdict": self.verdict,
                "rules": [rule.to_dict() for rule in self.rules],
                "measure": self.config.measure,
                "unit": self.config.unit,
                "seeds": list(self.seeds),
                "measured": {
                    model: {name: [run.numbers[name] for run in runs] for name in runs[0].numbers}
                    for model, runs in self.measurements.items()
                },
                "curves": {model: [list(point) for point in points] for model, points in self.curves().items()},
                "machine": dict(self.machine),
                "minutes": round(self.minutes, 2),
            }
        )
        return values

    def write(self, folder: Path) -> list[Path]:
        """Write the result as JSON, and its figure as SVG; return both paths."""
        from recipes.claims.figure import draw_result

        values = self.to_dict()
        contents = {f"{self.name}.json": json_bytes(values), f"{self.name}.svg": draw_result(values).encode()}
        for name, content in contents.items():
            write_file(folder / name, content)
        return [folder / name for name in contents]


def average_curves(curves: Sequence[Points]) -> Points:
    """Mean of the curves of several seeds, point by point; interpolated where they have different numbers of points.

    >>> average_curves([((1.0, 2.0), (2.0, 4.0)), ((1.0, 4.0), (2.0, 8.0))])
    ((1.0, 3.0), (2.0, 6.0))
    >>> average_curves([((0.0, 1.0), (4.0, 9.0)), ((0.0, 1.0), (2.0, 3.0), (4.0, 5.0))])
    ((0.0, 1.0), (4.0, 7.0))
    """
    if len({len(curve) for curve in curves}) == 1:
        return tuple((fmean(x for x, _ in points), fmean(y for _, y in points)) for points in zip(*curves, strict=True))
    first = max(curve[0][0] for curve in curves)
    last = min(curve[-1][0] for curve in curves)
    xs = [x for x, _ in min(curves, key=len) if first <= x <= last]
    interpolated = [np.interp(xs, [x for x, _ in curve], [y for _, y in curve]) for curve in curves]
    return tuple(zip(xs, np.mean(interpolated, axis=0).tolist(), strict=True))


def read_result(folder: Path, name: str) -> dict[str, Any] | None:
    """Written result of a claim; None where there is none."""
    path = folder / f"{name}.json"
    return read_json(path) if path.is_file() else None


def is_current(result: Mapping[str, Any] | None, config: ClaimConfig) -> bool:
    """Whether a written result is one of this recipe as it stands."""
    return result is not None and result.get("recipe") == config.digest()
