"""Trainings by two ranks of which one or both die: the ways to die, the command, and the processes that are left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from regard.data.synthetic import generate_pairs
from tests.scale import HANG_GUARD

FAULTS = Path(__file__).parent / "faults"
STEPS = 20
WORKER_TIMEOUT = 20  # seconds; a frozen rank counts as dead after them
IN_A_STEP = "regard.training.trainer Trainer.step 13"  # after the checkpoint of step 10
DEATHS = {  # fault, part of the message
    "before joining": (
        "1 regard.training.distributed Distributed._join 1 exit",
        "rank 1 ended with code 7: repeat the command to resume from the last checkpoint\nIts last output:\n"
        "  this worker cannot go on",
    ),
    "while preparing": ("1 regard.data.pairs read_pairs 1 kill", "rank 1 was ended by SIGKILL"),
    "in a step": (f"1 {IN_A_STEP} kill", "rank 1 was ended by SIGKILL"),
    "in an evaluation": ("0 regard.training.experiments.translation TranslationEvaluator.predict 2 kill", "SIGKILL"),
    "while saving": ("0 regard.checkpoint.atomic _serialize_manifest 3 kill", "rank 0 was ended by SIGKILL"),
    "frozen": (f"1 {IN_A_STEP} freeze", f"rank 1 has not responded for {WORKER_TIMEOUT} s"),
    "frozen rank 0": (f"0 {IN_A_STEP} freeze", f"rank 0 has not responded for {WORKER_TIMEOUT} s"),
    "out of memory": (f"1 {IN_A_STEP} memory", "rank 1 ran out of memory"),
    "both killed": (f"0,1 {IN_A_STEP} kill", "was ended by SIGKILL"),
}
LAUNCHER_KILLED = f"0 {IN_A_STEP} kill launcher"  # which ends the ranks, too
INTERRUPTED = "the previous run was interrupted at step 10; resuming"  # what the next start reports
OPTIONS = ["--preset", "micro", "--tokenizer", "characters", "--batch-tokens", "128", "--threads", "1"]
OPTIONS += ["--precision", "float32", "--save-every", "5", "--evaluate-every", "10"]
WORKERS = ["--workers", "2", "--training.worker_timeout", str(WORKER_TIMEOUT)]


def write_pairs(path: Path) -> None:
    """Write the training data: short sequences and their reversals."""
    path.write_text("".join(f"{source}\t{target}\n" for source, target in generate_pairs("reverse", 90)), "utf-8")


def training_command(pairs: Path, out: Path) -> list[str]:
    """Module and arguments of a training of a few seconds; append `WORKERS` or start it by torchrun."""
    return ["regard", "train", "translate", str(pairs), "--steps", str(STEPS), "--out", str(out), *OPTIONS]


def train(
    arguments: Sequence[str], fault: str = "", fault_times: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module with arguments to its end; `fault_times` receives the times of the fault."""
    path = os.pathsep.join(filter(None, [str(FAULTS), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "REGARD_FAULT": fault}
    if fault_times is not None:
        environment["REGARD_FAULT_TIMES"] = str(fault_times)
    return subprocess.run(
        [sys.executable, "-m", *arguments], env=environment, capture_output=True, text=True, timeout=HANG_GUARD
    )


def find_processes(out: Path) -> list[int]:
    """Ids of the processes whose command line or environment names a file."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            content = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:  # it has ended, or belongs to another user
            continue
        if str(out).encode() in content:
            processes.append(int(folder.name))
    return processes
