"""Records as one self-contained HTML page: it needs no network, no server and no script of others."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources

from regard.errors import UsageError
from regard.view.record import SCHEMA, Record

_SCRIPTS = ("record.js", "draw.js", "page.js")  # in the order in which one builds on another
_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def page(records: Sequence[Record], *, title: str) -> str:
    """Return the page: texts enter it as data only, and its policy allows no script but its own."""
    if not records:
        raise UsageError("a page needs at least one record")
    style, script = _asset("page.css"), _script()
    parts = {
        "title": html.escape(title),
        "style": style,
        "style-digest": _digest(style),
        "script": script,
        "script-digest": _digest(script),
        "data": embedded({"regard": SCHEMA, "title": title, "records": [record.to_dict() for record in records]}),
    }
    return re.sub(r"\{\{([a-z-]+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def embedded(data: object) -> str:
    r"""Return JSON that can stand inside a script element: nothing in it can end the element.

    >>> embedded({"text": "</script>"})
    '{"text":"\\u003c/script\\u003e"}'
    """
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)


def _script() -> str:
    """Return the modules joined into one: browsers refuse imports between files that are opened from disk."""
    joined = "\n".join(_asset(name) for name in _SCRIPTS)
    return re.sub(r"^export ", "", re.sub(r"^import .*\n", "", joined, flags=re.MULTILINE), flags=re.MULTILINE)


def _asset(name: str) -> str:
    return (resources.files("regard.view") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
