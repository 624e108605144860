"""What may be asked of a model over the page: a task, a text and a few options, nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from regard.errors import UsageError, nearest
from regard.view.record import Record

Run = Callable[[str, str, Mapping[str, Any]], Record]  # task, text, options → a new record

CHARACTERS = 20_000  # of a text
DEPTH = 16  # of JSON
BEAM = 16
MANY = 4_096  # tokens of a prefix, heads switched off
_LONG = 256  # characters of one of them


def read_asked(body: bytes, tasks: Collection[str]) -> tuple[str, str, dict[str, Any]]:
    """Return task, text and options of a request's JSON; anything else is refused.

    >>> read_asked(b'{"task": "translate", "text": "two dogs", "options": {"beam": 4}}', ["translate"])
    ('translate', 'two dogs', {'beam': 4})
    """
    try:
        asked = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the request is not JSON: {type(error).__name__}") from None
    if not isinstance(asked, dict) or _depth(asked) > DEPTH:
        raise UsageError("the request must be an object with task, text and options")
    unknown = set(asked) - {"task", "text", "options"}
    if unknown:
        raise UsageError(f"the request has {sorted(unknown)[0]!r:.60}: task, text and options are known")
    task, text, options = asked.get("task"), asked.get("text"), asked.get("options", {})
    if not isinstance(task, str) or task not in tasks:
        raise UsageError(f"the task must be one of {', '.join(sorted(tasks))}, not {task!r:.60}")
    if not isinstance(text, str) or not text.strip():
        raise UsageError("the text is missing")
    if len(text) > CHARACTERS:
        raise UsageError(f"the text has {len(text):,} characters: at most {CHARACTERS:,} are read here")
    return task, text, _options(options)


def _options(given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise UsageError("options must be an object")
    for name, value in given.items():
        check = _CHECKS.get(name)
        if check is None:
            raise UsageError(
                f"no such option: {name!r:.60}{nearest(str(name), _CHECKS)}: there are {', '.join(_CHECKS)}"
            )
        check(name, value)
    return dict(given)


def _whole(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= BEAM:
        raise UsageError(f"{name} must be a whole number from 1 to {BEAM}, not {value!r:.60}")


def _words(name: str, value: object) -> None:
    words = value if isinstance(value, list) else [None]
    if len(words) > MANY or not all(isinstance(one, str) and len(one) <= _LONG for one in words):
        raise UsageError(f"{name} must be a list of at most {MANY} texts of at most {_LONG} characters")


_CHECKS: dict[str, Callable[[str, object], None]] = {
    "beam": _whole,
    "off": _words,  # heads that are switched off: encoder.3.self:2
    "prefix": _words,  # tokens that the answer begins with
}


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max((_depth(one) for one in inner), default=0)
