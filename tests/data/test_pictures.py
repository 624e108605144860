"""Pictures as letters, files of levels, and what is said where scikit-learn is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from regard.data.pictures import asked_for, pixels, read_picture, read_pictures, spelled
from regard.errors import DataError, UsageError


def test_letters_and_back() -> None:
    picture = np.random.default_rng(1).integers(0, 17, (8, 8))
    assert (pixels(spelled(picture), 8, 8) == picture).all()
    assert (pixels(spelled(picture)[:20], 8, 8).reshape(-1)[20:] == -1).all()


def test_the_set_is_meant_only_where_no_file_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked_for(("digits",)) and not asked_for(("digits", "more.txt"))
    Path("digits").write_text("a text")
    assert not asked_for(("digits",))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UsageError, match="pip install scikit-learn"):
        read_pictures()


def test_the_digits_are_pictures_of_17_levels() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn has the pictures")
    found = read_pictures()
    assert found.levels.shape == (1797, 8, 8) and found.levels.max() == 16 and found.levels.min() == 0
    assert {len(text) for text in found.documents().texts} == {64}


def test_a_file_of_levels_may_lack_its_last_rows(tmp_path: Path) -> None:
    path = tmp_path / "half.txt"
    path.write_text("0 16\n\n3\n")
    assert read_picture(str(path), 3, 2).tolist() == [[0, 16], [3, -1], [-1, -1]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 17\n", r"half.txt:1: not a row of at most 2 levels from 0 to 16"),
        ("0 1 2\n", "half.txt:1: not a row"),
        ("0\n1 2\n", "half.txt:2: the row before has 1 of 2 levels"),
        ("", "0 rows, 1 to 3 are needed"),
        ("0 1\n" * 4, "4 rows"),
    ],
)
def test_faults_have_their_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "half.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        read_picture(str(path), 3, 2)
