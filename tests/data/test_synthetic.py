"""Made data: right answers, no ambiguity, the same every time, splits that never meet."""

import sys
from collections import defaultdict
from datetime import date, timedelta

import pytest

from regard.data import synthetic
from regard.data.synthetic import (
    DATE_LANGUAGES,
    KINDS,
    NUMBER_LANGUAGES,
    generate_pairs,
    generate_rows,
    split_of_target,
)
from regard.errors import ConfigError, UsageError


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_arguments_give_the_same_rows(kind: str) -> None:
    rows = list(generate_rows(kind, 200, seed=3))
    assert rows == list(generate_rows(kind, 200, seed=3))
    assert rows[:50] == list(generate_rows(kind, 50, seed=3))
    assert rows != list(generate_rows(kind, 200, seed=4))
    assert [(row.source, row.target) for row in rows] == list(generate_pairs(kind, 200, seed=3))


@pytest.mark.parametrize("kind", KINDS)
def test_splits_share_no_target(kind: str) -> None:
    targets = {
        split: {row.target for seed in (1, 2) for row in generate_rows(kind, 300, seed, split=split)}
        for split in ("train", "valid", "test")
    }
    assert not targets["train"] & targets["test"]
    assert not targets["train"] & targets["valid"]
    assert not targets["valid"] & targets["test"]
    everything = [row.target for row in generate_rows(kind, 2000, split="all")]
    shares = [sum(split_of_target(target) == split for target in everything) / 2000 for split in ("valid", "test")]
    assert all(0.01 < share < 0.12 for share in shares)


def test_letters() -> None:
    want = {"copy": list, "reverse": lambda letters: letters[::-1], "sort": sorted}
    for kind, change in want.items():
        rows = list(generate_rows(kind, 500))
        for row in rows:
            assert row.target.split(" ") == change(row.source.split(" "))
            assert row.group == str(len(row.source.split()))
        assert {len(row.source.split()) for row in rows} == set(range(3, 13))
        assert {letter for row in rows for letter in row.source.split()} == set("abcdefghijklmnop")


def test_lengths_can_be_asked_for() -> None:
    rows = list(generate_pairs("reverse", 400, lengths=(24, 30)))
    assert {len(source.split()) for source, _ in rows} == set(range(24, 31))
    assert all(source.split()[::-1] == target.split() for source, target in rows)


def test_dates_are_right_and_named_in_every_language() -> None:
    pytest.importorskip("babel")
    rows = list(generate_rows("dates", 3000))
    assert {row.group for row in rows} == set(DATE_LANGUAGES)
    for row in rows:
        day = date.fromisoformat(row.target)
        assert 1900 <= day.year <= 2099
        assert str(day.year) in row.source
        assert str(day.day) in row.source.replace(str(day.year), "")
        assert row.source == row.source.strip()
        assert "\u202f" not in row.source
    spanish = {row.source: row.target for row in generate_rows("dates", 4000, split="all", languages=["es"])}
    assert next(iso for text, iso in spanish.items() if "3 de marzo de " in text and " 3 de" in text)[5:] == "03-03"


def test_no_date_can_be_read_in_two_ways() -> None:
    babel = pytest.importorskip("babel.dates")
    meanings: dict[str, set[date]] = defaultdict(set)
    days = [date(year, 1, 1) + timedelta(days=offset) for year in (1912, 2012) for offset in range(0, 366, 2)]
    for day in [*days, *(date(2010 + n, n, m) for n in range(1, 13) for m in range(1, 13))]:
        for language in DATE_LANGUAGES:
            for style in synthetic.DATE_STYLES:
                meanings[" ".join(babel.format_date(day, style, locale=language).split())].add(day)
    assert not {text: found for text, found in meanings.items() if len(found) > 1}


def test_numbers_are_spelled_and_mean_one_thing() -> None:
    pytest.importorskip("num2words")
    meanings: dict[str, set[str]] = defaultdict(set)
    for row in generate_rows("numbers", 4000, split="all"):
        meanings[row.source].add(row.target)
        assert not any(letter.isdigit() for letter in row.source)
        assert row.target == str(int(row.target))
    assert not {text: found for text, found in meanings.items() if len(found) > 1}
    german = dict(generate_pairs("numbers", 3000, split="all", languages=["de"]))
    assert german["zwölf"] == "12"
    assert {row.group for row in generate_rows("numbers", 500)} == set(NUMBER_LANGUAGES)


def test_what_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="did you mean dates"):
        generate_pairs("date", 1)
    with pytest.raises(UsageError, match="unknown split"):
        generate_pairs("copy", 1, split="dev")
    with pytest.raises(UsageError, match="negative"):
        generate_pairs("copy", -1)
    with pytest.raises(ConfigError, match="unknown language 'xx'"):
        generate_pairs("dates", 1, languages=["de", "xx"])
    with pytest.raises(ConfigError, match="dates and numbers only"):
        generate_pairs("copy", 1, languages=["de"])
    with pytest.raises(ConfigError, match="copy, reverse and sort only"):
        generate_pairs("dates", 1, lengths=(3, 4))
    with pytest.raises(UsageError, match="lengths 5-4"):
        generate_pairs("copy", 1, lengths=(5, 4))
    monkeypatch.setitem(sys.modules, "num2words", None)
    with pytest.raises(UsageError, match="pip install num2words"):
        generate_pairs("numbers", 1)
