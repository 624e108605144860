"""`regard figure`: one view of where a model looked, drawn for a paper, or in the terminal."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard import __version__
from regard.cli.model_options import COMPUTING
from regard.cli.options import Option, verb
from regard.cli.output import note, print_result
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.view.record.record import Record

HELP = """Draw one view of where a model looked while it worked on TEXT: .svg, .pdf, .png or .tex by the name's ending.

Without --out the view is drawn in the terminal. FOLDER may be a record that was saved (.json). Views:

\b
  look     lines between tokens; --row picks one of them
  heads    a small picture of every head
  align    one matrix: rows look at columns
  steps    each token that was written, and what else was likely; beams: the tree of the search
  maths    six steps from a query to its new value
  place    position codes, and how alike positions are
  verdict  how likely each label or answer is
  flow     what reaches one token through all layers
  hops     what each hop of a memory network looked at

\b
  regard figure runs/en-de "Two dogs run in the snow." --view align --words --out figure.svg
  regard figure runs/en-de "Two dogs run." --view look --row dogs --attention encoder.3.self:2 --out dogs.pdf
  regard figure bert-base-uncased "A [MASK] runs." --view heads --width page --theme dark --out heads.png
  regard figure saved.json --view steps
"""
LOOK = "What it shows"
SHAPE = "How it looks"


@verb(
    HELP,
    [
        click.Argument(["folder"], metavar="FOLDER"),
        click.Argument(["text"], required=False, metavar="[TEXT]"),
        Option(["--view"], default="", metavar="NAME", section=LOOK, help="the view [default: by the task]"),
        Option(
            ["--attention"],
            default="",
            metavar="SITE",
            section=LOOK,
            help="which attention, as in decoder.cross, or a head: decoder.2.cross:4 [default: the best]",
        ),
        Option(
            ["--layer"],
            type=click.IntRange(0),
            section=LOOK,
            help="its layer, counted from 0 [default: of the best head, or the last]",
        ),
        Option(
            ["--head"],
            type=click.IntRange(0),
            section=LOOK,
            help="its head, counted from 0 [default: the best, or the mean of all]",
        ),
        Option(["--words/--pieces"], default=False, section=LOOK, help="put the pieces of words together"),
        Option(
            ["--row"],
            metavar="TOKEN",
            section=LOOK,
            help="the row that look, maths and flow are about: a token, or its number from 0",
        ),
        Option(
            ["--norm"],
            default="raw",
            metavar="NAME",
            section=LOOK,
            help="raw, row (share of the row's largest) or content (without special tokens) [default: raw]",
        ),
        Option(["--passage"], metavar="FILE", help="the text that a question is about"),
        Option(["--story"], metavar="FILE", help="what was told before a question, one sentence a line"),
        Option(["--pair"], metavar="TEXT", help="a second text that is read beside the first"),
        Option(
            ["--out"],
            metavar="FILE",
            section=SHAPE,
            help="write here: .svg, .pdf, .png or .tex; otherwise the terminal shows it",
        ),
        Option(
            ["--width"],
            default="column",
            metavar="WIDTH",
            section=SHAPE,
            help="column (84 mm), page (174 mm), or millimetres [default: column]",
        ),
        Option(["--theme"], default="light", metavar="NAME", section=SHAPE, help="light or dark [default: light]"),
        Option(
            ["--dpi"],
            type=click.IntRange(30, 2400),
            default=300,
            section=SHAPE,
            help="dots an inch of a .png [default: 300]",
        ),
        *COMPUTING,
    ],
)
def figure(
    context: click.Context,
    folder: str,
    text: str | None,
    view: str,
    out: str | None,
    width: str,
    theme: str,
    dpi: int,
    as_json: bool,
    passage: str | None,
    story: str | None,
    pair: str | None,
    attention: str,
    layer: int | None,
    head: int | None,
    words: bool,
    row: str | None,
    norm: str,
    **computing: Any,
) -> None:
    """Draw what was asked for."""
    from regard.view.figure import check_figure_options

    check_figure_options(view, out, width, theme, norm)  # before a model is opened
    if folder.lower().endswith(".json") and Path(folder).is_file():
        record = _saved(folder, text)
    else:
        inside = _inside(attention, layer, head) if view == "maths" else ""
        record = _made(folder, text, computing, inside, passage=passage, story=story, pair=pair)
    chosen = {"attention": attention, "layer": layer, "head": head, "words": words, "token": row, "norm": norm}
    if out is None:
        _print(record, view, chosen, as_json)
        return
    from regard.view.figure import figure as drawn

    made = drawn(record, view, width=width, theme=theme, **chosen)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        made.save(out, dpi=dpi)
    for one in told:
        note(f"note: {one.message}")
    facts = {"out": out, "view": made.view, "millimetres": made.millimetres, "notes": list(made.notes)}
    wide, tall = made.millimetres
    print_result(facts, [f"{out}: {made.about}, {wide:g} × {tall:g} mm"], as_json)


def _saved(file: str, text: str | None) -> Record:
    from regard.view.record.record import Record

    if text is not None:
        raise UsageError(f"{file} is a record: it has its text already, and no model to read another one")
    return Record.read(file)


def _made(
    folder: str,
    text: str | None,
    computing: dict[str, Any],
    inside: str,
    *,
    passage: str | None,
    story: str | None,
    pair: str | None,
) -> Record:
    """Return the record of a text that the folder's model works on."""
    if text is None:
        raise UsageError("the text is missing: write it behind the folder")
    from regard.cli.see import read_passage, read_story_file
    from regard.config.inference import RecordConfig
    from regard.interpret.request import PipelineRequest, record_request
    from regard.pipeline.load import load

    asked = PipelineRequest(text, read_passage(passage), read_story_file(story), pair)
    made = {"version": __version__, "model": Path(folder).name or folder}
    return record_request(load(folder, **computing), asked, RecordConfig(store_qkv=inside), provenance=made)


def _print(record: Record, view: str, chosen: dict[str, Any], as_json: bool) -> None:
    from regard.view.terminal_views import render_view, supports_colour

    lines = render_view(record, view, colour=supports_colour() and not as_json, **chosen)
    print_result({"view": view, "title": record.title, "lines": lines.split("\n")}, [lines], as_json)


def _inside(attention: str, layer: int | None, head: int | None) -> str:
    """Return the head whose numbers are to be kept."""
    if ":" in attention:
        return attention
    if attention and layer is not None and head is not None:
        from regard.attention.sites import site_name

        plain = ".".join(part for part in attention.split(".") if not part.isdigit())
        return f"{site_name(plain, layer)}:{head}"
    if attention or layer is not None or head is not None:
        raise UsageError("maths shows one head: name it whole, as in --attention encoder.3.self:2, or not at all")
    return "best"
