"""The conclusion of a comparison in words: what is best, what is significant, and whether attention wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.metric_table import Metric
from regard.tasks.metrics import LONG_SOURCE_WORDS, SHORT_SOURCE_WORDS
from regard.tasks.significance import PairedTest

if TYPE_CHECKING:
    from regard.report.comparison.report import AttentionVerdict, ComparisonReport


def conclude(report: ComparisonReport) -> str:
    """State which model is best, which differences are significant, what attention gives, and what length costs."""
    sentences = [_conclude_on_ranking(report), _conclude_on_significance(report)]
    if report.attention is not None:
        sentences.append(describe_verdict(report.attention, report.metric_row))
    return " ".join([*sentences, *_conclude_on_length(report)])


def _conclude_on_ranking(report: ComparisonReport) -> str:
    best = report.best
    score = report.metric_row.format_value(best.mean)
    num_seeds = best.statistics.num_seeds
    seeds = f", mean of {num_seeds} seeds" if num_seeds > 1 else ""
    low, high = map(report.metric_row.format_difference, (best.interval.low, best.interval.high))
    return f"{best.name} is best: {score} (95 % interval {low} to {high}{seeds})."


def _conclude_on_significance(report: ComparisonReport) -> str:
    tests = {model.name: model.test for model in report.models if model.test is not None}
    worse = [name for name, test in tests.items() if test.is_significant]
    level = [name for name, test in tests.items() if not test.is_significant]
    if not worse:
        return f"The difference to {join_names(level)} is not significant."
    sentence = f"It is significantly better than {join_names(worse)}"
    return f"{sentence}; the difference to {join_names(level)} is not significant." if level else f"{sentence}."


def describe_verdict(verdict: AttentionVerdict, metric: Metric) -> str:
    """State whether attention wins, does not, or makes no significant difference."""
    difference = _format_difference(verdict.test, metric)
    attending_wins = (verdict.test.difference > 0) == metric.larger_is_better
    scope = "Of the models trained from scratch,"
    if not verdict.test.is_significant:
        return (
            f"{scope} {verdict.attending}, the best with attention, and {verdict.plain}, the best without, do not "
            f"differ significantly: {difference}."
        )
    if attending_wins:
        return f"{scope} {verdict.attending}, with attention, beats {verdict.plain}, the best without, by {difference}."
    return (
        f"{scope} {verdict.plain}, the best without attention, beats {verdict.attending}, the best with it, by "
        f"{difference}: attention does not win here."
    )


def _format_difference(test: PairedTest, metric: Metric) -> str:
    """Size of a difference, with its interval."""
    bounds = (test.low, test.high) if test.difference >= 0 else (-test.high, -test.low)
    size, low, high = map(metric.format_difference, (abs(test.difference), *bounds))
    return f"{size} {metric.unit} ({low} to {high})"


def _conclude_on_length(report: ComparisonReport) -> list[str]:
    """Which model keeps most and which least of its score on long texts, where there are enough of them."""
    retained = {model.name: model.retained_on_long for model in report.models}
    fractions = {name: fraction for name, fraction in retained.items() if fraction is not None}
    if len(fractions) < 2 or not report.metric_row.larger_is_better:
        return []
    highest = max(fractions, key=lambda name: fractions[name])
    lowest = min(fractions, key=lambda name: fractions[name])
    return [
        f"On texts of over {LONG_SOURCE_WORDS} words {highest} keeps {100 * fractions[highest]:.0f} % of its "
        f"{report.metric_row.field_name} on those of up to {SHORT_SOURCE_WORDS}, {lowest} "
        f"{100 * fractions[lowest]:.0f} %."
    ]


def join_names(names: Sequence[str]) -> str:
    """Join names.

    >>> join_names(["a", "b", "c"]), join_names(["a"])
    ('a, b and c', 'a')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
