"""Runs Regard's own command line, as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def regard(*arguments: object, stdin: str | None = None) -> str:
    """Return what a command writes; a failing command ends the bar with its message."""
    words = [sys.executable, "-m", "regard", *map(str, arguments)]
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words[2:])}: exit {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def regard_json(*arguments: object) -> list[dict[str, Any]]:
    """Return the JSON lines that a command writes."""
    return [json.loads(line) for line in regard(*arguments, "--json").splitlines()]
