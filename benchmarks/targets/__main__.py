"""Check the targets that need no data; each script also runs alone, with --help.

python -m benchmarks.targets
"""

from __future__ import annotations

import subprocess
import sys

SCRIPTS = ("resume_after_kill", "synthetic_tasks", "busy_page")


def main() -> None:
    missed = []
    for name in SCRIPTS:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.targets.{name}"], check=False).returncode:
            missed.append(name)
    print(f"missed: {', '.join(missed)}" if missed else "all targets are met")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
