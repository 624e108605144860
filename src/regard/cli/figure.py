"""`regard figure`: one view of a model's attention, as a figure for a paper or in the terminal."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard import __version__
from regard.cli.model_options import ENGINE_OPTIONS, MODEL_ARGUMENT
from regard.cli.options import Option, verb
from regard.cli.output import note, print_result
from regard.cli.see import read_passage, read_record, read_story_file
from regard.components import VIEWS
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.view.record.json_form import FigureFileDict, TerminalViewDict
    from regard.view.record.record import Record


def _list_views() -> str:
    """Views with a figure or lines of text, one per line."""
    views = {name: view.description for name, view in VIEWS.items() if view.draw or view.render}
    width = max(map(len, views))
    return "\n".join(f"  {name:<{width}}  {description}" for name, description in views.items())


HELP = """Draw one view of a model's attention on TEXT; the name of the file selects .svg, .pdf, .png or .tex.

Without --out the view is printed in the terminal. MODEL may also be a saved record (.json). Layers and heads are
counted from 0. `figure` draws one view, for a paper or the terminal; `see` writes a page with all views, layers and
heads, to explore. `translate --align` prints alignments as numbers (0-0 1-2 …), for many texts. Views:

\b
{views}

\b
  regard figure runs/en-de "Two dogs run in the snow." --view matrix --words --out figure.svg
  regard figure runs/en-de "Two dogs run." --view lines --words --token dogs --site encoder.1.self:2 --out dogs.pdf
  regard figure runs/en-de "Two dogs run." --view matrix --site encoder.1.self:3 --out head.pdf
  regard figure runs/en-de "Two dogs run." --view matrix --words
  regard figure bert-base-uncased "A [MASK] runs." --view heads --width page --theme dark --out heads.png
  regard see runs/en-de "Two dogs run." --out dogs.json
  regard figure dogs.json --view decoding
