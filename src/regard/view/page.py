"""Records as one self-contained HTML page: it needs no network, no server and no script of others.

The page is plain modules in `assets/`. In a file they are joined into one inline script, because browsers refuse
imports between files that are opened from disk; a server gives them as they are.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

from regard.errors import UsageError
from regard.view.policy import digest
from regard.view.record import Record, visible
from regard.view.schema import SCHEMA
from regard.view.squeeze import squeezed

FIRST = "page.js"  # the module that imports all others
BUDGET = 3_000_000  # characters of matrices that a page holds in full; beyond it layers are sparse
_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
_HALVES = re.compile("[\ud800-\udfff]")  # no file can hold them as they are
_IMPORT = re.compile(r'^import [^;]* from "\./([a-z-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_OWN = "base-uri 'none'; form-action 'none'"
POLICY_SERVED = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    f"{_OWN}; frame-ancestors 'none'"
)


def page(records: Sequence[Record], *, title: str, framed: bool = False) -> str:
    """Return the page: texts enter it as data only, and its policy allows no script but its own.

    `framed` is for a notebook's frame: the views without the bar above them.
    """
    if not records:
        raise UsageError("a page needs at least one record")
    return page_of([fitted(record) for record in records], title=title, framed=framed)


def page_of(records: Sequence[Mapping[str, Any]], *, title: str, framed: bool = False) -> str:
    """Return the page of records in their JSON form."""
    style, script = asset("page.css"), joined()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; style-src 'sha256-{digest(style)}'; "
        f"img-src data:; {_OWN}"
    )
    return _filled(
        title,
        {"regard": SCHEMA, "title": title, "records": list(records)},
        policy=f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        style=f"<style>{style}</style>",
        script=f'<script type="module">{script}</script>',
        frame=' class="framed"' if framed else "",
    )


def served_page(record: str, *, title: str) -> str:
    """Return the page that a server gives: it asks for its modules and records itself."""
    others = "".join(f'<link rel="modulepreload" href="/app/{name}">' for name in modules())
    return _filled(
        title,
        {"regard": SCHEMA, "title": title, "served": True, "record": record},
        policy="",
        style=f'<link rel="stylesheet" href="/app/page.css">{others}',
        script=f'<script type="module" src="/app/{FIRST}"></script>',
        frame="",
    )


def index_page(summaries: Iterable[Mapping[str, Any]], *, title: str, live: bool = False) -> str:
    """Return the list of a server's records, each a link to its page; a `live` one without any looks for the first."""
    lines = []
    for one in summaries:
        facts = [one.get("task", ""), one["made"].get("model", ""), one["made"].get("when", "")[:10]]
        about = html.escape(visible(" · ".join(str(fact) for fact in facts if fact)))
        name, target = (html.escape(visible(one.get(key) or "")) for key in ("title", "target"))
        place = html.escape(quote(one["id"], safe=""))
        lines.append(
            f'<li><a href="/r/{place}"><span dir="auto">{name or "untitled"}</span></a> '
            f'<span class="said" dir="auto">{target}</span> <span class="fine">{about}</span></li>'
        )
    shown = f'<ol class="records">{"".join(lines)}</ol>' if lines else '<p class="notice">There is no record yet.</p>'
    head = f"<title>{html.escape(visible(title))}</title>"
    if live and not lines:
        head += '<meta http-equiv="refresh" content="2;url=/newest">'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">{head}'
        '<link rel="stylesheet" href="/app/page.css"></head><body><main id="page">'
        f"<header><h1>{html.escape(visible(title))}</h1></header>{shown}</main></body></html>"
    )


def fitted(record: Record) -> dict[str, Any]:
    """Return a record's JSON form for a page: of matrices that are too much, only the opened layer's are whole."""
    if sum(_size(seen.shape) for seen in record.attention) <= BUDGET:
        return record.to_dict()
    made = record.to_dict(full=[record.best[1]] if record.best else [seen.layers[-1] for seen in record.attention])
    told = {"dropped": "small weights of other layers than the one it opens with", "why": "the page stays small"}
    return {**made, "cut": [*made["cut"], told]}


def _size(shape: Sequence[int]) -> int:
    layers, heads, rows, columns = shape
    return layers * heads * rows * columns


def embedded(data: object) -> str:
    r"""Return JSON that can stand inside a script element: nothing in it can end the element.

    >>> embedded({"text": "</script>"})
    '{"text":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)
    return _HALVES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def modules(first: str = FIRST) -> Iterator[str]:
    """Give the names of a module and of what it imports, each after those that it builds on.

    >>> list(modules("words.js"))
    ['numbers.js', 'words.js']
    """
    yield from _ordered(first, set())


def _ordered(name: str, known: set[str]) -> Iterator[str]:
    if name in known:
        return
    known.add(name)
    for inner in _IMPORT.findall(asset(name)):
        yield from _ordered(inner, known)
    yield name


@cache
def joined() -> str:
    """Return the modules as one: nothing is left of their imports and exports."""
    whole = (_EXPORT.sub("", _IMPORT.sub("", asset(name))) for name in modules())
    return squeezed("\n".join(whole))


@cache
def script(name: str) -> str:
    """Return a module as it is given to browsers."""
    return squeezed(asset(name))


def asset(name: str) -> str:
    """Return a file of the page."""
    return (resources.files("regard.view") / "assets" / name).read_text(encoding="utf-8")


def asset_names() -> Collection[str]:
    """Return the names of the files that a server may give: modules and the style."""
    files = (resources.files("regard.view") / "assets").iterdir()
    return {file.name for file in files if file.name.endswith((".js", ".css"))}


def _filled(title: str, data: object, **parts: str) -> str:
    parts = {**parts, "title": html.escape(visible(title)), "data": embedded(data)}
    return re.sub(r"\{\{([a-z-]+)\}\}", lambda found: parts[found[1]], asset("page.html"))
