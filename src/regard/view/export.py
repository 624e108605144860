"""Showing and exporting records: a page in the browser, a notebook cell, or a file by its extension.

PNG and PDF are rendered by CairoSVG (the extra `figures`). Cairo's plain text sets one character after another, from
left to right and in a single font: scripts that need shaping are rendered well in SVG only.
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
MAX_ATTENTION_WEIGHTS = 2**28  # of a file


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
    """Show any attention weights: [Q, K], [H, Q, K] or [layers, H, Q, K], as NumPy array, tensor or list.

    `rows` and `cols` are labels; equal lists mean self-attention.
    """
    return show_record(
        record_from_weights(weights, rows, cols, title=title), path, view=view, open_browser=open_browser
    )


def record_from_weights(
    weights: Any, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None, *, title: str = ""
) -> Record:
    """Build a record from any weights.

    >>> record = record_from_weights([[0.25, 0.75]], rows=["it"], columns=["street", "animal"])
    >>> record.attention[0].shape, record.texts["source"].tokens
    ((1, 1, 1, 2), ('street', 'animal'))
    """
    if hasattr(weights, "detach"):
        weights = weights.detach().cpu().float()
    values = np.asarray(weights, dtype=np.float32)
    if not 2 <= values.ndim <= 4:
        raise UsageError(f"weights must be [Q, K], [H, Q, K] or [layers, H, Q, K], not {list(values.shape)}")
    values = values.reshape((1,) * (4 - values.ndim) + values.shape)
    if values.size and values.max() > 1 + 1e-3:
        raise UsageError(
            f"weights must be between 0 and 1, but the largest is {values.max():.3g}: normalise them first"
        )
    num_rows, num_columns = values.shape[2:]
    row_labels = _check_labels("rows", rows, num_rows, "row")
    column_labels = _check_labels("cols", columns, num_columns, "column")
    texts = {"source": _text_of_labels(column_labels)}
    is_self = rows is not None and row_labels == column_labels
    if not is_self:
        texts["target"] = _text_of_labels(row_labels)
    attention = AttentionRecord(
        "weights",
        "source" if is_self else "target",
        columns="source",
        stored=values,
        layers=tuple(range(len(values))),
    )
    return Record(title or "weights", texts, (attention,), task="see")


def _check_labels(parameter: str, labels: Sequence[str] | None, count: int, axis: str) -> list[str]:
    if labels is None:
        return [f"{axis} {index}" for index in range(count)]
    if len(labels) != count:
        raise UsageError(f"{parameter} has {len(labels)} labels, but the weights have {count}")
    return [str(label) for label in labels]


def _text_of_labels(labels: Sequence[str]) -> RecordText:
    return RecordText.from_labels(" ".join(labels), labels)


def show_record(record: Record, path: str | Path | None = None, *, view: str = "", open_browser: bool = True) -> Any:
    """Write a record to a file, or show it: in a notebook cell, else as a page in the browser."""
    if path is not None:
        return write_record(record, path, view=view)
    if in_notebook():
        return NotebookOutput(record, view)
    page_path = Path(tempfile.mkdtemp(prefix="regard-")) / "page.html"
    write_record(record, page_path, view=view)
    if open_browser:
        webbrowser.open(page_path.as_uri())
    return page_path


def write_record(
    record: Record,
    path: str | Path,
    *,
    view: str = "",
    layers: Collection[int] | None = None,
    **figure: Any,
) -> Path:
    """Write a record as a page, as JSON or as a figure of one view, by the file extension."""
    out = Path(path)
    extension = out.suffix.lower()
    check_ending(out)
    if extension in FIGURES:
        from regard.view.figure import figure as draw_figure

        return draw_figure(record, view, **figure).save(out)
    if out.is_dir():
        raise UsageError(f"{path} is a folder: name a file")
    check_export_size(record)
    record = with_view(record, view)
    if extension == ".json":
        return record.save(out, True if layers is None else layers)
    from regard.checkpoint.atomic import write_file
    from regard.view.page import page, page_from_json

    title = record.title or "Regard"
    if layers is None:
        content = page([record], title=title)
    else:
        content = page_from_json([record.to_dict(full=layers)], title=title)
    write_file(out, content.encode("utf-8", "replace"))
    return out


def check_ending(path: str | Path) -> None:
    """Raise for a file extension of no known format."""
    extension = Path(path).suffix.lower()
    if extension not in ENDINGS:
        allowed = f"{', '.join(ENDINGS)}{nearest(extension, ENDINGS)}"
        raise UsageError(f"{path}: the extension selects the format, and must be one of {allowed}")


def check_export_size(record: Record) -> None:
    """Raise `UsageError` for a record with too many attention weights for one HTML file."""
    num_attention_weights = sum(int(np.prod(attention.shape, dtype=np.int64)) for attention in record.attention)
    if num_attention_weights > MAX_ATTENTION_WEIGHTS:
        num_tokens = max(len(text.tokens) for text in record.texts.values())
        raise UsageError(
            f"{num_tokens:,} tokens are too many for one file: it would hold {num_attention_weights:,} attention "
            "weights. Leave out --out to serve the page, or shorten the text"
        )


def with_view(record: Record, view: str) -> Record:
    """Set the view that a record opens with."""
    return replace(record, view={**record.view, "view": view}) if view else record


_FIRST_COMPLEX = "\u0590"  # below it: Latin, Greek, Cyrillic, Armenian


def png(drawing: Drawing, title: str, dpi: int = 300) -> bytes:
    """Render a drawing as PNG."""
    return bytes(_import_cairosvg().svg2png(bytestring=_cairo_svg(drawing, title), dpi=dpi))


def pdf(drawing: Drawing, title: str) -> bytes:
    """Render a drawing as PDF; text stays text."""
    return bytes(_import_cairosvg().svg2pdf(bytestring=_cairo_svg(drawing, title)))


def complex_scripts(text: str) -> list[str]:
    """Scripts of a text that need shaping, reordering or fonts that Cairo does not choose.

    >>> complex_scripts("Ångström, Ωμέγα, Москва"), complex_scripts("سلام नमस्ते 日")
    ([], ['Arabic', 'CJK', 'Devanagari'])
    """
    letters = {letter for letter in text if letter >= _FIRST_COMPLEX and unicodedata.category(letter) == "Lo"}
    names = {unicodedata.name(letter, "unknown").partition(" ")[0] for letter in letters}
    return sorted(name if name == "CJK" else name.title() for name in names)


def _cairo_svg(drawing: Drawing, title: str) -> bytes:
    """SVG for Cairo, which knows no writing direction; a warning names scripts that it cannot render well."""
    texts = "".join(mark.text for mark in drawing.marks if isinstance(mark, TextLine))
    scripts = complex_scripts(texts)
    if scripts:
        warnings.warn(
            f"PNG and PDF are drawn without shaping: letters of {', '.join(scripts)} may be missing, unjoined or in "
            "the wrong order; write .svg for them",
            stacklevel=4,
        )
    return svg_text(drawing, title=title, mirror_rtl=False).encode("utf-8", "replace")


def _import_cairosvg() -> ModuleType:
    try:
        import cairosvg
    except (ImportError, OSError) as error:  # OSError: the package is there, but the library cairo is not
        raise UsageError(
            f"PNG and PDF need CairoSVG, which cannot be used here ({error}): pip install 'regard[figures]', "
            "or write .svg or .tex, which need nothing"
        ) from error
    return cairosvg  # type: ignore[no-any-return]
