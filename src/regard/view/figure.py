"""A figure: one view of a record, drawn by Python alone, ready for a paper; saved as SVG, PDF, PNG or TikZ.

figure(record, "matrix", words=True).save("figure.pdf")
figure(record, "lines", token="it", width="page", theme="dark").svg
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.components import VIEWS
from regard.errors import UsageError, nearest
from regard.registry import resolve
from regard.view.drawing import PAD, Drawing
from regard.view.figures.panels import FigureRequest
from regard.view.palette import get_theme
from regard.view.record.record import Record
from regard.view.selection import check_norm
from regard.view.svg import MM, svg_text
from regard.view.tikz import tikz_text

WIDTHS = {"column": 84.0, "page": 174.0}  # millimetres of a column, and of a page of two columns
MIN_WIDTH = 40.0
MAX_WIDTH = 1000.0
ENDINGS = (".svg", ".png", ".pdf", ".tex")


@dataclass(frozen=True)
class Figure:
    """A view of a record as a drawing, with its export formats."""

    view: str
    title: str
    drawing: Drawing

    @property
    def about(self) -> str:
        """A one-line description."""
        return f"{self.view}: {VIEWS[self.view].description}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figure leaves out; also written below it."""
        notes = list(self.drawing.notes)
        if self.drawing.shortened:
            notes.append("“…” marks shortened text")
        return tuple(notes)

    @property
    def millimetres(self) -> tuple[float, float]:
        """Width and height."""
        width = self.drawing.width + 2 * PAD
        height = self.drawing.height + 2 * PAD
        return round(width / MM, 1), round(height / MM, 1)

    @property
    def svg(self) -> str:
        """SVG source."""
        return svg_text(self.drawing, title=self.title, about=self.about)

    @property
    def tex(self) -> str:
        """TikZ source."""
        return tikz_text(self.drawing, about=f"{self.title} ({self.about})")

    def content(self, ending: str, *, dpi: int = 300) -> bytes:
        """Encode the figure in the format of a file extension."""
        if ending in (".svg", ".tex"):
            return (self.svg if ending == ".svg" else self.tex).encode("utf-8", "replace")
        if ending in (".png", ".pdf"):
            from regard.view.export import pdf, png

            return png(self.drawing, self.title, dpi) if ending == ".png" else pdf(self.drawing, self.title)
        raise _unknown_format(ending)

    def save(self, path: str | Path, *, dpi: int = 300) -> Path:
        """Write the figure in the format of the file extension, and return the path."""
        from regard.checkpoint.atomic import write_file

        out = Path(path)
        if out.is_dir():
            raise UsageError(f"{path} is a folder: name a file")
        write_file(out, self.content(out.suffix.lower(), dpi=dpi))
        return out

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
    """Draw a view of a record; by default the one that suits it best.

    `width` is `column` or `page` of a paper, or millimetres; `attention` may name a head (`decoder.2.cross:4`); `token`
    is the query that lines, math and flow are about: a label or an index.
    """
    view = view or default_view(record, needs_attention=bool(attention) or layer is not None or head is not None)
    check_figure_options(view, None, width, theme, norm)
    request = FigureRequest(
        record,
        to_millimetres(width) * MM - 2 * PAD,
        theme=get_theme(theme),
        attention=attention,
        layer=layer,
        head=head,
        words=words,
        token=token,
        norm=norm,
    )
    return Figure(view, record.title, find_drawing_function(view)(request))


def find_drawing_function(view: str) -> Callable[[FigureRequest], Drawing]:
    """Function that draws a view; one that has no figure is an error."""
    draw: Callable[[FigureRequest], Drawing] | None = resolve(VIEWS[view].draw)
    if draw is None:
        raise UsageError(f"the view {view} has no figure: choose another one, or see it with `regard see`")
    return draw


def check_figure_options(view: str, out: str | None, width: str | float, theme: str, norm: str) -> None:
    """Raise for invalid options, before anything is drawn."""
    if view and out is not None:
        find_drawing_function(view)
    elif view:
        _ = VIEWS[view]  # raises for an unknown view
    if out is not None and Path(out).suffix.lower() not in ENDINGS:
        raise _unknown_format(Path(out).suffix)
    to_millimetres(width)
    get_theme(theme)
    check_norm(norm)


def _unknown_format(ending: str) -> UsageError:
    return UsageError(
        f"a figure cannot be written as {ending or 'a file without an extension'}: "
        f"the extension must be one of {', '.join(ENDINGS)}{nearest(ending, ENDINGS)}"
    )


def default_view(record: Record, *, needs_attention: bool = False) -> str:
    """The view that suits a record best; with `needs_attention`, one that shows attention."""
    if needs_attention and record.attention:
        return "matrix"
    stored = str(record.view.get("view", ""))
    if stored in VIEWS and VIEWS[stored].draw is not None:
        return stored
    if record.prediction is not None:
        return "prediction"
    if record.attention and record.attention[0].name in ("hop", "memory"):
        return "hops"
    if record.attention:
        return "lines" if record.attention[0].is_self else "matrix"
    return "decoding" if record.steps else "positions"


def to_millimetres(width: str | float) -> float:
    """Convert a width to millimetres.

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
    if not MIN_WIDTH <= value <= MAX_WIDTH:
        raise UsageError(f"width must be {MIN_WIDTH:g} to {MAX_WIDTH:g} millimetres, not {value:g}")
    return value
