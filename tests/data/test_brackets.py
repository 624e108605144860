"""Nested brackets: balanced, with the depth that a plain count gives; written as columns or as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.cli import run
from regard.data.brackets import MAX_DEPTH, generate_brackets
from regard.data.conll import read_tagged
from regard.errors import UsageError

PARTNERS = {")": "(", "]": "[", "}": "{"}


def test_depths_are_those_of_a_plain_count() -> None:
    rows = list(generate_brackets(500, seed=2))
    for row in rows:
        stack: list[str] = []
        for word, depth in zip(row.words, row.depths, strict=True):
            if word in PARTNERS.values():
                stack.append(word)
            assert depth == len(stack)
            if word in PARTNERS:
                assert stack.pop() == PARTNERS[word]
        assert not stack
    assert {len(row.words) for row in rows} == set(range(8, 41))
    assert {depth for row in rows for depth in row.depths} == set(range(MAX_DEPTH + 1))
    for word in ("(", "]", "a"):  # no word has one depth
        assert len({depth for row in rows for own, depth in zip(row.words, row.depths, strict=True) if own == word}) > 4


def test_rows_belong_to_one_split() -> None:
    train, test = ({row.words for row in generate_brackets(300, seed=1, split=split)} for split in ("train", "test"))
    assert not train & test
    assert list(generate_brackets(9, seed=1)) == list(generate_brackets(9, seed=1))
    with pytest.raises(UsageError, match="lengths 2-9: the first must be at least 4"):
        next(generate_brackets(1, lengths=(2, 9)))


def test_brackets_are_written_as_columns_or_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conll, text = tmp_path / "b.conll", tmp_path / "b.txt"
    for path in (conll, text):
        assert run(["data", "make", "brackets", "--count", "7", "--lengths", "5-11", "--out", str(path)]) == 0
    rows = list(generate_brackets(7, lengths=(5, 11)))
    sentences = read_tagged([conll]).sentences
    assert [sentence.words for sentence in sentences] == [row.words for row in rows]
    assert [sentence.tags for sentence in sentences] == [tuple(map(str, row.depths)) for row in rows]
    assert text.read_text().splitlines() == [" ".join(row.words) for row in rows]
    assert run(["data", "make", "brackets", "--out", str(tmp_path / "b.tsv")]) == 2
    assert "written to one file in .conll or .txt" in capsys.readouterr().err
    assert run(["data", "make", "brackets", "--languages", "de", "--out", str(conll)]) == 2
    assert "brackets has no languages" in capsys.readouterr().err
