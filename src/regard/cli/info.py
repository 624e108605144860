"""`regard info`: contents and state of a folder."""

from __future__ import annotations

import click

from regard.cli.model_options import MODEL_ARGUMENT
from regard.cli.options import verb
from regard.cli.output import print_result

HELP = """Describe the model or run in MODEL: sizes, tokenizer, scores, best alignment head, files.

For a run, also show how far training is and how to resume it.

\b
  regard info runs/en-de
"""


@verb(HELP, [MODEL_ARGUMENT], output=["regard.report.json_output:FolderInfoDict"])
def info(context: click.Context, folder: str, as_json: bool) -> None:
    """Print the description of a folder."""
    from regard.report.info import describe_folder

    description = describe_folder(folder)
    print_result(description.to_dict(), description.lines(), as_json)
