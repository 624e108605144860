"""Records as what people look at: files by their ending, a page in the browser, a notebook's cell; any numbers too."""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import UsageError, nearest
from regard.view.notebook import Shown, in_notebook
from regard.view.record import Attention, Record, Side

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
    return show(record_of(weights, rows, cols, title=title), path, view=view, open_browser=open_browser)


def record_of(
    weights: Any, rows: Sequence[str] | None = None, cols: Sequence[str] | None = None, *, title: str = ""
) -> Record:
    """Return a record of any weights.

    >>> made = record_of([[0.25, 0.75]], rows=["it"], cols=["street", "animal"])
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
    others = [f"column {number}" for number in range(widths)] if cols is None else [*map(str, cols)]
    for what, given, needed in (("rows", names, heights), ("cols", others, widths)):
        if len(given) != needed:
            raise UsageError(f"{what} ({len(given)}) must be as many as the weights have: {needed}")
    own = rows is not None and names == others
    sides = {"source": _side(others)} if own else {"source": _side(others), "target": _side(names)}
    attention = Attention("weights", "source" if own else "target", "source", values, tuple(range(len(values))))
    return Record(title or "weights", sides, (attention,), task="see")


def _side(names: Sequence[str]) -> Side:
    return Side.of_labels(" ".join(names), names)


def show(record: Record, path: str | Path | None = None, *, view: str = "", open_browser: bool = True) -> Any:
    """Write a record to a file by its ending, or show it: in a notebook's cell, else as a page in the browser."""
    if path is not None:
        return write_record(record, path, view=view)
    if in_notebook():
        return Shown(record, view)
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
    from regard.checkpoint.files import write_file
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
