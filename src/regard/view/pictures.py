"""Small grey pictures side by side: shades in a terminal, squares in SVG, and a page around them."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Named = Sequence[tuple[str, NDArray[np.int64]]]  # what is drawn, [height, width]: levels, -1 where nothing is known
SHADES = " ░▒▓█"
UNKNOWN = "·"
DARKEST = 16  # the highest level
SIDE, GAP, TEXT = 14, 18, 16  # of a pixel, between pictures, of a line of text

_STYLE = "body{margin:2rem;font:16px/1.5 system-ui,sans-serif;background:#fff;color:#111}svg{max-width:100%}"


def lines(pictures: Named) -> list[str]:
    """Return the pictures side by side, two signs a pixel, each below its name.

    >>> lines([("one", np.array([[0, 16], [8, -1]]))])
    ['one ', '  ██', '▒▒··']
    """
    wide = [max(2 * picture.shape[1], len(name)) for name, picture in pictures]
    made = ["  ".join(name.ljust(room) for (name, _), room in zip(pictures, wide, strict=True))]
    for row in range(max(picture.shape[0] for _, picture in pictures)):
        parts = ["".join(2 * _shade(level) for level in picture[row].tolist()) for _, picture in pictures]
        made.append("  ".join(part.ljust(room) for part, room in zip(parts, wide, strict=True)))
    return made


def _shade(level: int) -> str:
    return UNKNOWN if level < 0 else SHADES[round(level * (len(SHADES) - 1) / DARKEST)]


def svg(pictures: Named) -> str:
    """Return the pictures side by side as an SVG; pixels that are not known are outlined.

    >>> svg([("one", np.array([[0, 16]]))]).count("<rect")
    2
    """
    parts, left, bottom = [], 0, 0
    for name, picture in pictures:
        height, width = picture.shape
        parts.append(f'<text x="{left}" y="{TEXT - 4}" font-size="12">{html.escape(name)}</text>')
        for row in range(height):
            for column in range(width):
                parts.append(_square(left + SIDE * column, TEXT + SIDE * row, int(picture[row, column])))
        left += max(SIDE * width, 8 * len(name)) + GAP
        bottom = max(bottom, TEXT + SIDE * height)
    size = f'viewBox="0 0 {left - GAP} {bottom}" width="{left - GAP}" height="{bottom}"'
    text = 'font-family="sans-serif" fill="#555"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {text} role="img">\n{chr(10).join(parts)}\n</svg>\n'


def _square(left: int, top: int, level: int) -> str:
    if level < 0:
        look = 'fill="none" stroke="#bbb" stroke-width="0.5"'
    else:
        grey = round(255 * (1 - level / DARKEST))
        look = f'fill="rgb({grey},{grey},{grey})" stroke="#eee" stroke-width="0.5"'
    return f'<rect x="{left}" y="{top}" width="{SIDE}" height="{SIDE}" {look}/>'


def page(pictures: Named, title: str) -> str:
    """Return the pictures as one HTML page that loads nothing and runs nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    shown = html.escape(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{shown}</title><style>{_STYLE}</style></head>\n<body><h1>{shown}</h1>\n{svg(pictures)}</body></html>\n"
    )
