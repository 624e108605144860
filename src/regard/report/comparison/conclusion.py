"""The conclusion of a comparison in words: what is best, what is significant, and whether attention wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.metric_table import Metric
from regard.tasks.metrics import LONG_SOURCE_WORDS, SHORT_SOURCE_WORDS
from regard.tasks.significance import PairedTest

if TYPE_CHECKING:
    from regard.report.comparison.report import AttentionVerdict, ComparisonReport

WITHOUT_PRETRAINING = "Of the models without pre-training"


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
    return f"Best: {quote_name(best.name)}, {score} (95 % interval {low} to {high}{seeds})."


def _conclude_on_significance(report: ComparisonReport) -> str:
    tests = {model.name: model.test for model in report.models if model.test is not None}
    worse = [name for name, test in tests.items() if test.is_significant]
    level = [name for name, test in tests.items() if not test.is_significant]
    subject = "the differences" if len(level) > 1 else "the difference"
    verb = "are" if len(level) > 1 else "is"
    insignificant = f"{subject} from {join_names(level)} {verb} not significant." if level else ""
    if not worse:
        return f"T{insignificant[1:]}"
    sentence = f"It is significantly better than {join_names(worse)}"
    return f"{sentence}; {insignificant}" if level else f"{sentence}."


def describe_verdict(verdict: AttentionVerdict, metric: Metric) -> str:
    """State whether attention wins, does not, or makes no significant difference."""
    difference = _format_difference(verdict.test, metric)
    attending_wins = (verdict.test.difference > 0) == metric.larger_is_better
    attending = f"{quote_name(verdict.attending)} (the best with attention)"
    baseline = "a baseline, " if verdict.is_plain_baseline else ""
    plain = f"{quote_name(verdict.plain)} ({baseline}the best without)"
    if not verdict.test.is_significant:
        return f"{WITHOUT_PRETRAINING}, {attending} and {plain} do not differ significantly: {difference}."
    if attending_wins:
        return f"{WITHOUT_PRETRAINING}, {attending} beats {plain} by {difference}."
    return f"{WITHOUT_PRETRAINING}, {plain} beats {attending} by {difference}: attention does not win here."


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
        f"On texts of over {LONG_SOURCE_WORDS} words {quote_name(highest)} keeps {100 * fractions[highest]:.0f} % of "
        f"its {report.metric_row.field_name} on those of up to {SHORT_SOURCE_WORDS}, {quote_name(lowest)} "
        f"{100 * fractions[lowest]:.0f} %."
    ]


def join_names(names: Sequence[str]) -> str:
    """Join names.

    >>> join_names(["LSTM", "RNN, mean", "counts"]), join_names(["a"])
    ('LSTM, “RNN, mean” and counts', 'a')
    """
    *first, last = map(quote_name, names)
    return f"{', '.join(first)} and {last}" if first else last


def quote_name(name: str) -> str:
    """Name of a model as a part of a sentence: in quotation marks if it has a comma or more than two words.

    >>> quote_name("memory network"), quote_name("BERT, frozen"), quote_name("most frequent answer")
    ('memory network', '“BERT, frozen”', '“most frequent answer”')
    """
    return f"“{name}”" if "," in name or len(name.split()) > 2 else name
