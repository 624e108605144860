"""Decision rules of claims: parsing, arithmetic, intervals and verdicts."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import numpy as np
import pytest

from recipes.claims.check import judge_rule
from recipes.claims.measure import Measurement
from recipes.claims.rules import FAILS, HOLDS, UNDECIDED, Interval, Rule, combine_verdicts
from regard.errors import ConfigError

NUMBERS = {"plain": {"value": 20.0, "long": 5.0}, "attending": {"value": 90.0, "long": 80.0}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain < 20", 20.0),
        ("attending - plain > 30", 70.0),
        ("attending.long / plain.long > 2.5", 16.0),
        ("(attending - attending.long) - (plain - plain.long) < -1", -5.0),
        ("2 * plain > 3", 40.0),
    ],
)
def test_a_quantity_is_arithmetic_over_models_and_their_numbers(text: str, value: float) -> None:
    assert Rule.parse(text).compute(NUMBERS) == value


@pytest.mark.parametrize("text", ["plain", "plain >= 3", "plain is > 3", "f(plain) > 3", "plain ** 2 > 3", "'a' > 3"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="rule: "):
        Rule.parse(text)


def test_an_unknown_number_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no number 'lng' \(did you mean long\?\).*attending.long"):
        Rule.parse("attending.lng > 3").compute(NUMBERS)


def test_numbers_are_checked_by_the_names_that_a_measure_has() -> None:
    rule = Rule.parse("rnn.layer_12 - rnn.last > 3")
    rule.check_numbers(["layer_*", "last"])
    with pytest.raises(ConfigError, match=r"no number 'last' \(did you mean lost\?\): it has rnn.layer_\*, rnn.lost"):
        rule.check_numbers(["layer_*", "lost"])


def test_a_rule_lists_what_it_refers_to() -> None:
    assert Rule.parse("(a.x - b) / b + a.x > 3").references() == [("a", "x"), ("b", "value")]


def probability_within(quantile: float, freedom: int) -> float:
    """Probability that Student's t is between -quantile and quantile, by summing its density."""
    t = np.linspace(-quantile, quantile, 400_001)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    density = np.exp(log_scale - (freedom + 1) / 2 * np.log1p(t**2 / freedom))
    return float(np.trapezoid(density, t))


@pytest.mark.parametrize("count", [2, 3, 5, 17, 31, 401])
def test_the_interval_is_students(count: int) -> None:
    values = [math.sin(index) for index in range(count)]
    interval = Interval.from_values(values)
    assert interval.estimate == pytest.approx(fmean(values))
    assert interval.high - interval.estimate == pytest.approx(interval.estimate - interval.low)
    quantile = (interval.high - interval.estimate) / (stdev(values) / math.sqrt(count))
    assert probability_within(quantile, count - 1) == pytest.approx(0.95, abs=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [
        (2.5, 3.5, HOLDS, FAILS),
        (1.0, 1.9, FAILS, HOLDS),
        (1.5, 3.5, UNDECIDED, UNDECIDED),
        (2.0, 2.0, FAILS, FAILS),
    ],
)
def test_the_whole_interval_decides(low: float, high: float, above: str, below: str) -> None:
    interval = Interval((low + high) / 2, low, high)
    assert Rule.parse("a > 2").decide(interval) == above
    assert Rule.parse("a < 2").decide(interval) == below


def test_a_division_by_zero_decides_nothing() -> None:
    runs = {"a": [Measurement({"value": value}) for value in (1.0, 2.0, 3.0)], "b": [Measurement({"value": 0.0})] * 3}
    assert judge_rule(Rule.parse("a / b > 2"), runs).verdict == UNDECIDED


@pytest.mark.parametrize(
    ("slow_reached", "fast_reached", "verdict"),
    [
        ((1, 1, 1), (1, 1, 1), HOLDS),
        ((0, 0, 0), (1, 1, 1), HOLDS),  # the slow runs took 60 minutes at least
        ((1, 1, 0), (1, 1, 0), UNDECIDED),  # with one seed, neither is known
        ((0, 0, 0), (0, 0, 0), UNDECIDED),
    ],
)
def test_runs_that_all_end_below_their_target_decide_nothing(
    slow_reached: tuple[int, ...], fast_reached: tuple[int, ...], verdict: str
) -> None:
    runs = {
        model: [Measurement.from_value(minutes, has_reached=is_reached) for is_reached in reached]
        for model, minutes, reached in (("slow", 60, slow_reached), ("fast", 20, fast_reached))
    }
    assert judge_rule(Rule.parse("slow / fast > 1"), runs).verdict == verdict


def test_quantities_are_computed_seed_by_seed() -> None:
    """Models that vary together differ by the same number for every seed."""
    runs = {
        "plain": [Measurement({"value": value}) for value in (10.0, 30.0, 50.0)],
        "attending": [Measurement({"value": value}) for value in (15.0, 36.0, 54.0)],
    }
    outcome = judge_rule(Rule.parse("attending - plain > 2"), runs)
    assert (outcome.interval.estimate, outcome.verdict, outcome.count, outcome.unit) == (5.0, HOLDS, 3, "seeds")
    assert judge_rule(Rule.parse("attending > 20"), runs).verdict == UNDECIDED


def test_with_one_seed_the_interval_is_over_examples_where_they_are_measured() -> None:
    samples = {"share": [1.0, 2.0, 3.0, 6.0]}
    runs = {"encoder": [Measurement({"share": 3.0, "size": 7.0}, samples=samples)]}
    outcome = judge_rule(Rule.parse("encoder.share > 50"), runs)
    assert (outcome.count, outcome.unit, outcome.verdict) == (4, "examples", FAILS)
    assert outcome.interval == Interval.from_values(samples["share"])
    exact = judge_rule(Rule.parse("encoder.size > 5"), runs)
    assert (exact.count, exact.interval.low, exact.verdict) == (1, 7.0, HOLDS)


def test_one_rule_against_a_claim_is_enough() -> None:
    assert combine_verdicts([HOLDS, HOLDS]) == HOLDS
    assert combine_verdicts([HOLDS, UNDECIDED]) == UNDECIDED
    assert combine_verdicts([UNDECIDED, FAILS]) == FAILS
