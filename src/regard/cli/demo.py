"""`regard demo`: data, training, translation and attention on synthetic dates."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from regard.cli.options import FiniteRange, Option, verb
from regard.cli.output import note, own_command, print_result, progress_listener
from regard.errors import UsageError

HELP = """Train a small model that normalises dates in twenty languages to 2017-03-03, and show its attention.

The data are generated; nothing is downloaded. Training ends when nearly all validation dates are right: within a
minute on an idle machine, later on a busy one. A second call shows the trained model again.

\b
  regard demo
  regard demo --minutes 10 --out runs/patient
"""


@verb(
    HELP,
    [
        Option(
            ["--out"],
            default="runs/demo",
            metavar="FOLDER",
            help="Folder for data, model and page. [default: runs/demo]",
        ),
        Option(
            ["--minutes"],
            type=FiniteRange(min=0, min_open=True),
            metavar="X",
            help="Limit of the training time, in minutes. [default: 5]",
        ),
        Option(
            ["--seconds"],
            type=FiniteRange(min=0, min_open=True),
            metavar="X",
            help="Limit of the training time, in seconds.",
        ),
    ],
    output=["regard.training.listeners:TrainingEvent", "regard.report.json_output:DemoResultDict"],
)
def demo(context: click.Context, out: str, minutes: float | None, seconds: float | None, as_json: bool) -> None:
    """Run the demo."""
    if minutes and seconds:
        raise UsageError("--minutes and --seconds are both given: keep one of them")
    from regard.report.demo import MAX_SECONDS, run_demo

    max_seconds = seconds or 60 * (minutes or 0) or MAX_SECONDS
    with progress_listener(as_json) as listener:
        result = run_demo(Path(out), max_seconds, [listener], note)
    print_result(result.to_dict(), result.lines(colour=sys.stdout.isatty(), command=own_command()), as_json)
