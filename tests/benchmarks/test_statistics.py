"""Statistics of benchmarks: ratios within rounds, spreads, fractions of the peak, rows and the report."""

from __future__ import annotations

import pytest

from benchmarks.peers.report import PeerReport
from benchmarks.peers.statistics import Measurement, Metric, Row, Spread, build_rows, ratio_spread

RATE = Metric("go", "speed", "tokens/s", tokens_per_unit=1.0, flops_per_unit=7.0)
LATENCY = Metric("go", "latency", "ms/sentence", lower_is_better=True, tokens_per_unit=11.0)


def measurements(**rounds: tuple[float, ...]) -> list[Measurement]:
    """One bf16 runner per library, with its values in each round."""
    return [Measurement(f"{library} bf16", library, values, precision="bf16") for library, values in rounds.items()]


def test_ratios_are_computed_within_a_round_and_aggregated_over_rounds() -> None:
    # the machine slows down to one half and one third: values drift, ratios do not
    rows = build_rows(RATE, measurements(slow=(6.0, 3.0, 2.0), fast=(12.0, 6.0, 4.0), regard=(30.0, 15.0, 10.0)))
    assert [row.runner for row in rows] == ["regard bf16", "fast bf16", "slow bf16"]
    assert [(row.ratio, row.low, row.high) for row in rows] == [(2.5, 2.5, 2.5), (1.0, 1.0, 1.0), (0.5, 0.5, 0.5)]
    assert [row.value for row in rows] == [15.0, 6.0, 3.0]
    assert {row.reference for row in rows} == {"fast bf16"}


def test_the_median_of_ratios_is_not_the_ratio_of_medians() -> None:
    regard, peer = measurements(regard=(10.0, 20.0, 90.0), peer=(10.0, 5.0, 30.0))
    assert ratio_spread(RATE, regard, peer) == Spread(3.0, 1.0, 4.0)
    assert build_rows(RATE, [regard, peer])[0].ratio == 3.0


def test_a_shorter_latency_has_the_larger_ratio() -> None:
    rows = build_rows(LATENCY, measurements(slow=(50.0, 60.0), fast=(20.0, 30.0), regard=(10.0, 10.0)))
    assert [row.runner for row in rows] == ["regard bf16", "fast bf16", "slow bf16"]
    assert (rows[0].ratio, rows[0].low, rows[0].high) == (2.5, 2.0, 3.0)
    assert rows[2].ratio == pytest.approx((20 / 50 + 30 / 60) / 2)
    assert rows[0].tokens_per_second == 1100.0


def test_regard_is_compared_with_the_fastest_runner_of_each_library() -> None:
    regard, *peers = build_rows(
        RATE,
        [
            Measurement("regard float32", "regard", (12.0, 12.0)),
            Measurement("a float32", "a", (3.0, 3.0)),
            Measurement("a int8", "a", (24.0, 24.0)),
            Measurement("b float32", "b", (4.0, 6.0)),
        ],
    )
    assert regard.peer_ratios == {"a int8": Spread(0.5, 0.5, 0.5), "b float32": Spread(2.5, 2.0, 3.0)}
    assert regard.ratio == 0.5
    assert not any(row.peer_ratios for row in peers)


def test_without_a_peer_there_is_no_ratio() -> None:
    (row,) = build_rows(RATE, measurements(regard=(5.0, 7.0)))
    assert (row.value, row.ratio, row.low, row.high, row.reference) == (6.0, None, None, None, "")
    assert build_rows(RATE, []) == []


def test_the_peak_fraction_uses_the_peak_of_the_same_round_and_precision() -> None:
    peaks = {"float32": [70.0, 140.0, 70.0], "bf16": [700.0, 700.0, 700.0]}
    runners = [
        Measurement("regard float32", "regard", (5.0, 5.0, 5.0), precision="float32"),
        Measurement("regard bf16", "regard", (20.0, 20.0, 20.0), precision="bf16"),
        Measurement("a int8", "a", (30.0, 30.0, 30.0), precision="int8"),
    ]
    fractions = {row.runner: row.peak_fraction for row in build_rows(RATE, runners, peaks)}
    assert fractions == pytest.approx({"regard float32": 0.5, "regard bf16": 0.2, "a int8": 0.3})
    assert build_rows(LATENCY, runners, peaks)[0].peak_fraction is None  # the metric has no FLOPs


def test_rows_keep_their_json_keys() -> None:
    rows = [row.to_dict() for row in build_rows(RATE, measurements(peer=(3.0, 3.0), regard=(7.0, 8.0)))]
    for row in rows:
        assert list(row)[:7] == ["bench", "peer", "value", "unit", "ratio", "low", "high"]
    assert rows[0]["ratio"] == 2.5
    assert rows[0]["beside"] == {"peer bf16": [2.5, 2.3333, 2.6667]}
    assert rows[0]["rounds"] == [7.0, 8.0]


def test_the_report_explains_ratios_and_names_missing_libraries() -> None:
    rows = build_rows(RATE, measurements(peer=(3.0, 3.0), regard=(7.0, 8.0)))
    curve = [
        Row("growth", "regard bf16", seconds, "s", library="regard", peak_memory=10**8, axis="length", at=length)
        for length, seconds in ((8.0, 1.0), (16.0, 4.0))
    ]
    missing = ["skipped: x is not installed (pip install x)"]
    report = "\n".join(PeerReport([*rows, *curve], missing, machine={}, settings={}).lines())
    assert "times as fast as the best peer" in report
    assert "regard bf16 is 2.50× (2.33–2.67) peer bf16" in report
    assert "value grows as length^2.00, memory as length^0.00" in report
    assert report.endswith("skipped: x is not installed (pip install x)")