"""
VIEW_SECTION = "View"
LAYOUT_SECTION = "Layout"


@verb(
    HELP.format(views=_list_views()),
    [
        MODEL_ARGUMENT,
        click.Argument(["text"], required=False, metavar="[TEXT]"),
        Option(
            ["--view"],
            default="",
            metavar="NAME",
            section=VIEW_SECTION,
            help="View, as listed above. [default: by the task]",
        ),
        Option(
            ["--site", "attention"],
            default="",
            metavar="SITE",
            section=VIEW_SECTION,
            help="Attention of the model, STACK.KIND as in decoder.cross, or a head of it, STACK.LAYER.KIND:HEAD as in "
            "decoder.2.cross:4. [default: that with the best word alignment in training, or the first]",
        ),
        Option(
            ["--layer"],
            type=click.IntRange(0),
            section=VIEW_SECTION,
            help="Layer, from 0, where --site names none. [default: that of the best head, or the last]",
        ),
        Option(
            ["--head"],
            type=click.IntRange(0),
            section=VIEW_SECTION,
            help="Head, from 0, where --site names none. [default: the best, or the mean of all]",
        ),
        Option(
            ["--words/--subwords"],
            default=False,
            section=VIEW_SECTION,
            help="Merge subwords into words, or not. [default: --subwords]",
        ),
        Option(
            ["--token"],
            metavar="TOKEN",
            section=VIEW_SECTION,
            help="Token of the views lines, math and flow: a query (of the rows), by its text or its index from 0.",
        ),
        Option(
            ["--norm"],
            default="raw",
            metavar="raw|row|content",
            section=VIEW_SECTION,
            help="Scale of the drawn weights: raw; row: divided by the maximum of the row; content: without special "
            "tokens, each row summing to 1. [default: raw]",
        ),
        Option(["--passage"], metavar="FILE", help="Passage of a question."),
        Option(["--story"], metavar="FILE", help="Story of a question, one sentence per line."),
        Option(["--text-pair", "pair"], metavar="TEXT", help="Second text of a pair."),
        Option(
            ["--out"],
            metavar="FILE",
            section=LAYOUT_SECTION,
            help="Output file: .svg, .pdf, .png or .tex. [default: print in the terminal]",
        ),
        Option(
            ["--width"],
            default="column",
            metavar="WIDTH",
            section=LAYOUT_SECTION,
            help="Width: column (84 mm), page (174 mm), or millimetres. [default: column]",
        ),
        Option(
            ["--theme"],
            default="light",
            metavar="NAME",
            section=LAYOUT_SECTION,
            help="Theme: light or dark. [default: light]",
        ),
        Option(
            ["--dpi"],
            type=click.IntRange(30, 2400),
            default=300,
            section=LAYOUT_SECTION,
            help="Resolution of a .png in dots per inch. [default: 300]",
        ),
        *ENGINE_OPTIONS,
    ],
    json_help="Print the drawn weights and tokens as JSON; with --out, print the path of the file as JSON.",
    output=["regard.view.record.json_form:FigureFileDict", "regard.view.record.json_form:TerminalViewDict"],
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
    token: str | None,
    norm: str,
    **load_options: Any,
) -> None:
    """Draw or print one view."""
    from regard.view.figure import check_figure_options

    check_figure_options(view, out, width, theme, norm)  # before a model is loaded
    if folder.lower().endswith(".json") and Path(folder).is_file():
        record = read_record(folder, text)
    else:
        qkv_head = _qkv_head(attention, layer, head) if view == "math" else ""
        record = _record_text(folder, text, load_options, qkv_head, passage=passage, story=story, pair=pair)
    selection = {"attention": attention, "layer": layer, "head": head, "words": words, "token": token, "norm": norm}
    if out is None:
        _print_view(record, view, selection, as_json)
        return
    from regard.view.figure import figure as draw_figure

    drawing = draw_figure(record, view, width=width, theme=theme, **selection)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as user_warnings:
        warnings.simplefilter("always", UserWarning)
        drawing.save(out, dpi=dpi)
    for warning in user_warnings:
        note(f"note: {warning.message}")
    width_mm, height_mm = drawing.millimetres
    result: FigureFileDict = {
        "out": out,
        "view": drawing.view,
        "millimetres": [width_mm, height_mm],
        "notes": list(drawing.notes),
    }
    print_result(result, [f"{out}: {drawing.about}, {width_mm:g} × {height_mm:g} mm"], as_json)


def _record_text(
    folder: str,
    text: str | None,
    load_options: dict[str, Any],
    qkv_head: str,
    *,
    passage: str | None,
    story: str | None,
    pair: str | None,
) -> Record:
    """Run the model on the text and record its attention, with queries, keys and values of `qkv_head`."""
    if text is None:
        raise UsageError("the text is missing: write it after the model")
    from regard.config.inference import RecordConfig
    from regard.interpret.record_request import PipelineRequest, record_request
    from regard.pipeline.load import load

    request = PipelineRequest(text, read_passage(passage), read_story_file(story), pair)
    provenance = {"version": __version__, "model": Path(folder).name or folder}
    pipeline = load(folder, **load_options)
    return record_request(pipeline, request, RecordConfig(store_qkv=qkv_head), provenance=provenance)


def _print_view(record: Record, view: str, selection: dict[str, Any], as_json: bool) -> None:
    from regard.view.terminal_views import render_view, supports_colour

    rendered = render_view(record, view, colour=supports_colour() and not as_json, **selection)
    result: TerminalViewDict = {"view": view, "title": record.title, "lines": rendered.split("\n")}
    print_result(result, [rendered], as_json)


def _qkv_head(attention: str, layer: int | None, head: int | None) -> str:
    """Head whose queries, keys and values are recorded."""
    if ":" in attention:
        return attention
    if attention and layer is not None and head is not None:
        from regard.attention.sites import site_name

        site_kind = ".".join(part for part in attention.split(".") if not part.isdigit())
        return f"{site_name(site_kind, layer)}:{head}"
    if attention or layer is not None or head is not None:
        raise UsageError("math shows one head: name site and head, as in --site encoder.3.self:2, or neither")
    return "best"
