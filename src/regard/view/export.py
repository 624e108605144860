"""Records as what people look at: files by their ending, a page in the browser, a notebook's cell; any numbers too.

Drawings as PNG and PDF, through CairoSVG (the extra `figures`).

Cairo's plain text puts one character after another, from left to right and in a single font: scripts that need more
are drawn well in SVG only, where the viewer shapes them.
"""

from __future__ import annotations

import tempfile
import unicodedata
import warnings
import webbrowser
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from regard.errors import UsageError, nearest
from regard.view.drawing import Drawing, TextLine
from regard.view.notebook import NotebookOutput, in_notebook
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.svg import svg_text

FIGURES = (".svg", ".png", ".pdf", ".tex")
ENDINGS = (".html", ".json", *FIGURES)
MOST = 2**28  # weights that a file can have


def see(
    weights: Any,
    rows: Sequence[str] | None = None,
    cols: Sequence[str] | None = None,
    *,
    title: str = "",
    path: str | Path | None = None,
    view: str = "",
    open_browser: bool = True,
) -> Any:
    """Show any weights: [Q, K], [H, Q, K] or [layers, H, Q, K], of NumPy, torch or plain lists.

    `rows` and `cols` are names, of tokens or anything; where they are the same list, rows look at their own text.
    """
    return show_record(
        record_from_weights(weights, rows, cols, title=title), path, view=view, open_browser=open_browser
    )


def record_from_weights(
    weights: Any, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None, *, title: str = ""
) -> Record:
    """Return a record of any weights.

    >>> made = record_from_weights([[0.25, 0.75]], rows=["it"], columns=["street", "animal"])
    >>> made.attention[0].shape, made.texts["source"].tokens
    ((1, 1, 1, 2), ('street', 'animal'))
    """
    values = np.asarray(weights.detach().cpu().float() if hasattr(weights, "detach") else weights, dtype=np.float32)
    if not 2 <= values.ndim <= 4:
        raise UsageError(f"weights are [Q, K], [H, Q, K] or [layers, H, Q, K], not {list(values.shape)}")
    values = values.reshape((1,) * (4 - values.ndim) + values.shape)
    if values.size and values.max() > 1 + 1e-3:
        raise UsageError(f"weights lie between 0 and 1, but the largest is {values.max():.3g}: normalise them first")
    heights, widths = values.shape[2:]
    names = [f"row {number}" for number in range(heights)] if rows is None else [*map(str, rows)]
    others = [f"column {number}" for number in range(widths)] if columns is None else [*map(str, columns)]
    for what, given, needed in (("rows", names, heights), ("cols", others, widths)):
        if len(given) != needed:
            raise UsageError(f"{what} ({len(given)}) must be as many as the weights have: {needed}")
    own = rows is not None and names == others
    sides = {"source": _side(others)} if own else {"source": _side(others), "target": _side(names)}
    attention = AttentionRecord("weights", "source" if own else "target", "source", values, tuple(range(len(values))))
    return Record(title or "weights", sides, (attention,), task="see")


def _side(names: Sequence[str]) -> RecordText:
    return RecordText.from_labels(" ".join(names), names)


def show_record(record: Record, path: str | Path | None = None, *, view: str = "", open_browser: bool = True) -> Any:
    """Write a record to a file by its ending, or show it: in a notebook's cell, else as a page in the browser."""
    if path is not None:
        return write_record(record, path, view=view)
    if in_notebook():
        return NotebookOutput(record, view)
    place = Path(tempfile.mkdtemp(prefix="regard-")) / "page.html"
    write_record(record, place, view=view)
    if open_browser:
        webbrowser.open(place.as_uri())
    return place


def write_record(
    record: Record,
    path: str | Path,
    *,
    view: str = "",
    layers: Collection[int] | None = None,
    **figure: Any,
) -> Path:
    """Write a record as a page, as data or as a figure of one view, by the file's ending."""
    place = Path(path)
    ending = place.suffix.lower()
    check_ending(place)
    if ending in FIGURES:
        from regard.view.figure import figure as drawn

        return drawn(record, view, **figure).save(place)
    if place.is_dir():
        raise UsageError(f"{path} is a folder: name a file")
    check_size(record)
    record = with_view(record, view)
    if ending == ".json":
        return record.save(place, True if layers is None else layers)
    from regard.checkpoint.atomic import write_file
    from regard.view.page import page, page_from_json

    title = record.title or "Regard"
    made = page([record], title=title) if layers is None else page_from_json([record.to_dict(full=layers)], title=title)
    write_file(place, made.encode("utf-8", "replace"))
    return place


def check_ending(path: str | Path) -> None:
    """Refuse a file whose ending says nothing that can be written."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        known = f"{', '.join(ENDINGS)}{nearest(ending, ENDINGS)}"
        raise UsageError(f"{path}: the ending says what is written, and must be one of {known}")


def check_size(record: Record) -> None:
    """Refuse a record that is too large for a file."""
    count = sum(int(np.prod(seen.shape, dtype=np.int64)) for seen in record.attention)
    if count > MOST:
        longest = max(len(side.tokens) for side in record.texts.values())
        raise UsageError(
            f"{longest:,} tokens are too many for a file of every head ({count:,} weights): look at it served, "
            "without --out, or shorten the text"
        )


def with_view(record: Record, view: str) -> Record:
    """Return the record opening with a view."""
    return replace(record, view={**record.view, "view": view}) if view else record


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
    texts = "".join(mark.text for mark in drawing.marks if isinstance(mark, TextLine))
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
