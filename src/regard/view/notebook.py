"""Records in notebooks: a static picture first, then a frame with the page that takes its place.

What a notebook shows depends on its trust. Scripts and frames are taken out of notebooks that are not trusted, and
sites that show notebooks do so as well: the picture, an `img` whose address holds the SVG itself, stays. Where the
small script below it runs, the frame is shown instead. Nothing is loaded, no name is left behind in the notebook.
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
from regard.view.record.record import Record
from regard.view.record.texts import escape_invisible
from regard.view.selection import select_attention
from regard.view.terminal_views import render_view

BUDGET = 1_000_000  # bytes of everything that a cell keeps
HEIGHT = 480  # pixels of the frame
WIDTH = 150.0  # millimetres of the picture
_SCRIPT = (
    "for(const box of document.querySelectorAll('[data-regard=\"{name}\"]')){{const frame=box.querySelector('iframe');"
    "if(frame){{frame.hidden=false;box.firstElementChild.hidden=true}}}}"
)


class NotebookOutput:
    """A record as the output of a cell."""

    def __init__(self, record: Record, view: str = "", *, theme: str = "light", height: int = HEIGHT, **chosen: Any):
        """Take a record and what of it is to be seen; settings are those of `figure`."""
        self.record, self.height = record, height
        self.figure = figure(record, view, **{"width": WIDTH, "theme": theme, **chosen})
        self.state = _state(record, **chosen)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return mimebundle(self.record, self.figure, self.state, height=self.height)

    def __repr__(self) -> str:
        return _plain(self.record, self.figure)


def mimebundle(
    record: Record, drawn: Figure, state: Mapping[str, Any], *, height: int = HEIGHT, max_tokens: int = BUDGET
) -> dict[str, str]:
    """Return what a notebook shows of a record: HTML for most, SVG, and text for terminals.

    `state` is what the page opens with beside the view.
    """
    svg, plain = drawn.svg, _plain(record, drawn)
    address = base64.b64encode(svg.encode("utf-8", "replace")).decode("ascii")
    about = html.escape(escape_invisible(f"{drawn.about}: {record.title}"))
    style = "max-width:100%;height:auto"
    still = f'<img alt="{about}" style="{style}" src="data:image/svg+xml;base64,{address}">'
    room = max_tokens - len(svg.encode("utf-8", "replace")) - len(plain.encode("utf-8", "replace")) - len(still) - 2000
    page = _page(replace(record, view={**record.view, **state, "view": drawn.view}), room)
    if page is None:
        told = (
            "The page of this record is too large for a cell: save it with .see(&quot;page.html&quot;) and open that."
        )
        made = f"<div>{still}<p><small>{told}</small></p></div>"
    else:
        name = hashlib.sha256(f"{record.id}{drawn.view}{svg}".encode("utf-8", "replace")).hexdigest()[:16]
        frame = (
            f'<iframe hidden sandbox="allow-scripts allow-downloads" title="{about}" '
            f"style=\"width:100%;height:{int(height)}px;border:0\" srcdoc='{_quoted(page)}'></iframe>"
        )
        script = _SCRIPT.format(name=name)
        made = f'<div data-regard="{name}"><div>{still}</div>{frame}</div><script>{script}</script>'
    return {"text/html": made, "image/svg+xml": svg, "text/plain": plain}


def _state(
    record: Record,
    attention: str = "",
    layer: int | None = None,
    head: int | None = None,
    words: bool = False,
    token: str | int | None = None,
    **_others: Any,
) -> dict[str, Any]:
    """Return the page's state that shows what a figure does."""
    unit = {"unit": "word" if words else "piece"}
    if not record.attention:
        return unit
    chosen = select_attention(record, attention, layer, head, words=words)
    site = {"attn": chosen.attention.name, "layer": chosen.layer, "head": chosen.head or 0, "measured": chosen.is_best}
    place = chosen.find_row(token)
    return {**unit, **site, **({} if place is None else {"q": place})}


def in_notebook() -> bool:
    """Whether this runs in a notebook's kernel; nothing is imported to find out."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def _page(record: Record, room: int) -> str | None:
    """Return the page with as many whole layers as there is room for; None where there is not even room for one."""
    best = [record.best[1]] if record.best else [seen.layers[-1] for seen in record.attention]
    if sum(math.prod(seen.shape) for seen in record.attention) > 64 * room:
        return None  # too much even to try
    for full, alone in ((True, False), (best, False), (best, True), ([], True)):
        page = page_from_json([_parts(record, full, best if alone else None)], title=record.title, framed=True)
        if len(_quoted(page).encode("utf-8", "replace")) <= room:
            return page
    return None


def _parts(record: Record, full: bool | list[int], layers: list[int] | None) -> dict[str, Any]:
    """Return a record's JSON form: some layers whole, and matrices of these layers only; what is missing is said."""
    made = record.to_dict(full=full)
    if full is True:
        return made
    what = "small weights of other layers than the one it opens with"
    if layers is not None:
        what = "the matrices of other layers than the one it opens with: there are small pictures of them"
        kept = [
            {**one, "blocks": [part for part in one["blocks"] if part["layer"] in layers]} for one in made["attention"]
        ]
        made = {**made, "attention": kept}
    return {**made, "cut": [*made["cut"], {"dropped": what, "why": "a cell stays small"}]}


def _quoted(text: str) -> str:
    """Return text for an attribute in single quotes: the page's own quotes, which are many, stay as they are.

    >>> _quoted("<p title=\\"it's\\">&")
    '&lt;p title="it&#39;s">&amp;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&#39;")


def _plain(record: Record, drawn: Figure) -> str:
    return render_view(record, drawn.view, width=96)
