"""`regard demo`: the whole way on made data."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from regard.cli.options import Option, verb
from regard.cli.output import note, print_result, progress_listener
from regard.errors import UsageError

HELP = """Make dates in twenty languages, train a small model to write them as 2017-03-03, and show where it looked.

Nothing is fetched. Training ends when nearly all validation dates are right: after a minute or less on a quiet machine,
later on a busy one. A second call shows the trained model again.

\b
  regard demo
  regard demo --minutes 10 --out runs/patient
"""


@verb(
    HELP,
    [
        Option(
            ["--out"], default="runs/demo", metavar="FOLDER", help="where data, model and page go [default: runs/demo]"
        ),
        Option(
            ["--minutes"],
            type=click.FloatRange(min=0, min_open=True),
            metavar="X",
            help="limit of the time for training, in minutes [default: 5]",
        ),
        Option(["--seconds"], type=click.FloatRange(min=0, min_open=True), metavar="X", help="the same in seconds"),
    ],
)
def demo(context: click.Context, out: str, minutes: float | None, seconds: float | None, as_json: bool) -> None:
    """Run the demo."""
    if minutes and seconds:
        raise UsageError("--minutes and --seconds are both given: keep one of them")
    from regard.report.demo import SECONDS, run_demo

    with progress_listener(as_json) as watcher:
        shown = run_demo(Path(out), seconds or 60 * (minutes or 0) or SECONDS, [watcher], note)
    print_result(shown.to_dict(), shown.lines(colour=sys.stdout.isatty(), command=_command()), as_json)


def _command() -> str:
    """Return what to type to call this program from here."""
    if shutil.which("regard"):
        return "regard"
    return sys.argv[0] if Path(sys.argv[0]).name == "regard" else "python -m regard"
