"""Decision rules: bounds on quantities that are computed from what was measured, decided by 95 % intervals."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import add, mul, sub
from statistics import fmean, stdev

from regard.errors import ConfigError, nearest

HOLDS = "holds"
FAILS = "does not hold"
UNDECIDED = "undecided"
VALUE = "value"  # the number that a model's bare name stands for
HAS_REACHED = "has_reached"  # the number that is 0 where a run ended below its target: its minutes are a lower bound
_RULE = re.compile(r"(?P<quantity>.+?)\s*(?P<relation>[<>])\s*(?P<bound>-?\d+(?:\.\d+)?)")
_NORMAL_QUANTILE = 1.96  # 97.5 % of the normal distribution, for more than 30 degrees of freedom
_T_QUANTILES = (  # 97.5 % of Student's t with 1, 2, … degrees of freedom
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)

Numbers = Mapping[str, Mapping[str, float]]  # model → number's name → value


@dataclass(frozen=True)
class Interval:
    """The mean of independent values with its 95 % interval by Student's t."""

    estimate: float
    low: float
    high: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Interval:
        """Student's t-interval of the mean of independent values; of a single one, the value itself.

        >>> interval = Interval.from_values([1.0, 2.0, 3.0])
        >>> round(interval.low, 2), interval.estimate, round(interval.high, 2)
        (-0.48, 2.0, 4.48)
        """
        mean = fmean(values)
        if len(values) == 1 or not math.isfinite(mean):
            return cls(mean, mean, mean)
        freedom = len(values) - 1
        quantile = _T_QUANTILES[freedom - 1] if freedom <= len(_T_QUANTILES) else _NORMAL_QUANTILE
        margin = quantile * stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - margin, mean + margin)


@dataclass(frozen=True)
class Rule:
    """A quantity, a relation and a bound: `attending - plain > 30`."""

    text: str
    quantity: str
    relation: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Parse a rule such as `attending - plain > 30` or `rnn.long / rnn.short < 0.5`.

        >>> rule = Rule.parse("rnn.long / rnn.short < 0.5")
        >>> rule.compute({"rnn": {"long": 10.0, "short": 40.0}})
        0.25
        """
        match = _RULE.fullmatch(text.strip())
        try:
            expression = ast.parse(match["quantity"], mode="eval").body if match else None
        except SyntaxError:
            expression = None
        if match is None or expression is None:
            raise ConfigError(f"rule: {text!r} must be like 'plain < 20' or 'attending.long - plain.long > 30'")
        rule = cls(text.strip(), match["quantity"], relation=match["relation"], bound=float(match["bound"]))
        list(_walk(expression, rule.text))
        return rule

    def references(self) -> list[tuple[str, str]]:
        """Models and their numbers that the quantity refers to."""
        return list(dict.fromkeys(_walk(self._expression(), self.text)))

    @property
    def is_difference(self) -> bool:
        """Whether the bound is a margin: the quantity subtracts one side from another.

        >>> Rule.parse("attending - plain > 30").is_difference, Rule.parse("plain.far / plain.near < 1").is_difference
        (True, False)
        """
        expression = self._expression()
        return isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Sub)

    def check_numbers(self, names: Sequence[str]) -> None:
        """Raise `ConfigError` for a reference to a number that is none of the names; `*` in a name matches anything."""
        for model, number in self.references():
            if not any(fnmatchcase(number, name) for name in names):
                raise _unknown_number(model, number, names)

    def compute(self, numbers: Numbers) -> float:
        """Compute the quantity; nan where it divides by zero, or where none of its runs reached the target.

        >>> Rule.parse("slow / fast > 1").compute({"slow": {"value": 60, "has_reached": 0}, "fast": {"value": 20}})
        3.0
        """
        models = {model for model, _ in self.references()}
        if not any(numbers[model].get(HAS_REACHED, 1) for model in models):
            return math.nan
        return _compute(self._expression(), numbers)

    def _expression(self) -> ast.expr:
        return ast.parse(self.quantity, mode="eval").body

    def decide(self, interval: Interval) -> str:
        """Whether the whole interval is on the side of the bound that the rule names, on the other, or on both.

        >>> Rule.parse("a > 2").decide(Interval(3, 2.5, 3.5)), Rule.parse("a > 2").decide(Interval(3, 1.5, 4.5))
        ('holds', 'undecided')
        """
        if math.isnan(interval.estimate):
            return UNDECIDED
        is_above = interval.low > self.bound
        is_below = interval.high < self.bound
        if interval.low == interval.high == self.bound:
            return FAILS
        if not (is_above or is_below):
            return UNDECIDED
        return HOLDS if is_above == (self.relation == ">") else FAILS


def combine_verdicts(verdicts: Sequence[str]) -> str:
    """Verdict of a claim from those of its rules: all must hold, and one that does not is enough against it.

    >>> combine_verdicts(["holds", "undecided"]), combine_verdicts(["undecided", "does not hold"])
    ('undecided', 'does not hold')
    """
    for verdict in (FAILS, UNDECIDED):
        if verdict in verdicts:
            return verdict
    return HOLDS


def _divide(dividend: float, divisor: float) -> float:
    return dividend / divisor if divisor else math.nan


_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.Div: _divide,
}


def _walk(expression: ast.expr, text: str) -> Iterator[tuple[str, str]]:
    """Yield the references of an expression; raise `ConfigError` where it is more than arithmetic."""
    match expression:
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
            yield from _walk(left, text)
            yield from _walk(right, text)
        case ast.Name(name):
            yield name, VALUE
        case ast.Attribute(ast.Name(name), number):
            yield name, number
        case ast.Constant(int() | float()):
            return
        case _:
            raise ConfigError(f"rule: {text!r} may only add, subtract, multiply and divide MODEL or MODEL.NUMBER")


def _compute(expression: ast.expr, numbers: Numbers) -> float:
    match expression:
        case ast.BinOp(left, operator, right):
            return _OPERATORS[type(operator)](_compute(left, numbers), _compute(right, numbers))
        case ast.Name(name):
            return _look_up(numbers, name, VALUE)
        case ast.Attribute(ast.Name(name), number):
            return _look_up(numbers, name, number)
        case ast.Constant(int(value) | float(value)):
            return float(value)
    raise AssertionError("`Rule.parse` accepts nothing else")


def _look_up(numbers: Numbers, model: str, number: str) -> float:
    measured = numbers[model]
    if number not in measured:
        raise _unknown_number(model, number, [*measured])
    return measured[number]


def _unknown_number(model: str, number: str, names: Sequence[str]) -> ConfigError:
    references = ", ".join(f"{model}.{name}" for name in names)
    return ConfigError(f"rule: {model} has no number {number!r}{nearest(number, names)}: it has {references}")
