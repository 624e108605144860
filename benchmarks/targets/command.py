"""Run Regard's command line as a user does."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

MAX_MESSAGE = 3000  # characters of an error that are shown


def run_regard(*arguments: object, stdin: str | None = None) -> str:
    """Standard output of a command; a command that fails ends the script with its message."""
    command = [sys.executable, "-m", "regard", *map(str, arguments)]
    completed = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if completed.returncode:
        message = completed.stderr[-MAX_MESSAGE:]
        raise SystemExit(f"{' '.join(command[2:])}: exit {completed.returncode}\n{message}")
    return completed.stdout


def run_regard_json(*arguments: object) -> list[dict[str, Any]]:
    """JSON lines that a command prints."""
    return [json.loads(line) for line in run_regard(*arguments, "--json").splitlines()]


def train(*arguments: object) -> dict[str, Any]:
    """Run `regard train` and return its final report."""
    return next(event for event in run_regard_json("train", *arguments) if event["event"] == "report")
