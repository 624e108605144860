"""How long people wait for the first word: help, and a lone sentence from a cold shell.

python -m benchmarks.startup [MODEL]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time


def seconds(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "regard", *arguments], capture_output=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    commands = [["--help"], ["train", "--help"]]
    if arguments.model:
        commands.append(["translate", arguments.model, "Two dogs run."])
    for command in commands:
        taken = sorted(seconds(*command) for _ in range(arguments.repeats))
        row = {"bench": " ".join(command), "value": round(statistics.median(taken), 3), "unit": "s"}
        print(json.dumps({**row, "low": round(taken[0], 3), "high": round(taken[-1], 3)}), flush=True)


if __name__ == "__main__":
    main()
