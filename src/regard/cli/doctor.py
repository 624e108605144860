"""`regard doctor`: report on this machine."""

from __future__ import annotations

import click

from regard.cli.options import Option, verb
from regard.cli.output import print_result

HELP = """Show versions, processor, matmul speed by precision, extras and free disk space, with advice.

\b
  regard doctor
  regard doctor --quick --json
"""


@verb(
    HELP,
    [Option(["--quick"], is_flag=True, help="Skip the timing of matrix products.")],
    output=["regard.report.doctor:Diagnosis"],
)
def doctor(context: click.Context, quick: bool, as_json: bool) -> None:
    """Print the diagnosis of this machine."""
    from regard.report.doctor import diagnose

    diagnosis = diagnose(quick=quick)
    print_result(diagnosis.to_dict(), diagnosis.lines(), as_json)
