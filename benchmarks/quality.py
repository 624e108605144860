"""Quality of a finished run on a test set, with the settings and the length of its training.

    python -m benchmarks.quality RUN FILES --name multi30k-en-de

Written to benchmarks/results/quality.json, which has one entry per name.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.targets.command import run_regard_json
from regard.hardware import processor_identity

RESULT = Path(__file__).parent / "results" / "quality.json"


def measure_quality(run: Path, files: list[Path]) -> dict[str, Any]:
    """Evaluate a run; describe its training by what its run.json has."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    scores = run_regard_json("evaluate", run, *files)[0]
    return {
        "processor": processor_identity(),
        "test": [file.name for file in files],
        "minutes": record["config"]["training"]["minutes"],
        "threads": record["resolved"].get("threads"),
        "training": {name: record["result"][name] for name in ("step", "seconds", "tokens")},
        "scores": scores,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--name", required=True, help="name of the entry")
    arguments = parser.parse_args()
    entries = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    entries[arguments.name] = measure_quality(arguments.run, arguments.files)
    RESULT.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(entries[arguments.name]))


if __name__ == "__main__":
    main()
