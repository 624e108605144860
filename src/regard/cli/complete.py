"""`regard complete`: half a picture in, whole ones out, drawn in the terminal, as SVG or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regard.cli.models import COMPUTING, FOLDER
from regard.cli.options import Option, changes, knob_options, verb
from regard.cli.output import give
from regard.config.generation import GenerationConfig
from regard.errors import UsageError

HELP = """Finish a picture of which only the first rows are given.

A picture is a file with a row of grey levels a line (0 to 16, between spaces), or one of the set by its number; without
either, the first one that the model did not see in training.

\b
  regard train language digits --arch gpt --out runs/digits
  regard complete runs/digits --count 4
  regard complete runs/digits --number 7 --rows 3 --page seven.html
  regard complete runs/digits --picture half.txt --svg whole.svg
"""
WRITING = ("most",)  # of the settings of writing, what pictures have none of


@verb(
    HELP,
    [
        FOLDER,
        Option(["--picture"], metavar="FILE", help="a picture's first rows"),
        Option(["--number"], type=click.IntRange(0), metavar="N", help="a picture of the set, from 0"),
        Option(
            ["--rows"], type=click.IntRange(0), metavar="N", help="rows that are given [default: half, or the file's]"
        ),
        Option(["--svg"], metavar="FILE", help="draw given and finished pictures here"),
        Option(["--page"], metavar="FILE", help="write a page for a browser"),
        *knob_options(GenerationConfig, section="Drawing", skip=WRITING),
        *COMPUTING,
    ],
)
def complete(
    context: click.Context,
    folder: str,
    picture: str | None,
    number: int | None,
    rows: int | None,
    svg: str | None,
    page: str | None,
    as_json: bool,
    **computing: Any,
) -> None:
    """Finish a picture."""
    if picture and number is not None:
        raise UsageError("--picture and --number are both given: keep one of them")
    from regard.checkpoint.files import write_file
    from regard.data.pictures import missing_after, read_picture, read_pictures
    from regard.pipeline import load_generator
    from regard.view import pictures as view

    config = GenerationConfig().override(changes(context, GenerationConfig))
    model = load_generator(folder, **computing)
    height, width = model.size()
    if picture:
        whole = read_picture(picture, height, width)
    else:
        known = read_pictures().levels
        number = model.task["pictures"]["held_out"][0] if number is None else number
        if number >= len(known):
            raise UsageError(f"--number is {number}, but the pictures are numbered from 0 to {len(known) - 1}")
        whole = known[number]
    given = missing_after(whole, rows if rows is not None else (height if picture else height // 2))
    made = model.complete(given, config)
    shown = [("given", given), *((f"finished {place}", one) for place, one in enumerate(made, 1))]
    if bool((whole >= 0).all()):
        shown.append(("as it was", whole))
    named = "a file" if number is None else f"picture {number}"
    for path, text in ((svg, view.svg(shown)), (page, view.page(shown, f"{named}, finished by {folder}"))):
        if path:
            write_file(Path(path), text.encode())
    facts = {"number": number, "given": given.tolist(), "finished": [one.tolist() for one in made]}
    give(facts, view.lines(shown), as_json)
