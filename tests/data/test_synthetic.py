"""Synthetic data: correct targets, no ambiguity, reproducible, disjoint splits."""

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


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "recall"])
def test_splits_share_no_target(kind: str) -> None:
    targets = {
        split: {row.target for seed in (1, 2) for row in generate_rows(kind, 300, seed, split=split)}
        for split in ("train", "valid", "test")
    }
    assert not targets["train"] & targets["test"]
    assert not targets["train"] & targets["valid"]
    assert not targets["valid"] & targets["test"]
    all_targets = [row.target for row in generate_rows(kind, 2000, split="all")]
    for split in ("valid", "test"):
        fraction = sum(split_of_target(target) == split for target in all_targets) / 2000
        assert 0.01 < fraction < 0.12


def test_letters_are_copied_reversed_and_sorted() -> None:
    transforms = {"copy": list, "reverse": lambda letters: letters[::-1], "sort": sorted}
    for kind, transform in transforms.items():
        rows = list(generate_rows(kind, 500))
        for row in rows:
            assert row.target.split(" ") == transform(row.source.split(" "))
            assert row.group == str(len(row.source.split()))
        assert {len(row.source.split()) for row in rows} == set(range(3, 13))
        assert {letter for row in rows for letter in row.source.split()} == set("abcdefghijklmnop")


def test_lengths_can_be_set() -> None:
    rows = list(generate_pairs("reverse", 400, lengths=(24, 30)))
    assert {len(source.split()) for source, _ in rows} == set(range(24, 31))
    assert all(source.split()[::-1] == target.split() for source, target in rows)


def test_a_digit_is_recalled_over_a_known_distance() -> None:
    rows = list(generate_rows("recall", 500, distances=(5, 23)))
    for row in rows:
        words = row.source.split(" ")
        ((position, target_position),) = row.links
        assert words[position] == row.target
        assert [word for word in words if word.isdigit()] == [row.target]
        assert target_position == 0
        assert len(words) == 24
        assert int(row.group) == len(words) - 1 - position
    assert {int(row.group) for row in rows} == set(range(5, 24))
    assert {row.target for row in rows} == set("0123456789")
    assert {len(source.split()) for source, _ in generate_pairs("recall", 30)} == {41}


def test_splits_of_recall_share_no_source_but_all_targets() -> None:
    rows = {split: list(generate_rows("recall", 200, split=split, distances=(1, 2))) for split in ("train", "test")}
    sources = {split: {row.source for row in split_rows} for split, split_rows in rows.items()}
    assert not sources["train"] & sources["test"]
    assert {row.target for row in rows["train"]} == {row.target for row in rows["test"]} == set("0123456789")


def test_dates_are_correct_in_every_language() -> None:
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
    for day in [*days, *(date(2010 + month, month, day) for month in range(1, 13) for day in range(1, 13))]:
        for language in DATE_LANGUAGES:
            for style in synthetic.DATE_STYLES:
                meanings[" ".join(babel.format_date(day, style, locale=language).split())].add(day)
    assert not {text: readings for text, readings in meanings.items() if len(readings) > 1}


def test_numbers_are_spelled_without_ambiguity() -> None:
    pytest.importorskip("num2words")
    meanings: dict[str, set[str]] = defaultdict(set)
    for row in generate_rows("numbers", 4000, split="all"):
        meanings[row.source].add(row.target)
        assert not any(letter.isdigit() for letter in row.source)
        assert row.target == str(int(row.target))
    assert not {text: readings for text, readings in meanings.items() if len(readings) > 1}
    german = dict(generate_pairs("numbers", 3000, split="all", languages=["de"]))
    assert german["zwölf"] == "12"
    assert {row.group for row in generate_rows("numbers", 500)} == set(NUMBER_LANGUAGES)


def test_wrong_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(ConfigError, match="recall only"):
        generate_pairs("copy", 1, distances=(3, 4))
    with pytest.raises(ConfigError, match="copy, reverse and sort only"):
        generate_pairs("recall", 1, lengths=(3, 4))
    for distances in ((5, 4), (0, 0)):
        with pytest.raises(UsageError, match=f"distances {distances[0]}-{distances[1]}"):
            generate_pairs("recall", 1, distances=distances)
    monkeypatch.setitem(sys.modules, "num2words", None)
    with pytest.raises(UsageError, match="pip install num2words"):
        generate_pairs("numbers", 1)
