"""From values by round to rows: medians, ratios within the round and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OURS = "regard"
CAPTION = (
    "ratio: how many times as fast as the best peer of the bench (bigger is better, for latencies too); "
    "the median over rounds of value against value in the same round, and its lowest and highest"
)


@dataclass(frozen=True)
class Task:
    """One thing that contestants are asked for, and what its values mean."""

    name: str
    bench: str  # as rows name it
    unit: str
    less: bool = False  # smaller values are better: milliseconds of a sentence
    tokens: float = 0.0  # of one unit: a rate's token is 1, a sentence's its length
    work: float = 0.0  # operations in matrix products of one unit

    def rate(self, value: float) -> float:
        """Return a value as units a second."""
        return 1000 / value if self.less else value


@dataclass(frozen=True)
class Measured:
    """What a contestant gave in each round."""

    peer: str
    library: str
    values: tuple[float, ...]
    format: str = "float32"  # of its matrix products
    setting: str = ""
    memory: int = 0


@dataclass(frozen=True)
class Spread:
    """A ratio over rounds: its median, its lowest and its highest."""

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Spread:
        """Return the spread of ratios.

        >>> Spread.of([2.0, 3.0, 2.5])
        Spread(ratio=2.5, low=2.0, high=3.0)
        """
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.ratio:.2f}× ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True)
class Row:
    """One contestant's line in the report."""

    bench: str
    peer: str
    value: float
    unit: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    library: str = ""
    setting: str = ""
    against: str = ""  # the peer that the ratio is taken to
    beside: dict[str, Spread] = field(default_factory=dict)  # ratios to the best of each library and number format
    tokens_per_second: float | None = None
    peak: float | None = None  # share of the measured peak of matrix products in the same number format
    memory: int | None = None  # bytes
    rounds: tuple[float, ...] = ()
    axis: str = ""  # what grows, in a curve
    at: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values, rounded to what was measured; what is not known is left out.

        >>> Row("b", "regard", 1234.5678, "tokens/s").to_dict()
        {'bench': 'b', 'peer': 'regard', 'value': 1234.6, 'unit': 'tokens/s', 'ratio': None, 'low': None, 'high': None}
        """
        always = {name: _rounded(getattr(self, name)) for name in ("value", "ratio", "low", "high")}
        facts: dict[str, Any] = {
            "bench": self.bench,
            "peer": self.peer,
            "value": always.pop("value"),
            "unit": self.unit,
            **always,
        }
        more = {name: getattr(self, name) for name in ("library", "setting", "against", "memory", "axis", "at")}
        more |= {name: _rounded(getattr(self, name)) for name in ("tokens_per_second", "peak")}
        more["beside"] = {
            name: [_rounded(number) for number in (one.ratio, one.low, one.high)] for name, one in self.beside.items()
        }
        more["rounds"] = [_rounded(value) for value in self.rounds]
        return facts | {name: value for name, value in more.items() if value not in (None, "", {}, [])}


def rows(task: Task, measured: Sequence[Measured], peaks: Mapping[str, Sequence[float]] | None = None) -> list[Row]:
    """Return the lines of one bench, ours first, then peers from the fastest on.

    The reference of all ratios is the peer with the best median. `peaks` has the operations a second of a large
    matrix product by number format and round; eight-bit numbers are held against bf16,
    where that was measured.

    >>> task = Task("go", "speed", "tokens/s")
    >>> given = {"a": (4.0, 5.0), "b": (10.0, 10.0), "regard": (20.0, 30.0)}
    >>> found = [Measured(name, name, values) for name, values in given.items()]
    >>> [(row.peer, row.value, row.ratio, row.low, row.high, row.against) for row in rows(task, found)][:2]
    [('regard', 25.0, 2.5, 2.0, 3.0, 'b'), ('b', 10.0, 1.0, 1.0, 1.0, 'b')]
    """
    medians = {one.peer: task.rate(statistics.median(one.values)) for one in measured}
    ranked = sorted(measured, key=lambda one: (one.library != OURS, -medians[one.peer]))
    rivals = [one for one in ranked if one.library != OURS]
    reference = rivals[0] if rivals else None
    leaders: dict[str, Measured] = {}  # the best of each library and of each number format
    for one in rivals:
        for kind in (one.library, one.format):
            leaders.setdefault(kind, one)
    made = []
    for one in ranked:
        middle = statistics.median(one.values)
        ratio = None if reference is None else against(task, one, reference)
        others = leaders.values() if one.library == OURS else []
        made.append(
            Row(
                task.bench,
                one.peer,
                middle,
                task.unit,
                ratio.ratio if ratio else None,
                ratio.low if ratio else None,
                ratio.high if ratio else None,
                library=one.library,
                setting=one.setting,
                against=reference.peer if reference else "",
                beside={other.peer: against(task, one, other) for other in others},
                tokens_per_second=task.rate(middle) * task.tokens if task.tokens else None,
                peak=_share(task, one, peaks or {}),
                memory=one.memory or None,
                rounds=one.values,
            )
        )
    return made


def against(task: Task, one: Measured, other: Measured) -> Spread:
    """Return how many times as fast one contestant was as another, round by round."""
    pairs = zip(one.values, other.values, strict=True)
    return Spread.of([task.rate(value) / task.rate(reference) for value, reference in pairs])


def _share(task: Task, one: Measured, peaks: Mapping[str, Sequence[float]]) -> float | None:
    peak = peaks.get("float32" if one.format == "float32" else "bf16") or peaks.get("float32")
    if not task.work or not peak:
        return None
    pairs = zip(one.values, peak, strict=True)
    return statistics.median(task.rate(value) * task.work / most for value, most in pairs)


def _rounded(value: float | None) -> float | None:
    """Return a number with five digits that count."""
    if value is None or value == 0 or isinstance(value, int):
        return value
    return float(f"{value:.5g}")
