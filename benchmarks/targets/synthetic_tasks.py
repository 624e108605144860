"""Target: copy, reverse and sort are learned exactly in two minutes, whatever the seed.

python -m benchmarks.targets.synthetic_tasks --minutes 2 --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.targets.command import run_regard, run_regard_json

TRAIN_ROWS = 20_000
TEST_ROWS = 1_000
TEST_SEED_OFFSET = 1000
MIN_EXACT_MATCH = 98.0  # percent


def measure_exact_match(task: str, seed: int, folder: Path, arguments: argparse.Namespace) -> float:
    """Make data, train a model and evaluate it."""
    train_file = folder / f"{task}-{seed}.tsv"
    test_file = folder / f"{task}-{seed}-test.tsv"
    out = folder / f"{task}-{seed}"
    run_regard("data", "make", task, "--count", TRAIN_ROWS, "--seed", seed, "--out", train_file)
    test_options = ("--count", TEST_ROWS, "--seed", seed + TEST_SEED_OFFSET, "--split", "test")
    run_regard("data", "make", task, *test_options, "--out", test_file)
    train_options = ("--minutes", arguments.minutes, "--seed", seed, "--threads", arguments.threads)
    run_regard("train", "translate", train_file, *train_options, "--out", out)
    return float(run_regard_json("evaluate", out, test_file)[0]["exact_match"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tasks", nargs="+", default=["copy", "reverse", "sort"])
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    lowest = 100.0
    with tempfile.TemporaryDirectory() as folder:
        for task in arguments.tasks:
            for seed in arguments.seeds:
                exact_match = measure_exact_match(task, seed, Path(folder), arguments)
                lowest = min(lowest, exact_match)
                print(json.dumps({"task": task, "seed": seed, "exact_match": exact_match}), flush=True)
    sys.exit(0 if lowest >= MIN_EXACT_MATCH else 1)


if __name__ == "__main__":
    main()
