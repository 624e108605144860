"""Drawings as PNG and PDF, through CairoSVG (the extra `figures`)."""

from __future__ import annotations

import unicodedata
import warnings
from dataclasses import replace
from types import ModuleType

from regard.errors import UsageError
from regard.view.drawing import Drawing, Mark, Words
from regard.view.fonts import font_for
from regard.view.shaping import seen_order
from regard.view.svg import svg_text

# letters of these scripts change beside others
_JOINING = (
    "DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA",
    "KHMER", "MYANMAR", "TIBETAN", "SYRIAC", "MONGOLIAN",
)  # fmt: skip


def png(drawing: Drawing, title: str, dpi: int = 300) -> bytes:
    """Return the drawing as PNG, `dpi` dots an inch."""
    return bytes(_converter().svg2png(bytestring=_source(drawing, title), dpi=dpi))


def pdf(drawing: Drawing, title: str) -> bytes:
    """Return the drawing as PDF; text stays text."""
    return bytes(_converter().svg2pdf(bytestring=_source(drawing, title)))


def _source(drawing: Drawing, title: str) -> bytes:
    """Return SVG for a reader that knows no direction of writing, joins no letters and looks for no other font."""
    marks: list[Mark] = []
    missing = joining = ""
    for mark in drawing.marks:
        if isinstance(mark, Words) and not mark.text.isascii():
            text = seen_order(mark.text)
            font, lacking = font_for(text)
            missing += lacking
            joining = joining or next((name for sign in mark.text if (name := _script(sign)) in _JOINING), "")
            marks.append(replace(mark, text=text, font=font))
        else:
            marks.append(mark)
    if missing:
        signs = " ".join(dict.fromkeys(missing[:40]))
        warnings.warn(f"no font of this machine has {signs}: boxes are drawn; install one, or write .svg", stacklevel=4)
    if joining:
        warnings.warn(f"letters of {joining.title()} are not joined in PNG and PDF: write .svg for them", stacklevel=4)
    return svg_text(replace(drawing, marks=marks), title=title, turned=False).encode("utf-8", "replace")


def _script(sign: str) -> str:
    return unicodedata.name(sign, "").partition(" ")[0]


def _converter() -> ModuleType:
    try:
        import cairosvg
    except (ImportError, OSError) as error:  # OSError: the package is there, but the library cairo is not
        raise UsageError(
            f"PNG and PDF need CairoSVG, which cannot be used here ({error}): pip install 'regard[figures]', "
            "or write .svg or .tex, which need nothing"
        ) from error
    return cairosvg  # type: ignore[no-any-return]
