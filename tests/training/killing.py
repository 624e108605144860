"""Trainings that are killed before their end, at any load of the machine."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
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


def train_killed_and_whole(arguments: Sequence[str], folder: Path) -> tuple[Path, Path]:
    """Run `regard train` twice: killed by SIGKILL after its first checkpoint and resumed, and in one piece.

    Return both run directories.
    """

    def start(out: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "regard", "train", *arguments, "--save-every", "7", "--threads", "1"]
        command += ["--precision", "float32", "--json", "--out", str(out)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    killed, whole = folder / "killed", folder / "whole"
    kill_during_training(start, killed, lambda event: event["event"] == "save")
    processes = [start(out) for out in (killed, whole)]
    outputs = []
    for process in processes:
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        outputs.append([json.loads(line) for line in output.splitlines()])
    resumed_steps = [[event["step"] for event in events if event["event"] == "resume"] for events in outputs]
    assert resumed_steps[0] and resumed_steps[0][0] > 0
    assert not resumed_steps[1]
    return killed, whole
