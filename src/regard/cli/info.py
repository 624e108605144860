"""`regard info`: what a folder holds."""

from __future__ import annotations

import click

from regard.cli.options import verb
from regard.cli.output import print_result

HELP = """Show what the model or run in FOLDER is: sizes, tokenizer, scores, best aligning head, files.

For a run also where it stands and how to go on.

\b
  regard info runs/en-de
"""


@verb(HELP, [click.Argument(["folder"], metavar="FOLDER")])
def info(context: click.Context, folder: str, as_json: bool) -> None:
    """Show what was found."""
    from regard.report.info import describe_folder

    found = describe_folder(folder)
    print_result(found.to_dict(), found.lines(), as_json)
