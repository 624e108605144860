"""A figure: one view of a record, drawn by Python alone, ready for a paper; saved as SVG, PDF, PNG or TikZ.

figure(record, "align", words=True).save("figure.pdf")
figure(record, "look", token="it", width="page", theme="dark").svg
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import UsageError, nearest
from regard.view.drawing import PAD, Drawing
from regard.view.figures.decoding import draw_beam_tree, draw_steps
from regard.view.figures.flow import draw_flow
from regard.view.figures.heads import draw_heads
from regard.view.figures.hops import draw_hops
from regard.view.figures.lines import draw_lines
from regard.view.figures.math import draw_math
from regard.view.figures.matrix import draw_matrix
from regard.view.figures.panels import FigureRequest
from regard.view.figures.positions import draw_positions
from regard.view.figures.prediction import draw_prediction
from regard.view.palette import get_theme
from regard.view.record.record import Record
from regard.view.selection import check_norm
from regard.view.svg import MM, svg_text
from regard.view.tikz import tikz_text

FIGURE_VIEWS: dict[str, tuple[Callable[[FigureRequest], Drawing], str]] = {
    "look": (draw_lines, "where one row, or each of them, looked: lines between tokens"),
    "heads": (draw_heads, "a small picture of every head"),
    "align": (draw_matrix, "where each row looked: one matrix"),
    "steps": (draw_steps, "each token that was written, and what else was likely"),
    "beams": (draw_beam_tree, "the beginnings that a beam search kept"),
    "maths": (draw_math, "six steps from a query to its new value"),
    "place": (draw_positions, "position codes, and how alike positions are"),
    "verdict": (draw_prediction, "how likely each label or answer is"),
    "flow": (draw_flow, "what reaches one token through all layers"),
    "hops": (draw_hops, "what each hop of a memory network looked at"),
}
WIDTHS = {"column": 84.0, "page": 174.0}  # millimetres of a column, and of a page of two columns
NARROWEST, WIDEST = 40.0, 1000.0
ENDINGS = (".svg", ".png", ".pdf", ".tex")


@dataclass(frozen=True)
class Figure:
    """A picture and the ways out of it."""

    view: str
    title: str
    drawing: Drawing

    @property
    def about(self) -> str:
        """What is shown, in a sentence."""
        return f"{self.view}: {FIGURE_VIEWS[self.view][1]}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the picture leaves out, in words; they stand below it as well."""
        return tuple(self.drawing.notes) + (("“…” ends what is too long",) if self.drawing.shortened else ())

    @property
    def millimetres(self) -> tuple[float, float]:
        """How wide and how tall it is."""
        wide, tall = self.drawing.width + 2 * PAD, self.drawing.height + 2 * PAD
        return round(wide / MM, 1), round(tall / MM, 1)

    @property
    def svg(self) -> str:
        """The picture as SVG."""
        return svg_text(self.drawing, title=self.title, about=self.about)

    @property
    def tex(self) -> str:
        """The picture as TikZ."""
        return tikz_text(self.drawing, about=f"{self.title} ({self.about})")

    def content(self, ending: str, *, dpi: int = 300) -> bytes:
        """Return the picture in the format of a file's ending."""
        if ending in (".svg", ".tex"):
            return (self.svg if ending == ".svg" else self.tex).encode("utf-8", "replace")
        if ending in (".png", ".pdf"):
            from regard.view.export import pdf, png

            return png(self.drawing, self.title, dpi) if ending == ".png" else pdf(self.drawing, self.title)
        raise _unknown(ending)

    def save(self, path: str | Path, *, dpi: int = 300) -> Path:
        """Write the picture in the format that the name ends with, and return the path."""
        from regard.checkpoint.atomic import write_file

        place = Path(path)
        if place.is_dir():
            raise UsageError(f"{path} is a folder: name a file")
        write_file(place, self.content(place.suffix.lower(), dpi=dpi))
        return place

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": f"{self.about} of {self.title!r}"}


def figure(
    record: Record,
    view: str = "",
    *,
    attention: str = "",
    layer: int | None = None,
    head: int | None = None,
    words: bool = False,
    token: str | int | None = None,
    norm: str = "raw",
    width: str | float = "column",
    theme: str = "light",
) -> Figure:
    """Return a view of a record as a picture.

    `width` is that of a column of a paper, of a page, or in millimetres; `attention` may name a head whole
    (`decoder.2.cross:4`); `row` is the token or word that the views of single rows are about. Without a view, the
    record's own is drawn.
    """
    view = view or default_view(record, needs_attention=bool(attention) or layer is not None or head is not None)
    check_figure_options(view, None, width, theme, norm)
    asked = FigureRequest(
        record, to_millimetres(width) * MM - 2 * PAD, get_theme(theme), attention, layer, head, words, token, norm
    )
    return Figure(view, record.title, FIGURE_VIEWS[view][0](asked))


def check_figure_options(view: str, out: str | None, width: str | float, theme: str, norm: str) -> None:
    """Raise for what no figure can be; nothing is drawn for it."""
    if view and view not in FIGURE_VIEWS:
        raise UsageError(f"no such view: {view}{nearest(view, FIGURE_VIEWS)}: there are {', '.join(FIGURE_VIEWS)}")
    if out is not None and Path(out).suffix.lower() not in ENDINGS:
        raise _unknown(Path(out).suffix)
    to_millimetres(width)
    get_theme(theme)
    check_norm(norm)


def _unknown(ending: str) -> UsageError:
    return UsageError(
        f"a figure cannot be written as {ending or 'a file without an ending'}: "
        f"the ending is one of {', '.join(ENDINGS)}{nearest(ending, ENDINGS)}"
    )


def default_view(record: Record, *, needs_attention: bool = False) -> str:
    """Return the view that shows a record best; with `looks`, one of where it looked."""
    if needs_attention and record.attention:
        return "align"
    wanted = str(record.view.get("view", ""))
    if wanted in FIGURE_VIEWS:
        return wanted
    if record.verdict is not None:
        return "verdict"
    if record.attention and record.attention[0].name in ("hop", "memory"):
        return "hops"
    if record.attention:
        return "look" if record.attention[0].own else "align"
    return "steps" if record.steps else "place"


def to_millimetres(width: str | float) -> float:
    """Return a width in millimetres.

    >>> to_millimetres("column"), to_millimetres("120"), to_millimetres("60mm")
    (84.0, 120.0, 60.0)
    """
    if isinstance(width, str) and width in WIDTHS:
        return WIDTHS[width]
    try:
        value = float(str(width).removesuffix("mm"))
    except ValueError:
        close = nearest(str(width), WIDTHS)
        raise UsageError(f"width must be column, page or millimetres, not {width!r}{close}") from None
    if not NARROWEST <= value <= WIDEST:
        raise UsageError(f"width must be {NARROWEST:g} to {WIDEST:g} millimetres, not {value:g}")
    return value
