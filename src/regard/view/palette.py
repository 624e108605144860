"""Colours of figures, light and dark: zero is the background, ink grows with the value; safe for colour blindness."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError, nearest

Colour = tuple[int, int, int]
LEVELS = 32  # shades from the background to full ink
TICKS = (0.0, 0.05, 0.25, 0.5, 1.0)  # of the scale of weights


@dataclass(frozen=True)
class Theme:
    """The colours of one theme."""

    name: str
    ground: Colour
    mid: Colour  # of weights, half-way to the ink colour
    ink: Colour
    minus: Colour  # of values below zero
    plus: Colour
    text: Colour
    soft: Colour
    line: Colour
    raised: Colour
    source: Colour
    target: Colour
    mark: Colour  # highlights
    dot: Colour  # highlights on shaded cells
    is_inline: bool = False  # inside a page: takes its background and text colour

    def shade(self, level: int) -> Colour:
        """Colour of a level from -LEVELS to LEVELS.

        >>> THEMES["light"].shade(0), THEMES["light"].shade(LEVELS) == THEMES["light"].ink
        ((255, 255, 255), True)
        """
        fraction = min(1.0, abs(level) / LEVELS)
        if fraction <= 0.5:
            return blend(self.ground, self.mid, 2 * fraction)
        return blend(self.mid, self.ink, 2 * fraction - 1)

    def ink_on(self, colour: Colour) -> Colour:
        """Text colour with the higher contrast on a background.

        >>> THEMES["light"].ink_on(THEMES["light"].ink) == THEMES["light"].ground
        True
        """
        return max((self.text, self.ground), key=lambda ink: abs(_lightness(ink) - _lightness(colour)))

    def signed(self, level: int) -> Colour:
        """Colour of a level of signed values."""
        return blend(self.ground, self.plus if level > 0 else self.minus, min(1.0, abs(level) / LEVELS))


def _lightness(colour: Colour) -> float:
    coefficients = (0.2126, 0.7152, 0.0722)
    luminance = sum(weight * channel**2.2 for weight, channel in zip(coefficients, colour, strict=True))
    return float(luminance**0.4545)


def blend(first: Colour, second: Colour, fraction: float) -> Colour:
    """Interpolate between two colours.

    >>> blend((0, 0, 0), (100, 200, 50), 0.5)
    (50, 100, 25)
    """
    red, green, blue = (round(a + (b - a) * fraction) for a, b in zip(first, second, strict=True))
    return red, green, blue


def weight_levels(weights: NDArray[np.floating[Any]]) -> NDArray[np.int_]:
    """Levels of weights, by their root: small weights stay visible, zero is the background.

    >>> weight_levels(np.array([0.0, 0.25, 1.0])).tolist()
    [0, 16, 32]
    """
    return np.asarray(np.rint(LEVELS * np.sqrt(np.clip(weights, 0, 1))), dtype=int)


def signed_levels(values: NDArray[np.floating[Any]], most: float) -> NDArray[np.int_]:
    """Levels of signed values; `most` and above are full.

    >>> signed_levels(np.array([-1.0, 0.0, 0.5]), 1.0).tolist()
    [-32, 0, 16]
    """
    return np.asarray(np.rint(LEVELS * np.clip(np.nan_to_num(values) / (most or 1.0), -1, 1)), dtype=int)


THEMES = {
    "light": Theme(
        "light",
        ground=(255, 255, 255), mid=(120, 163, 214), ink=(15, 40, 88), minus=(0, 91, 158), plus=(204, 92, 0),
        text=(29, 33, 41), soft=(94, 101, 114), line=(214, 213, 207), raised=(243, 242, 237),
        source=(150, 62, 8), target=(10, 98, 91), mark=(217, 119, 6), dot=(224, 128, 20),
    ),
    "dark": Theme(
        "dark",
        ground=(19, 21, 26), mid=(58, 103, 168), ink=(255, 224, 138), minus=(96, 170, 255), plus=(255, 159, 64),
        text=(231, 232, 234), soft=(158, 165, 177), line=(58, 63, 74), raised=(32, 36, 44),
        source=(242, 167, 102), target=(102, 211, 194), mark=(245, 158, 11), dot=(222, 84, 12),
    ),
}  # fmt: skip

# distinguishable with colour blindness (Okabe and Ito 2008); the index of a head is always written beside its colour
HEAD_COLOURS: tuple[Colour, ...] = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233),
    (136, 34, 85), (153, 153, 51),
)  # fmt: skip

# for charts inside a page, light or dark: shades are fractions of the ink on the page's background
PAGE = replace(THEMES["light"], name="page", ink=HEAD_COLOURS[0], line=(136, 136, 136), is_inline=True)


def get_theme(name: str) -> Theme:
    """Look up a theme by name."""
    if name not in THEMES:
        raise UsageError(f"theme must be one of {', '.join(THEMES)}, not {name!r}{nearest(name, THEMES)}")
    return THEMES[name]
