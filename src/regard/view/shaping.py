r"""Text for converters that put one sign after another from left to right: ordered, and Arabic letters joined.

Browsers and TeX order and join letters themselves. Cairo's plain text does not: here words of right-to-left scripts are
written in the order in which they are seen, with Unicode's own forms of Arabic letters (isolated, initial, medial,
final), which `unicodedata` knows.
"""

from __future__ import annotations

import unicodedata
from functools import cache

from regard.view.lettering import clusters, is_from_right

_MIRRORED = {"(": ")", ")": "(", "[": "]", "]": "[", "<": ">", ">": "<", "{": "}", "}": "{", "«": "»", "»": "«"}


def seen_order(text: str) -> str:
    """Return text in the order in which it is seen, from left to right.

    >>> seen_order("שלום 12!") == "!12 םולש", seen_order("dog"), seen_order("سلام") == "ﻡﻼﺳ"
    (True, 'dog', True)
    """
    if text.isascii() or not any(unicodedata.bidirectional(sign) in ("R", "AL") for sign in text):
        return text
    base = is_from_right(text)
    runs: list[tuple[bool, list[str]]] = []
    for cluster in clusters(joined(text)):
        kind = unicodedata.bidirectional(cluster[0])
        from_right = kind in ("R", "AL") or (kind not in ("L", "EN", "AN") and base)
        if kind not in ("L", "EN", "AN", "R", "AL") and runs and not base:
            from_right = False
        if runs and runs[-1][0] == from_right:
            runs[-1][1].append(cluster)
        else:
            runs.append((from_right, [cluster]))
    seen = [[_MIRRORED.get(one, one) for one in reversed(run)] if turned else run for turned, run in runs]
    return "".join("".join(run) for run in (reversed(seen) if base else seen))


def joined(text: str) -> str:
    """Return text whose Arabic letters have the forms that their neighbours ask for."""
    forms = _forms()
    letters = list(text)
    made: list[str] = []
    place = 0
    while place < len(letters):
        sign = letters[place]
        if sign not in forms:
            made.append(sign)
            place += 1
            continue
        before = _neighbour(letters, place, -1)
        after = _neighbour(letters, place, 1)
        from_before = before in forms and "initial" in forms[before]
        pair = sign + after if place + 1 < len(letters) and letters[place + 1] == after else ""
        if pair in forms:  # lam and alef are one letter
            made.append(forms[pair].get("final" if from_before else "isolated", pair))
            place += 2
            continue
        to_after = "initial" in forms[sign] and after in forms and "final" in forms[after]
        kind = ("medial" if to_after else "final") if from_before else ("initial" if to_after else "isolated")
        made.append(forms[sign].get(kind, sign))
        place += 1
    return "".join(made)


def _neighbour(letters: list[str], place: int, step: int) -> str:
    """Return the next letter on one side; marks that stand on letters do not part them."""
    place += step
    while 0 <= place < len(letters) and unicodedata.category(letters[place]) == "Mn":
        place += step
    return letters[place] if 0 <= place < len(letters) else ""


@cache
def _forms() -> dict[str, dict[str, str]]:
    """Return the forms of each Arabic letter, and of lam with alef, by kind."""
    found: dict[str, dict[str, str]] = {}
    for code in (*range(0xFB50, 0xFBB2), *range(0xFBD3, 0xFC00), *range(0xFE80, 0xFEFD)):
        kind, _, letters = unicodedata.decomposition(chr(code)).partition(" ")
        signs = "".join(chr(int(one, 16)) for one in letters.split())
        if kind.strip("<>") in ("isolated", "initial", "medial", "final") and 1 <= len(signs) <= 2 and " " not in signs:
            found.setdefault(signs, {}).setdefault(kind.strip("<>"), chr(code))
    return found
