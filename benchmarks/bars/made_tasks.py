"""Bar: copy, reverse and sort are learned exactly in two minutes, whatever the seed.

python -m benchmarks.bars.made_tasks --minutes 2 --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.bars.command import regard, regard_json

ROWS, TESTED, LEAST = 20_000, 1_000, 98.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tasks", nargs="+", default=["copy", "reverse", "sort"])
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    least = 100.0
    with tempfile.TemporaryDirectory() as folder:
        for task in arguments.tasks:
            for seed in arguments.seeds:
                train, test, out = (Path(folder, f"{task}-{seed}{end}") for end in (".tsv", "-test.tsv", ""))
                regard("data", "make", task, "--count", ROWS, "--seed", seed, "--out", train)
                regard("data", "make", task, "--count", TESTED, "--seed", seed + 1000, "--split", "test", "--out", test)
                options = ("--minutes", arguments.minutes, "--seed", seed, "--threads", arguments.threads, "--out", out)
                regard("train", "translate", train, *options)
                found = regard_json("evaluate", out, test)[0]["exact_match"]
                least = min(least, found)
                print(json.dumps({"task": task, "seed": seed, "exact_match": found}), flush=True)
    sys.exit(0 if least >= LEAST else 1)


if __name__ == "__main__":
    main()
