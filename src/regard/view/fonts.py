"""Which font of this machine has the signs of a text, asked of fontconfig: Cairo itself looks for no other one."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

USUAL = "Helvetica"


def font_for(text: str) -> tuple[str, str]:
    """Return a family that has all signs of a text ("" for the usual one), and the signs that no font has."""
    unknown = [sign for sign in dict.fromkeys(text) if not sign.isascii()]
    if not unknown or not _covered(USUAL):
        return "", ""
    missing = [sign for sign in unknown if not _has(USUAL, sign)]
    if not missing:
        return "", ""
    families = [family for sign in missing if (family := _family(sign)) and _has(family, sign)]
    best = max(families, key=lambda family: sum(_has(family, sign) for sign in unknown), default="")
    return best, "".join(sign for sign in missing if not best or not _has(best, sign))


def _has(family: str, sign: str) -> bool:
    return any(first <= ord(sign) <= last for first, last in _covered(family))


@cache
def _family(sign: str) -> str:
    return _asked(f"sans-serif:charset={ord(sign):x}", "%{family[0]}")


@cache
def _covered(family: str) -> tuple[tuple[int, int], ...]:
    """Return the ranges of signs that a family has; nothing where nobody can say."""
    ranges = []
    for part in _asked(family, "%{charset}").split():
        first, _, last = part.partition("-")
        ranges.append((int(first, 16), int(last or first, 16)))
    return tuple(ranges)


def _asked(pattern: str, form: str) -> str:
    """Return what fontconfig says of the font for a pattern."""
    program = shutil.which("fc-match")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "--format", form, pattern], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
