"""Draw greyscale images side by side: in the terminal, as SVG, and as an HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence

from examples.image_completion.images import GREY_LEVELS, Image

CaptionedImages = Sequence[tuple[str, Image]]

SHADES = " ░▒▓█"
MISSING_SHADE = "·"
MAX_LEVEL = len(GREY_LEVELS) - 1

# sizes in the SVG, in pixels of the screen
PIXEL_SIZE = 14
GAP = 18  # between two images
CAPTION_HEIGHT = 16
CHARACTER_WIDTH = 8

STYLE = "body{margin:2rem;font:16px/1.5 system-ui,sans-serif;background:#fff;color:#111}svg{max-width:100%}"
SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def to_terminal(images: CaptionedImages) -> list[str]:
    """Draw images below their captions, two characters per pixel.

    >>> import numpy as np
    >>> to_terminal([("digit", np.array([[0, 16], [8, -1]]))])
    ['digit', '  ██ ', '▒▒·· ']
    """
    widths = [max(2 * image.shape[1], len(caption)) for caption, image in images]
    rows = [[caption for caption, _ in images]]
    for row in range(max(image.shape[0] for _, image in images)):
        rows.append(["".join(2 * _shade(level) for level in image[row].tolist()) for _, image in images])
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in rows]


def _shade(level: int) -> str:
    return MISSING_SHADE if level < 0 else SHADES[round(level * (len(SHADES) - 1) / MAX_LEVEL)]


def to_svg(images: CaptionedImages) -> str:
    """Draw images side by side as SVG; missing pixels are outlined.

    >>> import numpy as np
    >>> to_svg([("digit", np.array([[0, 16]]))]).count("<rect")
    2
    """
    elements = []
    x = 0
    total_height = 0
    for caption, image in images:
        height, width = image.shape
        elements.append(f'<text x="{x}" y="{CAPTION_HEIGHT - 4}" font-size="12">{html.escape(caption)}</text>')
        for row in range(height):
            for column in range(width):
                y = CAPTION_HEIGHT + PIXEL_SIZE * row
                elements.append(_pixel(x + PIXEL_SIZE * column, y, int(image[row, column])))
        x += max(PIXEL_SIZE * width, CHARACTER_WIDTH * len(caption)) + GAP
        total_height = max(total_height, CAPTION_HEIGHT + PIXEL_SIZE * height)
    total_width = x - GAP
    size = f'viewBox="0 0 {total_width} {total_height}" width="{total_width}" height="{total_height}"'
    attributes = 'font-family="sans-serif" fill="#555" role="img"'
    content = "\n".join(elements)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {attributes}>\n{content}\n</svg>\n'


def _pixel(x: int, y: int, level: int) -> str:
    if level < 0:
        paint = 'fill="none" stroke="#bbb" stroke-width="0.5"'
    else:
        grey = round(255 * (1 - level / MAX_LEVEL))
        paint = f'fill="rgb({grey},{grey},{grey})" stroke="#eee" stroke-width="0.5"'
    return f'<rect x="{x}" y="{y}" width="{PIXEL_SIZE}" height="{PIXEL_SIZE}" {paint}/>'


def to_html(images: CaptionedImages, title: str) -> str:
    """Build an HTML page of the images that loads nothing and runs no script."""
    heading = html.escape(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{SECURITY_POLICY}">'
        f"<title>{heading}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{heading}</h1>\n{to_svg(images)}</body></html>\n"
    )
