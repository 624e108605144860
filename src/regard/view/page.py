"""Records as one self-contained HTML page that needs no network, no server and no third-party script.

The page consists of the JavaScript modules in `assets/`. A server serves them as they are. In a file they are bundled
into one inline script, because browsers refuse imports between files opened from disk.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from math import prod
from typing import Any
from urllib.parse import quote

from regard.errors import UsageError
from regard.view.csp import file_policy
from regard.view.record.json_form import OmissionDict, RecordDict
from regard.view.record.record import Record
from regard.view.record.schema import SCHEMA
from regard.view.record.texts import escape_invisible

ENTRY = "page.js"  # imports all other modules, directly or indirectly
MAX_WEIGHTS = 3_000_000  # beyond this, most layers of a page are stored sparsely
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_SURROGATES = re.compile("[\ud800-\udfff]")  # cannot be encoded as UTF-8
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|class|function\*?) (\w+))", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{([a-z-]+)\}\}")


def page(records: Sequence[Record], *, title: str, framed: bool = False) -> str:
    """HTML of a page: texts enter it as data only, and its policy allows no script but its own.

    `framed` is for a notebook's frame: the views without the bar above them.
    """
    if not records:
        raise UsageError("a page needs at least one record")
    return page_from_json([fit_to_budget(record) for record in records], title=title, framed=framed)


def page_from_json(records: Sequence[Mapping[str, Any]], *, title: str, framed: bool = False) -> str:
    """HTML of a page of records in their JSON form."""
    style = asset("page.css")
    script = bundle()
    return _fill_template(
        title,
        {"regard": SCHEMA, "title": title, "records": list(records)},
        policy=f'<meta http-equiv="Content-Security-Policy" content="{file_policy(script, style)}">',
        style=f"<style>{style}</style>",
        script=f'<script type="module">{script}</script>',
        frame=' class="framed"' if framed else "",
    )


def served_page(record: str, *, title: str) -> str:
    """HTML of a page that fetches its modules and records from the server."""
    preloads = "".join(f'<link rel="modulepreload" href="/app/{name}">' for name in module_order())
    return _fill_template(
        title,
        {"regard": SCHEMA, "title": title, "served": True, "record": record},
        policy="",
        style=f'<link rel="stylesheet" href="/app/page.css">{preloads}',
        script=f'<script type="module" src="/app/{ENTRY}"></script>',
        frame="",
    )


def index_page(summaries: Iterable[Mapping[str, Any]], *, title: str, live: bool = False) -> str:
    """HTML list of a server's records with links to their pages; an empty `live` list reloads itself."""
    items = [_index_item(summary) for summary in summaries]
    content = f'<ol class="records">{"".join(items)}</ol>' if items else '<p class="notice">There is no record yet.</p>'
    head = f"<title>{html.escape(escape_invisible(title))}</title>"
    if live and not items:
        head += '<meta http-equiv="refresh" content="2;url=/newest">'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">{head}'
        '<link rel="stylesheet" href="/app/page.css"></head><body><main id="page">'
        f"<header><h1>{html.escape(escape_invisible(title))}</h1></header>{content}</main></body></html>"
    )


def _index_item(summary: Mapping[str, Any]) -> str:
    provenance = summary["provenance"]
    facts = [summary.get("task", ""), provenance.get("model", ""), provenance.get("when", "")[:10]]
    about = html.escape(escape_invisible(" · ".join(str(fact) for fact in facts if fact)))
    title = html.escape(escape_invisible(summary.get("title") or ""))
    target = html.escape(escape_invisible(summary.get("target") or ""))
    path = html.escape(quote(summary["id"], safe=""))
    return (
        f'<li><a href="/r/{path}"><span dir="auto">{title or "untitled"}</span></a> '
        f'<span class="output-text" dir="auto">{target}</span> <span class="note">{about}</span></li>'
    )


def fit_to_budget(record: Record) -> RecordDict:
    """JSON form of a record for a page; if it has too many weights, only the layer shown first is stored in full."""
    if sum(prod(attention.shape) for attention in record.attention) <= MAX_WEIGHTS:
        return record.to_dict()
    full_layers = [record.best[1]] if record.best else [attention.layers[-1] for attention in record.attention]
    fields = record.to_dict(full=full_layers)
    omission: OmissionDict = {
        "reason": "the page stays small",
        "dropped": "small weights of other layers than the one it opens with",
    }
    return {**fields, "omissions": [*fields["omissions"], omission]}


def escape_json(data: object) -> str:
    r"""JSON that is safe inside a script element: nothing in it can end the element.

    >>> escape_json({"text": "</script>"})
    '{"text":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)
    return _SURROGATES.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def module_order(entry: str = ENTRY) -> Iterator[str]:
    """Names of a module and of all that it imports, dependencies first.

    >>> list(module_order("labels.js"))
    ['arrays.js', 'labels.js']
    """
    yield from _visit_module(entry, set())


def _visit_module(name: str, visited: set[str]) -> Iterator[str]:
    if name in visited:
        return
    visited.add(name)
    for _, dependency in _IMPORT.findall(asset(name)):
        yield from _visit_module(dependency, visited)
    yield name


@cache
def bundle() -> str:
    """The modules as one script; each keeps a scope of its own."""
    return "const modules = {};\n" + "".join(_module_function(name) for name in module_order())


def _module_function(name: str) -> str:
    """A module as a function that is called at once and returns the module's exports."""
    source = asset(name)
    exports = ", ".join(_EXPORT.findall(source))
    body = _EXPORT.sub("", _IMPORT.sub(r'const {\1} = modules["\2"];', source))
    return f'\nmodules["{name}"] = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();\n'


def asset(name: str) -> str:
    """Text of a file in `assets/`."""
    return (resources.files("regard.view") / "assets" / name).read_text(encoding="utf-8")


def asset_names() -> Collection[str]:
    """Names of the files that a server may serve: modules and the style sheet."""
    files = (resources.files("regard.view") / "assets").iterdir()
    return {file.name for file in files if file.name.endswith((".js", ".css"))}


def _fill_template(title: str, data: object, **parts: str) -> str:
    parts = {**parts, "title": html.escape(escape_invisible(title)), "data": escape_json(data)}
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], asset("page.html"))
