"""Small grey pictures as lines of text, one letter a pixel: the same models read them, with another alphabet.

The pictures are scikit-learn's handwritten digits, 8 × 8 pixels of 17 grey levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.documents import Documents
from regard.errors import DataError, UsageError

NAME = "digits"  # what is given instead of a file
LEVELS = "0123456789abcdefg"  # a letter for each grey level, from nothing to full

Picture = NDArray[np.int64]  # [height, width], levels


@dataclass(frozen=True)
class Pictures:
    """Pictures of one size and what they show."""

    levels: NDArray[np.int64]  # [pictures, height, width]
    shows: NDArray[np.int64]  # [pictures], the digit

    def __len__(self) -> int:
        return len(self.levels)

    def documents(self) -> Documents:
        """Return each picture as a document."""
        return Documents.of([spelled(picture) for picture in self.levels])

    def facts(self) -> dict[str, Any]:
        """Return what a model's folder says of its pictures."""
        _, height, width = self.levels.shape
        return {"set": NAME, "height": height, "width": width, "levels": len(LEVELS)}


def asked_for(files: Sequence[str]) -> bool:
    """Whether the pictures are meant: their name is given, and there is no file of that name."""
    return tuple(files) == (NAME,) and not Path(NAME).exists()


def read_pictures() -> Pictures:
    """Return scikit-learn's digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UsageError(
            f"{NAME}: the pictures come with scikit-learn, which is not installed: pip install scikit-learn, "
            "or give a text file"
        ) from None
    found = load_digits()
    return Pictures(found.images.astype(np.int64), found.target.astype(np.int64))


def spelled(picture: Picture) -> str:
    """Return a picture as letters, row by row.

    >>> spelled(np.array([[0, 16], [10, 1]]))
    '0ga1'
    """
    return "".join(LEVELS[level] for level in picture.reshape(-1).tolist())


def pixels(text: str, height: int, width: int) -> Picture:
    """Return the picture of letters; what is missing at the end is -1.

    >>> pixels("0ga", 2, 2).tolist()
    [[0, 16], [10, -1]]
    """
    levels = [LEVELS.find(letter) for letter in text[: height * width]]
    return np.array(levels + [-1] * (height * width - len(levels)), dtype=np.int64).reshape(height, width)


def read_picture(path: str, height: int, width: int) -> Picture:
    """Return the picture of a file: a row a line, levels between white space; the last rows may be missing."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}", place=path) from None
    rows: list[list[int]] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        if not all(word.isdecimal() and int(word) < len(LEVELS) for word in words) or len(words) > width:
            raise DataError(
                f"not a row of at most {width} levels from 0 to {len(LEVELS) - 1}",
                place=f"{path}:{number}",
                advice="write each row of pixels as numbers between spaces",
            )
        if rows and len(rows[-1]) < width:
            raise DataError(
                f"the row before has {len(rows[-1])} of {width} levels",
                place=f"{path}:{number}",
                advice="only the last row may be shorter",
            )
        rows.append([int(word) for word in words])
    if not rows or len(rows) > height:
        raise DataError(f"{len(rows)} rows, 1 to {height} are needed", place=path)
    flat = [level for row in rows for level in row]
    return np.array(flat + [-1] * (height * width - len(flat)), dtype=np.int64).reshape(height, width)


def missing_after(picture: Picture, rows: int) -> Picture:
    """Return the picture with all rows after the first `rows` missing.

    >>> missing_after(np.array([[1, 2], [3, 4]]), 1).tolist()
    [[1, 2], [-1, -1]]
    """
    made = picture.copy()
    made[rows:] = -1
    return made
