"""Small greyscale images as text, one character per pixel: a causal language model reads them like any other text.

The images are scikit-learn's handwritten digits: 8 × 8 pixels of 17 grey levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError, UsageError

GREY_LEVELS = "0123456789abcdefg"  # one character per level, from white to black
MISSING = -1  # level of a pixel that is to be completed

Image = NDArray[np.int64]  # [height, width], grey levels


@dataclass(frozen=True)
class Images:
    """Images of one size and their labels."""

    pixels: NDArray[np.int64]  # [images, height, width], grey levels
    labels: NDArray[np.int64]  # [images], the digits

    def __len__(self) -> int:
        return len(self.pixels)

    def texts(self) -> list[str]:
        """Spell every image."""
        return [to_text(image) for image in self.pixels]


def load_digit_images() -> Images:
    """Load scikit-learn's handwritten digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UsageError("the digits are part of scikit-learn, which is missing: pip install scikit-learn") from None
    digits = load_digits()
    return Images(digits.images.astype(np.int64), digits.target.astype(np.int64))


def to_text(pixels: NDArray[np.int64]) -> str:
    """Spell pixels as characters, row by row.

    >>> to_text(np.array([[0, 16], [10, 1]]))
    '0ga1'
    """
    return "".join(GREY_LEVELS[level] for level in pixels.reshape(-1).tolist())


def from_text(text: str, height: int, width: int) -> Image:
    """Parse a spelled image; pixels after the end of the text are missing.

    >>> from_text("0ga", 2, 2).tolist()
    [[0, 16], [10, -1]]
    """
    levels = [GREY_LEVELS.find(character) for character in text[: height * width]]
    return _pad_image(levels, height, width)


def read_image(path: str, height: int, width: int) -> Image:
    """Read an image file: one row of space-separated levels per line; the last rows may be missing."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}", location=path) from None
    rows: list[list[int]] = []
    for line_number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) > width or not all(_is_level(field) for field in fields):
            raise DataError(
                f"not a row of at most {width} levels from 0 to {len(GREY_LEVELS) - 1}",
                location=f"{path}:{line_number}",
                advice="write each row of pixels as numbers between spaces",
            )
        if rows and len(rows[-1]) < width:
            raise DataError(
                f"the row before has {len(rows[-1])} of {width} levels",
                location=f"{path}:{line_number}",
                advice="only the last row may be shorter",
            )
        rows.append([int(field) for field in fields])
    if not rows or len(rows) > height:
        raise DataError(f"{len(rows)} rows, 1 to {height} are needed", location=path)
    return _pad_image([level for row in rows for level in row], height, width)


def mask_rows(image: Image, start: int) -> Image:
    """Mark all rows from `start` on as missing.

    >>> mask_rows(np.array([[1, 2], [3, 4]]), 1).tolist()
    [[1, 2], [-1, -1]]
    """
    masked = image.copy()
    masked[start:] = MISSING
    return masked


def _is_level(field: str) -> bool:
    return field.isdecimal() and int(field) < len(GREY_LEVELS)


def _pad_image(levels: list[int], height: int, width: int) -> Image:
    padding = [MISSING] * (height * width - len(levels))
    return np.array(levels + padding, dtype=np.int64).reshape(height, width)
