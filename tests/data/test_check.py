"""Inspecting and cleaning pairs: counts that can be checked by hand."""

import json

import pytest

from regard.data.check import check_pairs, clean_pairs
from regard.data.pairs import ParallelTexts
from regard.errors import ConfigError


def distinct_texts(count: int) -> list[str]:
    """Texts of two words, all different."""
    return [f"word{chr(97 + index % 26)} other{chr(97 + index // 26)}" for index in range(count)]


def test_the_report_counts_words_and_their_quantiles() -> None:
    source = ["one", "one two", "one two three", "one two three four", "one two three four five"]
    report = check_pairs(ParallelTexts.from_texts(source, distinct_texts(5))).splits["train"]
    assert report.pairs == report.num_read == 5
    assert report.source.words == {0: 1, 5: 1, 25: 2, 50: 3, 75: 4, 95: 5, 99: 5, 100: 5}
    assert report.source.characters[100] == 23
    assert (report.source.running_words, report.source.distinct_words) == (15, 5)
    assert report.source.longest[0] == (5, 23)
    assert report.digest == ParallelTexts.from_texts(source, distinct_texts(5)).digest


def test_repeats_and_overlap_are_counted() -> None:
    train = ParallelTexts.from_texts(["a b", "a  b", "a b", "cafe\u0301 x", "z z"], ["c", "c", "d", "e", "f"])
    test = ParallelTexts.from_texts(["new one", "a b", "café x"], ["c", "c", "other"])
    report = check_pairs(train, {"test": test})
    assert (report.splits["train"].repeated_pairs, report.splits["train"].repeated_sources) == (1, 2)
    overlap = report.overlaps["test"]
    assert (overlap.sources, overlap.pairs, overlap.lines) == (2, 1, [2, 3])
    assert any("2 source texts are in the training split, too" in warning for warning in report.warnings)
    assert any("2 of 5 source texts are repeated" in warning for warning in report.warnings)


def test_suspicious_pairs_are_listed_by_kind() -> None:
    source = distinct_texts(60)
    target = distinct_texts(60)[::-1]
    source[10] = "a short text"
    target[10] = "a very long text " * 9
    source[20] = "the same"
    target[20] = "the same"
    source[30] = "12.34 (5)"
    suspicious = check_pairs(ParallelTexts.from_texts(source, target)).splits["train"].suspicious
    assert suspicious == {"length ratio": [11], "identical sides": [21], "few letters": [31]}


def test_scripts_and_normal_forms_are_counted() -> None:
    report = check_pairs(
        ParallelTexts.from_texts(["abcd", "ефgh", "naïve", "nai\u0308ve"], ["日本", "かな", "한글", "ab"])
    )
    assert report.splits["train"].source.scripts == pytest.approx({"Latin": 16 / 18, "Cyrillic": 2 / 18})
    assert set(report.splits["train"].target.scripts) == {"Cjk", "Hiragana", "Hangul", "Latin"}
    assert (report.splits["train"].source.composed, report.splits["train"].source.decomposed) == (2, 1)
    assert [warning for warning in report.warnings if "mixes normal forms" in warning]
    assert check_pairs(ParallelTexts.from_texts(["e\u0301"], ["x"])).warnings == []


def test_the_report_is_available_as_text_and_as_json() -> None:
    source = distinct_texts(60)
    target = distinct_texts(60)[::-1]
    source[:9] = ["1 2 3"] * 9
    report = check_pairs(
        ParallelTexts.from_texts(source, target), {"valid": ParallelTexts.from_texts(["1 2 3"], ["x"])}
    )
    stored = json.loads(json.dumps(report.to_dict()))
    assert stored["splits"]["train"]["suspicious"]["few letters"] == {"count": 9, "lines": [1, 2, 3, 4, 5]}
    text = report.format()
    for fragment in (
        "train: 60 pairs",
        "valid: 1 pairs",
        "few letters: 9 (lines 1, 2, 3, 4, 5 …)",
        "1 source texts",
        "warning",
    ):
        assert fragment in text
    assert check_pairs(ParallelTexts.from_texts([], [])).format().startswith("train: 0 pairs")


def test_cleaning_counts_every_pair_once() -> None:
    source = distinct_texts(60)
    target = distinct_texts(60)[::-1]
    source += ["w " * 30, "x", "short words", "same words", "worda othera", "from testset"]
    target += ["fine words", "", "long " * 12, "same words", target[0], "whatever it"]
    pairs = ParallelTexts.from_texts(source, target)
    cleaned = clean_pairs(
        pairs,
        max_words=20,
        ratio=3.0,
        drop_identical=True,
        exclude=[ParallelTexts.from_texts(["from  testset"], ["x"])],
    )
    assert cleaned.removed == {
        "too short": 1,
        "too long": 1,
        "length ratio": 1,
        "identical sides": 1,
        "in another split": 1,
        "repeated": 1,
    }
    assert len(cleaned.pairs) + sum(cleaned.removed.values()) == len(pairs)
    assert cleaned.pairs.source == distinct_texts(60)
    assert cleaned.pairs.locations.tolist() == list(range(1, 61))
    assert cleaned.pairs.digest == ParallelTexts.from_texts(distinct_texts(60), target[:60]).digest
    again = clean_pairs(cleaned.pairs, max_words=20, ratio=3.0, drop_identical=True)
    assert (again.removed, again.pairs.digest) == ({}, cleaned.pairs.digest)


def test_contradictory_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="greater than 1"):
        clean_pairs(ParallelTexts.from_texts([], []), ratio=0.5)
    with pytest.raises(ConfigError, match="must not exceed"):
        clean_pairs(ParallelTexts.from_texts([], []), min_words=9, max_words=3)
