from __future__ import annotations

import pytest

from regard.bench.measure import Measured, Row, Spread, Task, against, rows
from regard.bench.report import Report

RATE = Task("go", "speed", "tokens/s", tokens=1.0, work=7.0)
DELAY = Task("go", "delay", "ms/sentence", less=True, tokens=11.0)


def measured(**values: tuple[float, ...]) -> list[Measured]:
    return [Measured(f"{name} bf16", name, given, format="bf16") for name, given in values.items()]


def test_a_ratio_is_taken_within_the_round_and_then_over_rounds() -> None:
    # the machine slows down to a half and to a third: values drift, ratios do not
    found = rows(RATE, measured(slow=(6.0, 3.0, 2.0), fast=(12.0, 6.0, 4.0), regard=(30.0, 15.0, 10.0)))
    assert [row.peer for row in found] == ["regard bf16", "fast bf16", "slow bf16"]
    assert [(row.ratio, row.low, row.high) for row in found] == [(2.5, 2.5, 2.5), (1.0, 1.0, 1.0), (0.5, 0.5, 0.5)]
    assert [row.value for row in found] == [15.0, 6.0, 3.0]
    assert {row.against for row in found} == {"fast bf16"}


def test_the_median_of_ratios_is_not_the_ratio_of_medians() -> None:
    ours, peer = measured(regard=(10.0, 20.0, 90.0), peer=(10.0, 5.0, 30.0))
    assert against(RATE, ours, peer) == Spread(3.0, 1.0, 4.0)
    assert rows(RATE, [ours, peer])[0].ratio == 3.0


def test_a_shorter_delay_has_the_larger_ratio() -> None:
    found = rows(DELAY, measured(slow=(50.0, 60.0), fast=(20.0, 30.0), regard=(10.0, 10.0)))
    assert [row.peer for row in found] == ["regard bf16", "fast bf16", "slow bf16"]
    assert (found[0].ratio, found[0].low, found[0].high) == (2.5, 2.0, 3.0)
    assert found[2].ratio == pytest.approx((20 / 50 + 30 / 60) / 2)
    assert found[0].tokens_per_second == 1100.0


def test_ours_is_held_against_the_best_of_each_library() -> None:
    many = [
        Measured("regard float32", "regard", (12.0, 12.0)),
        Measured("a float32", "a", (3.0, 3.0)),
        Measured("a int8", "a", (24.0, 24.0)),
        Measured("b float32", "b", (4.0, 6.0)),
    ]
    ours, *others = rows(RATE, many)
    assert ours.beside == {"a int8": Spread(0.5, 0.5, 0.5), "b float32": Spread(2.5, 2.0, 3.0)}
    assert ours.ratio == 0.5
    assert not any(row.beside for row in others)


def test_without_a_peer_there_is_no_ratio() -> None:
    (alone,) = rows(RATE, measured(regard=(5.0, 7.0)))
    assert (alone.value, alone.ratio, alone.low, alone.high, alone.against) == (6.0, None, None, None, "")
    assert rows(RATE, []) == []


def test_the_share_of_the_peak_is_of_the_same_round_and_format() -> None:
    peaks = {"float32": [70.0, 140.0, 70.0], "bf16": [700.0, 700.0, 700.0]}
    many = [
        Measured("regard float32", "regard", (5.0, 5.0, 5.0), format="float32"),
        Measured("regard bf16", "regard", (20.0, 20.0, 20.0), format="bf16"),
        Measured("a int8", "a", (30.0, 30.0, 30.0), format="int8"),
    ]
    assert {row.peer: row.peak for row in rows(RATE, many, peaks)} == pytest.approx(
        {"regard float32": 0.5, "regard bf16": 0.2, "a int8": 0.3}
    )
    assert rows(DELAY, many, peaks)[0].peak is None  # nobody counted its work


def test_rows_have_the_form_that_programs_read() -> None:
    found = [row.to_dict() for row in rows(RATE, measured(peer=(3.0, 3.0), regard=(7.0, 8.0)))]
    for row in found:
        assert list(row)[:7] == ["bench", "peer", "value", "unit", "ratio", "low", "high"]
    assert found[0]["ratio"] == 2.5
    assert found[0]["beside"] == {"peer bf16": [2.5, 2.3333, 2.6667]}
    assert found[0]["rounds"] == [7.0, 8.0]


def test_the_report_names_the_convention_ours_and_the_missing() -> None:
    made = rows(RATE, measured(peer=(3.0, 3.0), regard=(7.0, 8.0)))
    curve = [
        Row("growth", "regard bf16", value, "s", library="regard", memory=10**8, axis="length", at=at)
        for at, value in ((8.0, 1.0), (16.0, 4.0))
    ]
    text = "\n".join(Report([*made, *curve], ["skipped: x is not installed (pip install x)"], {}, {}).lines())
    assert "times as fast as the best peer" in text
    assert "regard bf16 is 2.50× (2.33–2.67) peer bf16" in text
    assert "value grows as length^2.00, memory as length^0.00" in text
    assert text.endswith("skipped: x is not installed (pip install x)")
