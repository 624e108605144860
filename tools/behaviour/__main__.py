"""Acceptance test of a change that must leave behaviour as it is, bit for bit.

    python -m tools.behaviour record                 compute all digests and write digests.json
    python -m tools.behaviour check                  compute them again and compare; exit code 1 if any differs
    python -m tools.behaviour check --only bert      only cases whose name has this in it (a shell pattern)
    python -m tools.behaviour list                   the names of the cases

A case is a model family on a backend, or a training run. It yields outputs (translations with scores, probabilities,
vectors, attention weights, trained weights …), and each output becomes one digest. Digests are of arrays and answers,
never of files, and of no name of a weight, setting or metric: after a renaming only `api.py` is adapted, which is the
one module that names the package's API. `corpus`, `tokenizer_files` and `hf_folders` make texts, tokenizers and model
folders without it; `inference_cases` and `training_cases` list what is computed.

Bits of floating-point numbers depend on the processor: `check` refuses on another type than the digests were recorded
on, and says so where versions of libraries differ. One thread, about 90 seconds on an idle core.
"""

from __future__ import annotations

import os
import sys

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

import argparse
import json
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.behaviour import api  # first of all: it imports the package before torch
from tools.behaviour.cases import Case, Workspace, select_cases
from tools.behaviour.digest import digest
from tools.behaviour.inference_cases import inference_cases
from tools.behaviour.machine import HARDWARE, describe_machine, find_differences
from tools.behaviour.training_cases import training_cases

DIGESTS = Path(__file__).with_name("digests.json")
FAILED = "failed: "


def compute_digests(cases: Sequence[Case], *, is_verbose: bool) -> dict[str, str]:
    """The digests of all outputs of some cases; a case that raises has its error instead of the rest."""
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="behaviour-") as folder:
        workspace = Workspace(Path(folder))
        for case in cases:
            began = time.perf_counter()
            api.prepare(workspace.path / "cache")
            try:
                for output, value in case.run(workspace):
                    digests[f"{case.name}/{output}"] = digest(value)
            except Exception as error:
                digests[case.name] = f"{FAILED}{type(error).__name__}: {error}"
                traceback.print_exc()
            if is_verbose:
                print(f"{time.perf_counter() - began:6.2f} s  {case.name}", file=sys.stderr, flush=True)
    return digests


def record(cases: Sequence[Case], *, is_complete: bool, is_verbose: bool) -> int:
    """Write the digests; those of cases that were not selected stay."""
    digests = compute_digests(cases, is_verbose=is_verbose)
    failures = [key for key, value in digests.items() if value.startswith(FAILED)]
    if failures:
        print(f"{len(failures)} cases failed, nothing is written: {', '.join(failures)}", file=sys.stderr)
        return 1
    machine = describe_machine(api.engine_instructions())
    recorded = {} if is_complete else _of_others(_read_digests()["digests"], cases)
    content = {"machine": machine, "digests": dict(sorted({**recorded, **digests}.items()))}
    DIGESTS.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf-8")
    print(f"{len(digests)} digests recorded")
    return 0


def check(cases: Sequence[Case], *, is_complete: bool, is_verbose: bool) -> int:
    """Compute the digests again; 0 where all are as recorded, 1 where not, 2 on another type of processor."""
    content = _read_digests()
    machine = describe_machine(api.engine_instructions())
    different = find_differences(content["machine"], machine)
    for name in different:
        print(f"{name}: {content['machine'].get(name)!r} when recorded, {machine.get(name)!r} here", file=sys.stderr)
    if any(name in HARDWARE for name in different):
        print("digests of floats hold on the recorded type of processor only: record the old code here first")
        return 2
    recorded: dict[str, str] = content["digests"]
    if not is_complete:
        others = _of_others(recorded, cases)
        recorded = {key: value for key, value in recorded.items() if key not in others}
    present = compute_digests(cases, is_verbose=is_verbose)
    return report_comparison(recorded, present)


def report_comparison(recorded: dict[str, str], present: dict[str, str]) -> int:
    """Print how many digests are equal and which are not; return the exit code."""
    keys = sorted({**recorded, **present})
    unequal = [key for key in keys if recorded.get(key) != present.get(key)]
    for key in unequal:
        reason = "differs"
        if key not in present:
            reason = "is not computed any more"
        elif key not in recorded:
            reason = present[key] if present[key].startswith(FAILED) else "was not recorded"
        print(f"{key}: {reason}")
    print(f"{len(keys) - len(unequal)} of {len(keys)} digests equal")
    return 1 if unequal else 0


def _of_others(recorded: dict[str, str], cases: Sequence[Case]) -> dict[str, str]:
    """The recorded digests of cases that are not selected."""
    names = {case.name for case in cases}
    return {key: value for key, value in recorded.items() if key.rpartition("/")[0] not in names}


def _read_digests() -> dict[str, Any]:
    if not DIGESTS.exists():
        return {"machine": {}, "digests": {}}
    content: dict[str, Any] = json.loads(DIGESTS.read_text("utf-8"))
    return content


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.behaviour", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("record", "check", "list"))
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name matches this shell pattern")
    parser.add_argument("--verbose", action="store_true", help="print the seconds of every case")
    arguments = parser.parse_args()
    cases = select_cases([*inference_cases(), *training_cases()], arguments.only)
    if not cases:
        parser.error(f"no case matches {arguments.only!r}")
    if arguments.command == "list":
        print("\n".join(case.name for case in cases))
        return 0
    run = record if arguments.command == "record" else check
    return run(cases, is_complete=not arguments.only, is_verbose=arguments.verbose)


if __name__ == "__main__":
    sys.exit(main())
