"""Trainings that are killed before their end, at any load of the machine."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

ATTEMPTS = 20


def is_finished(out: Path) -> bool:
    """Whether a run has recorded its end."""
    return "result" in json.loads((out / "run.json").read_text("utf-8"))


def kill_during_training(
    start: Callable[[Path], subprocess.Popen[str]], out: Path, should_kill: Callable[[dict[str, Any]], bool]
) -> None:
    """Start a training with `--json` and kill it at the first event for which `should_kill` is true.

    On a busy machine the training may end before the kill reaches it; it is then started again from scratch.
    """
    for _ in range(ATTEMPTS):
        process = start(out)
        assert process.stdout is not None
        for line in process.stdout:
            if should_kill(json.loads(line)):
                process.kill()
                break
        process.communicate()
        if process.returncode == -signal.SIGKILL and not is_finished(out):
            return
        assert process.returncode in (0, -signal.SIGKILL)
        shutil.rmtree(out)
    raise AssertionError(f"{ATTEMPTS} trainings ended before they could be killed")
