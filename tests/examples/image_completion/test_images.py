"""Images as text, files of grey levels, and the digits of scikit-learn."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from examples.image_completion.images import from_text, load_digit_images, read_image, to_text
from regard.errors import DataError, UsageError


def test_an_image_is_restored_from_its_text() -> None:
    image = np.random.default_rng(1).integers(0, 17, (8, 8))
    text = to_text(image)
    assert (from_text(text, 8, 8) == image).all()
    incomplete = from_text(text[:20], 8, 8)
    assert (incomplete.reshape(-1)[20:] == -1).all()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UsageError, match="pip install scikit-learn"):
        load_digit_images()


def test_the_digits_are_images_of_17_levels() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    digits = load_digit_images()
    assert digits.pixels.shape == (1797, 8, 8)
    assert digits.pixels.max() == 16
    assert digits.pixels.min() == 0
    assert set(digits.labels.tolist()) == set(range(10))
    assert len(digits) == len(digits.labels)
    assert {len(text) for text in digits.texts()} == {64}


def test_a_file_of_grey_levels_may_lack_its_last_pixels(tmp_path: Path) -> None:
    path = tmp_path / "half.txt"
    path.write_text("0 16\n\n3\n")
    assert read_image(str(path), 3, 2).tolist() == [[0, 16], [3, -1], [-1, -1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 17\n", r"half.txt:1: not a row of at most 2 levels from 0 to 16"),
        ("0 1 2\n", "half.txt:1: not a row"),
        ("0\n1 2\n", "half.txt:2: the row before has 1 of 2 levels"),
        ("", "0 rows, 1 to 3 are needed"),
        ("0 1\n" * 4, "4 rows"),
    ],
)
def test_errors_in_a_file_name_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "half.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_image(str(path), 3, 2)
