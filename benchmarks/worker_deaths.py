"""Seconds from the death of a worker to the end of the run, for each way in which one or both of two workers die.

    python -m benchmarks.worker_deaths [--rounds 3] [--out FILE]

Trains with `--workers 2` on Linux and causes the faults of tests/training/deaths.py inside the processes. The clock
runs from the fault, or from the second of two, until the command has ended with its message. When the launcher is
killed, no process is left to write one: the clock runs until the ranks have ended, and the message is that of the next
start. The figures are in benchmarks/results/worker_deaths.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.hardware import processor_identity
from tests.training.deaths import (
    DEATHS,
    INTERRUPTED,
    LAUNCHER_KILLED,
    WORKER_TIMEOUT,
    WORKERS,
    find_processes,
    train,
    training_command,
    write_pairs,
)

RESULTS = Path(__file__).parent / "results" / "worker_deaths.json"
MAX_SECONDS = 60.0  # from a death to the end of the run
MAX_FROZEN_SECONDS = 600.0
KILLED_LAUNCHER = "both and the launcher killed"
POLL_SECONDS = 0.002


@dataclass(frozen=True)
class Death:
    """How one disturbed run ended."""

    seconds: float
    message: str


def cause_death(pairs: Path, folder: Path, way: str) -> Death:
    """Train until the fault ends the run."""
    fault, expected_message = DEATHS[way]
    times = folder / "times"
    process = train([*training_command(pairs, folder / "run"), *WORKERS], fault, times)
    seconds = time.monotonic() - last_fault(times)
    _, _, message = process.stderr.partition("regard: ")
    if process.returncode != 1 or expected_message not in message:
        raise SystemExit(f"{way}: code {process.returncode}\n{process.stderr}")
    if find_processes(folder):
        raise SystemExit(f"{way}: processes {find_processes(folder)} are left")
    return Death(seconds, message.strip())


def kill_launcher(pairs: Path, folder: Path) -> Death:
    """Train until the launcher is killed; wait for the ranks, and start the run again."""
    times = folder / "times"
    arguments = [*training_command(pairs, folder / "run"), *WORKERS]
    train(arguments, LAUNCHER_KILLED, times)
    while find_processes(folder):
        time.sleep(POLL_SECONDS)
    seconds = time.monotonic() - last_fault(times)
    resumed = train(arguments)
    if resumed.returncode != 0 or INTERRUPTED not in resumed.stderr:
        raise SystemExit(f"{KILLED_LAUNCHER}: code {resumed.returncode}\n{resumed.stderr}")
    return Death(seconds, INTERRUPTED)


def last_fault(times: Path) -> float:
    """Time of the fault, or of the last of several, by the monotonic clock."""
    return max(map(float, times.read_text().splitlines()))


def measure(pairs: Path, folder: Path, way: str, rounds: int) -> dict[str, Any]:
    """Seconds and message of one way to die."""
    deaths = []
    for index in range(rounds):
        round_folder = folder / f"{way} {index}".replace(" ", "-")
        round_folder.mkdir()
        is_launcher_killed = way == KILLED_LAUNCHER
        deaths.append(
            kill_launcher(pairs, round_folder) if is_launcher_killed else cause_death(pairs, round_folder, way)
        )
    limit = MAX_FROZEN_SECONDS if way.startswith("frozen") else MAX_SECONDS
    worst = max(death.seconds for death in deaths)
    return {
        "median_seconds": round(statistics.median(death.seconds for death in deaths), 2),
        "worst_seconds": round(worst, 2),
        "limit_seconds": limit,
        "met": worst <= limit,
        "message": deaths[-1].message,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    load_before = os.getloadavg()[0]
    ways = {}
    with tempfile.TemporaryDirectory() as temporary:
        pairs = Path(temporary, "pairs.tsv")
        write_pairs(pairs)
        for way in (*DEATHS, KILLED_LAUNCHER):
            ways[way] = measure(pairs, Path(temporary), way, options.rounds)
            print(f"{way}: {json.dumps(ways[way])}", flush=True)
    is_met = all(figures["met"] for figures in ways.values())
    report = {
        "processor": processor_identity(),
        "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "rounds": options.rounds,
        "worker_timeout_seconds": WORKER_TIMEOUT,
        "met": is_met,
        "ways": ways,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
