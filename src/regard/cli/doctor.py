"""`regard doctor`: what this machine offers."""

from __future__ import annotations

import click

from regard.cli.options import Option, verb
from regard.cli.output import print_result

HELP = """Show versions, processors, number formats, extras and free disk, with advice.

\b
  regard doctor
  regard doctor --quick --json
"""


@verb(HELP, [Option(["--quick"], is_flag=True, help="skip the timing of matrix products")])
def doctor(context: click.Context, quick: bool, as_json: bool) -> None:
    """Show what was found."""
    from regard.report.doctor import diagnose

    found = diagnose(quick=quick)
    print_result(found.to_dict(), found.lines(), as_json)
