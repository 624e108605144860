"""Every architecture on the same data with the same budget: a table that one resumable command makes.

    python -m benchmarks.architectures --data ../shared/data
    python -m benchmarks.architectures pretrain --data ../shared/data      # one stage; the others need pretrain first

Stages: pretrain (ELMo, BERT and GPT on the same text for the same minutes), classify (TREC, SST-2, AG News), tag
(WNUT-17) and stories (bAbI). Each takes at most an hour on two cores: its parts, which are models or comparisons, run
two at a time, each on one thread. A stage resumes where it was interrupted, and skips finished comparisons. Results go
to benchmarks/results/architectures/, from which --page writes the page of the site.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.architectures.page import PAGE, RESULTS, build_page
from benchmarks.architectures.stages import JOBS, STAGES, THREADS, stage_minutes, stage_parts
from regard.errors import RegardError
from regard.formatting import format_duration
from regard.hardware import available_cores

if TYPE_CHECKING:
    from benchmarks.architectures.run import Workplace


def main() -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "stages",
        nargs="*",
        metavar="stage",
        help=f"{', '.join(STAGES)}, or a part of one such as classify-trec; default: all",
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("DATA"), help="folder of the public data sets")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/architectures"), help="where the runs go; of a trial, OUT/quick"
    )
    parser.add_argument(
        "--results", type=Path, help=f"where the results go; default: {RESULTS}, or of a trial OUT/quick/results"
    )
    parser.add_argument("--threads", type=int, default=THREADS, help="of each training; default: 1")
    parser.add_argument(
        "--jobs", type=int, default=min(JOBS, available_cores()), help="parts that run side by side; default: 2"
    )
    parser.add_argument("--quick", action="store_true", help="a trial: few rows, two updates, one seed")
    parser.add_argument("--page", action="store_true", help="only write the page, from the results that there are")
    arguments = parser.parse_args()
    parts = [part for stage in STAGES for part in stage_parts(stage)]
    unknown = [stage for stage in arguments.stages if stage not in (*STAGES, *parts)]
    if unknown:
        parser.error(
            f"unknown stage {', '.join(unknown)}: there are {', '.join(STAGES)}, with parts {', '.join(parts)}"
        )
    if arguments.page:
        PAGE.write_text(build_page(), encoding="utf-8")
        print(PAGE)
        return
    if arguments.data is None:
        parser.error("--data is needed: the folder of the public data sets")
    from benchmarks.architectures.run import run_part, run_stage

    stages = arguments.stages or STAGES
    workplace = build_workplace(arguments)
    for stage in stages:
        start = time.monotonic()
        try:
            if stage in parts:
                run_part(stage, workplace)
            else:
                limit = f"{stage_minutes(stage, arguments.jobs):.0f} minutes of training"
                _report(f"stage {stage}: {limit}, {arguments.jobs} at a time")
                _run_side_by_side(stage, arguments)
                run_stage(stage, workplace)  # what is finished is skipped
        except RegardError as error:
            sys.exit(f"{stage}: {error}")
        _report(f"{stage}: {format_duration(time.monotonic() - start)}")


def build_workplace(arguments: argparse.Namespace) -> Workplace:
    """Folders and options of the stages; a trial has folders of its own, as its models are no results."""
    from benchmarks.architectures.run import Workplace

    out = arguments.out / "quick" if arguments.quick else arguments.out
    results = arguments.results or (out / "results" if arguments.quick else RESULTS)
    return Workplace(arguments.data, out, results, arguments.threads, is_quick=arguments.quick, report=_report)


def _run_side_by_side(stage: str, arguments: argparse.Namespace) -> None:
    """Run the parts of a stage in processes of their own, the longest first; exit if one fails."""
    minutes = stage_parts(stage)
    if arguments.jobs == 1 or len(minutes) == 1:
        return
    options = ["--data", arguments.data, "--out", arguments.out, "--threads", arguments.threads]
    options += ["--results", arguments.results] if arguments.results else []
    options += ["--quick"] if arguments.quick else []

    def run(part: str) -> int:
        command = [sys.executable, "-m", "benchmarks.architectures", part, *map(str, options)]
        return subprocess.run(command, check=False).returncode

    with ThreadPoolExecutor(arguments.jobs) as pool:
        parts = sorted(minutes, key=lambda part: -minutes[part])
        codes = dict(zip(parts, pool.map(run, parts), strict=True))
    failed = [part for part, code in codes.items() if code]
    if failed:
        sys.exit(f"{stage}: {', '.join(failed)} failed or was interrupted (see above): the same command resumes")


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
