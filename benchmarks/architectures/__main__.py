"""Every architecture on the same data with the same budget: a table that one resumable command makes.

    python -m benchmarks.architectures --data ../shared/data
    python -m benchmarks.architectures pretrain --data ../shared/data      # one stage; the others need pretrain first

Stages: pretrain (ELMo, BERT and GPT on the same text for the same minutes), classify (TREC, SST-2, AG News), tag
(WNUT-17) and stories (bAbI). Each takes at most an hour on one thread, so that two can run side by side on two cores,
and resumes where it was interrupted; finished comparisons are skipped. Results go to
benchmarks/results/architectures/, from which --page writes the page of the site.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.architectures.page import PAGE, RESULTS, build_page
from benchmarks.architectures.stages import STAGE_MINUTES, STAGES, stage_minutes
from regard.errors import RegardError
from regard.formatting import format_duration

THREADS = 1  # of each training: two stages can run side by side on two cores


def main() -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="stage", help=f"{', '.join(STAGES)}; default: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("DATA"), help="folder of the public data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/architectures"), help="where the runs go")
    parser.add_argument("--results", type=Path, help=f"where the results go; default: {RESULTS}, or OUT with --quick")
    parser.add_argument("--threads", type=int, default=THREADS, help="of each training; default: 1")
    parser.add_argument("--quick", action="store_true", help="a trial: few rows, two updates, one seed")
    parser.add_argument("--page", action="store_true", help="only write the page, from the results that there are")
    arguments = parser.parse_args()
    unknown = [stage for stage in arguments.stages if stage not in STAGES]
    if unknown:
        parser.error(f"unknown stage {', '.join(unknown)}: there are {', '.join(STAGES)}")
    if arguments.page:
        PAGE.write_text(build_page(), encoding="utf-8")
        print(PAGE)
        return
    if arguments.data is None:
        parser.error("--data is needed: the folder of the public data sets")
    from benchmarks.architectures.run import Workplace, run_stage

    stages = arguments.stages or STAGES
    results = arguments.results or (arguments.out / "results" if arguments.quick else RESULTS)
    workplace = Workplace(
        arguments.data, arguments.out, results, arguments.threads, is_quick=arguments.quick, report=_report
    )
    for stage in stages:
        limit = f"{stage_minutes(stage):.0f} minutes of training, at most {STAGE_MINUTES:.0f} in all"
        _report(f"stage {stage}: {limit}")
        start = time.monotonic()
        try:
            run_stage(stage, workplace)
        except RegardError as error:
            sys.exit(f"{stage}: {error}")
        _report(f"stage {stage}: {format_duration(time.monotonic() - start)}")


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
