"""Records in notebooks: a static image first, then a frame with the page that replaces it.

Scripts and frames are removed from notebooks that are not trusted, and by sites that render notebooks: the image, whose
data URL holds the SVG itself, stays. Where the small script below it runs, the frame is shown instead. Nothing is
loaded, and no global name is left behind in the notebook.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regard.view.figure import Figure, figure
from regard.view.page import page_from_json
from regard.view.record.json_form import AttentionDict, OmissionDict, RecordDict
from regard.view.record.record import Record
from regard.view.record.texts import escape_invisible
from regard.view.selection import select_attention
from regard.view.terminal_views import render_view

MAX_CELL_BYTES = 1_000_000
FRAME_HEIGHT = 480  # pixels
IMAGE_WIDTH = 150.0  # millimetres
_SCRIPT = (
    "for(const box of document.querySelectorAll('[data-regard=\"{name}\"]')){{const frame=box.querySelector('iframe');"
    "if(frame){{frame.hidden=false;box.firstElementChild.hidden=true}}}}"
)


class NotebookOutput:
    """A record as the output of a cell."""

    def __init__(
        self, record: Record, view: str = "", *, theme: str = "light", height: int = FRAME_HEIGHT, **options: Any
    ):
        """Store a record and draw its figure; options are those of `figure`."""
        self.record = record
        self.height = height
        self.figure = figure(record, view, **{"width": IMAGE_WIDTH, "theme": theme, **options})
        self.state = _page_state(record, **options)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return mimebundle(self.record, self.figure, self.state, height=self.height)

    def __repr__(self) -> str:
        return _render_text(self.record, self.figure)


def mimebundle(
    record: Record,
    figure: Figure,
    state: Mapping[str, Any],
    *,
    height: int = FRAME_HEIGHT,
    max_bytes: int = MAX_CELL_BYTES,
) -> dict[str, str]:
    """MIME bundle of a record: HTML, SVG, and text for terminals; `state` is the initial state of the page.

    The bundle has at most `max_bytes` bytes.
    """
    svg = figure.svg
    text = _render_text(record, figure)
    svg_base64 = base64.b64encode(svg.encode("utf-8", "replace")).decode("ascii")
    about = html.escape(escape_invisible(f"{figure.about}: {record.title}"))
    style = "max-width:100%;height:auto"
    image = f'<img alt="{about}" style="{style}" src="data:image/svg+xml;base64,{svg_base64}">'
    used_bytes = len(svg.encode("utf-8", "replace")) + len(text.encode("utf-8", "replace")) + len(image)
    page_record = replace(record, view={**record.view, **state, "view": figure.view})
    page = _fit_page(page_record, max_bytes - used_bytes - 2000)
    if page is None:
        notice = (
            "The page of this record is too large for a cell: save it with .see(&quot;page.html&quot;) and open that."
        )
        content = f"<div>{image}<p><small>{notice}</small></p></div>"
    else:
        name = hashlib.sha256(f"{record.id}{figure.view}{svg}".encode("utf-8", "replace")).hexdigest()[:16]
        frame = (
            f'<iframe hidden sandbox="allow-scripts allow-downloads" title="{about}" '
            f"style=\"width:100%;height:{int(height)}px;border:0\" srcdoc='{_escape_attribute(page)}'></iframe>"
        )
        script = _SCRIPT.format(name=name)
        content = f'<div data-regard="{name}"><div>{image}</div>{frame}</div><script>{script}</script>'
    return {"text/html": content, "image/svg+xml": svg, "text/plain": text}


def _page_state(
    record: Record,
    attention: str = "",
    layer: int | None = None,
    head: int | None = None,
    words: bool = False,
    token: str | int | None = None,
    **_figure_options: Any,
) -> dict[str, Any]:
    """State of the page that shows the same as a figure."""
    unit = {"unit": "word" if words else "subword"}
    if not record.attention:
        return unit
    selection = select_attention(record, attention, layer, head, words=words)
    state = {
        **unit,
        "attention": selection.attention.name,
        "layer": selection.layer,
        "head": selection.head or 0,
    }
    query = selection.find_row(token)
    return state if query is None else {**state, "q": query}


def in_notebook() -> bool:
    """Whether this runs in a notebook kernel; nothing is imported to find out."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def _fit_page(record: Record, max_bytes: int) -> str | None:
    """The page with as many full layers as fit; None where not even one fits."""
    first_layers = [record.best[1]] if record.best else [attention.layers[-1] for attention in record.attention]
    if sum(math.prod(attention.shape) for attention in record.attention) > 64 * max_bytes:
        return None  # too many weights to try
    for full, layers in ((True, None), (first_layers, None), (first_layers, first_layers), ([], first_layers)):
        page = page_from_json([_reduce_record(record, full, layers)], title=record.title, framed=True)
        if len(_escape_attribute(page).encode("utf-8", "replace")) <= max_bytes:
            return page
    return None


def _reduce_record(record: Record, full: bool | list[int], layers: list[int] | None) -> RecordDict:
    """JSON form with the layers in `full` stored in full and matrices of `layers` only; omissions are listed."""
    fields = record.to_dict(full=full)
    if full is True:
        return fields
    omitted = "small weights of other layers than the one it opens with"
    if layers is not None:
        omitted = "the matrices of other layers than the one it opens with, which have thumbnails"
        fields = {**fields, "attention": [_keep_layers(attention, layers) for attention in fields["attention"]]}
    omission: OmissionDict = {"reason": "a cell stays small", "dropped": omitted}
    return {**fields, "omissions": [*fields["omissions"], omission]}


def _keep_layers(attention: AttentionDict, layers: list[int]) -> AttentionDict:
    return {**attention, "blocks": [block for block in attention["blocks"] if block["layer"] in layers]}


def _escape_attribute(text: str) -> str:
    """Escape text for an attribute in single quotes: the many double quotes of a page stay as they are.

    >>> _escape_attribute("<p title=\\"it's\\">&")
    '&lt;p title="it&#39;s">&amp;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&#39;")


def _render_text(record: Record, drawn: Figure) -> str:
    return render_view(record, drawn.view, width=96)
