"""Runs the bars that need no data of their own; each also runs alone, with --help.

python -m benchmarks.bars
"""

from __future__ import annotations

import subprocess
import sys

BARS = ("kill_anywhere", "made_tasks")


def main() -> None:
    failed = []
    for name in BARS:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.bars.{name}"], check=False).returncode:
            failed.append(name)
    print("all bars hold" if not failed else f"bars that do not hold: {', '.join(failed)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
