"""Drawings as PNG and PDF, through CairoSVG (the extra `figures`).

Cairo's plain text puts one character after another, from left to right and in a single font: scripts that need more
are drawn well in SVG only, where the viewer shapes them.
"""

from __future__ import annotations

import unicodedata
import warnings
from types import ModuleType

from regard.errors import UsageError
from regard.view.drawing import Drawing, Words
from regard.view.svg import svg_text

_SIMPLE = "\u0590"  # below it: Latin, Greek, Cyrillic, Armenian


def png(drawing: Drawing, title: str, dpi: int = 300) -> bytes:
    """Return the drawing as PNG, `dpi` dots an inch."""
    return bytes(_converter().svg2png(bytestring=_source(drawing, title), dpi=dpi))


def pdf(drawing: Drawing, title: str) -> bytes:
    """Return the drawing as PDF; text stays text."""
    return bytes(_converter().svg2pdf(bytestring=_source(drawing, title)))


def complex_scripts(text: str) -> list[str]:
    """Scripts of a text that need shaping, an order or fonts that Cairo does not choose.

    >>> complex_scripts("Ångström, Ωμέγα, Москва"), complex_scripts("سلام नमस्ते 日")
    ([], ['Arabic', 'CJK', 'Devanagari'])
    """
    letters = {letter for letter in text if letter >= _SIMPLE and unicodedata.category(letter) == "Lo"}
    names = {unicodedata.name(letter, "unknown").partition(" ")[0] for letter in letters}
    return sorted(name if name == "CJK" else name.title() for name in names)


def _source(drawing: Drawing, title: str) -> bytes:
    """SVG for Cairo, which knows no direction of writing; a warning names scripts that it cannot draw well."""
    texts = "".join(mark.text for mark in drawing.marks if isinstance(mark, Words))
    scripts = complex_scripts(texts)
    if scripts:
        warnings.warn(
            f"PNG and PDF are drawn without shaping: letters of {', '.join(scripts)} may be missing, unjoined or in "
            "the wrong order; write .svg for them",
            stacklevel=4,
        )
    return svg_text(drawing, title=title, turned=False).encode("utf-8", "replace")


def _converter() -> ModuleType:
    try:
        import cairosvg
    except (ImportError, OSError) as error:  # OSError: the package is there, but the library cairo is not
        raise UsageError(
            f"PNG and PDF need CairoSVG, which cannot be used here ({error}): pip install 'regard[figures]', "
            "or write .svg or .tex, which need nothing"
        ) from error
    return cairosvg  # type: ignore[no-any-return]
