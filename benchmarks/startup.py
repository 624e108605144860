"""Time until the command line answers: its help, and a single sentence from a cold start.

python -m benchmarks.startup [MODEL]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time


def time_command(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "regard", *arguments], capture_output=True, check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    commands = [["--help"], ["train", "--help"]]
    if arguments.model:
        commands.append(["translate", arguments.model, "Two dogs run."])
    for command in commands:
        seconds = [time_command(*command) for _ in range(arguments.repeats)]
        result = {
            "bench": " ".join(command),
            "value": round(statistics.median(seconds), 3),
            "unit": "s",
            "low": round(min(seconds), 3),
            "high": round(max(seconds), 3),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
