"""The log of a run, without what depends on the speed of the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def log_without_throughput(run: Path) -> list[dict[str, Any]]:
    """Lines of the log of a run: what a resumed run repeats bit by bit."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    return [{name: value for name, value in line.items() if not name.endswith("_per_second")} for line in lines]
