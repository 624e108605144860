"""From values by round to rows of the report: medians, ratios within a round and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

REGARD = "regard"
RATIO_CAPTION = (
    "ratio: how many times as fast as the best peer of the benchmark (bigger is better, for latencies too); "
    "the median over rounds of value against value in the same round, and its lowest and highest"
)


@dataclass(frozen=True)
class Metric:
    """What runners measure in a benchmark, and what its values mean."""

    name: str
    benchmark: str  # title of its rows
    unit: str
    lower_is_better: bool = False  # latencies
    tokens_per_unit: float = 0.0  # 1 of a rate of tokens, the length of a sentence of a rate of sentences
    flops_per_unit: float = 0.0  # in matrix products; 0: unknown

    def rate(self, value: float) -> float:
        """A value as units per second."""
        return 1000 / value if self.lower_is_better else value


@dataclass(frozen=True)
class Measurement:
    """Values that a runner measured, one for each round."""

    runner: str
    library: str
    values: tuple[float, ...]
    precision: str = "float32"  # of its matrix products
    setting: str = ""
    peak_memory: int = 0


@dataclass(frozen=True)
class Spread:
    """A ratio over rounds: its median, lowest and highest value."""

    ratio: float
    low: float
    high: float

    @classmethod
    def from_ratios(cls, ratios: Sequence[float]) -> Spread:
        """Summarize ratios, one for each round.

        >>> Spread.from_ratios([2.0, 3.0, 2.5])
        Spread(ratio=2.5, low=2.0, high=3.0)
        """
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.ratio:.2f}× ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True)
class Row:
    """One runner's row in the report."""

    benchmark: str
    runner: str
    value: float
    unit: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    library: str = ""
    setting: str = ""
    reference: str = ""  # runner that the ratio is taken to
    peer_ratios: dict[str, Spread] = field(default_factory=dict)  # to the best runner of each library and precision
    tokens_per_second: float | None = None
    peak_fraction: float | None = None  # of the matrix product's FLOP/s in the same precision
    peak_memory: int | None = None  # bytes
    rounds: tuple[float, ...] = ()
    axis: str = ""  # the quantity that grows along a curve
    at: float | None = None  # its value here

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, rounded to five digits; unknown ones are left out.

        >>> Row("b", "regard", 1234.5678, "tokens/s").to_dict()
        {'bench': 'b', 'peer': 'regard', 'value': 1234.6, 'unit': 'tokens/s', 'ratio': None, 'low': None, 'high': None}
        """
        required = {
            "bench": self.benchmark,
            "peer": self.runner,
            "value": _round_digits(self.value),
            "unit": self.unit,
            "ratio": _round_digits(self.ratio),
            "low": _round_digits(self.low),
            "high": _round_digits(self.high),
        }
        optional = {
            "library": self.library,
            "setting": self.setting,
            "against": self.reference,
            "memory": self.peak_memory,
            "axis": self.axis,
            "at": self.at,
            "tokens_per_second": _round_digits(self.tokens_per_second),
            "peak": _round_digits(self.peak_fraction),
            "beside": {
                runner: [_round_digits(number) for number in (spread.ratio, spread.low, spread.high)]
                for runner, spread in self.peer_ratios.items()
            },
            "rounds": [_round_digits(value) for value in self.rounds],
        }
        return required | {name: value for name, value in optional.items() if value not in (None, "", {}, [])}


def build_rows(
    metric: Metric, measurements: Sequence[Measurement], peaks: Mapping[str, Sequence[float]] | None = None
) -> list[Row]:
    """Rows of one benchmark: Regard's first, then those of peers from the fastest to the slowest.

    All ratios refer to the peer with the best median. `peaks` holds the FLOP/s of a large matrix product by precision
    and round; int8 is compared with bf16 where that was measured.

    >>> metric = Metric("go", "speed", "tokens/s")
    >>> values = {"a": (4.0, 5.0), "b": (10.0, 10.0), "regard": (20.0, 30.0)}
    >>> measurements = [Measurement(name, name, rounds) for name, rounds in values.items()]
    >>> rows = build_rows(metric, measurements)
    >>> [(row.runner, row.value, row.ratio, row.low, row.high, row.reference) for row in rows][:2]
    [('regard', 25.0, 2.5, 2.0, 3.0, 'b'), ('b', 10.0, 1.0, 1.0, 1.0, 'b')]
    """

    def rank(measurement: Measurement) -> tuple[bool, float]:
        return measurement.library != REGARD, -metric.rate(statistics.median(measurement.values))

    ranked = sorted(measurements, key=rank)
    peers = [measurement for measurement in ranked if measurement.library != REGARD]
    leaders: dict[str, Measurement] = {}  # library or precision → its best runner
    for peer in peers:
        for group in (peer.library, peer.precision):
            leaders.setdefault(group, peer)
    return [
        _build_row(metric, measurement, peers[0] if peers else None, leaders, peaks or {}) for measurement in ranked
    ]


def _build_row(
    metric: Metric,
    measurement: Measurement,
    reference: Measurement | None,
    leaders: Mapping[str, Measurement],
    peaks: Mapping[str, Sequence[float]],
) -> Row:
    median = statistics.median(measurement.values)
    spread = None if reference is None else ratio_spread(metric, measurement, reference)
    compared = leaders.values() if measurement.library == REGARD else []
    return Row(
        benchmark=metric.benchmark,
        runner=measurement.runner,
        value=median,
        unit=metric.unit,
        ratio=spread.ratio if spread else None,
        low=spread.low if spread else None,
        high=spread.high if spread else None,
        library=measurement.library,
        setting=measurement.setting,
        reference=reference.runner if reference else "",
        peer_ratios={leader.runner: ratio_spread(metric, measurement, leader) for leader in compared},
        tokens_per_second=metric.rate(median) * metric.tokens_per_unit if metric.tokens_per_unit else None,
        peak_fraction=_peak_fraction(metric, measurement, peaks),
        peak_memory=measurement.peak_memory or None,
        rounds=measurement.values,
    )


def ratio_spread(metric: Metric, measurement: Measurement, reference: Measurement) -> Spread:
    """How many times as fast one runner was as another, round by round."""
    pairs = zip(measurement.values, reference.values, strict=True)
    return Spread.from_ratios([metric.rate(value) / metric.rate(other) for value, other in pairs])


def _peak_fraction(metric: Metric, measurement: Measurement, peaks: Mapping[str, Sequence[float]]) -> float | None:
    """Median fraction of the matrix product's FLOP/s in the same round."""
    peak = peaks.get("float32" if measurement.precision == "float32" else "bf16") or peaks.get("float32")
    if not metric.flops_per_unit or not peak:
        return None
    pairs = zip(measurement.values, peak, strict=True)
    return statistics.median(metric.rate(value) * metric.flops_per_unit / flops for value, flops in pairs)


def _round_digits(value: float | None) -> float | None:
    """Round to five significant digits."""
    if value is None or value == 0 or isinstance(value, int):
        return value
    return float(f"{value:.5g}")
