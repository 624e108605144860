"""`regard see`: attention of a model on a text, served as a page or written to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard import __version__
from regard.cli.model_options import ENGINE_OPTIONS, MODEL_ARGUMENT
from regard.cli.options import HEADS, AutoNumber, Option, changed_settings, knob_options, verb
from regard.cli.output import json_line, note, print_result
from regard.components import VIEWS
from regard.config.data import ReadConfig
from regard.config.inference import RecordConfig
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.interpret.record_request import PipelineRequest
    from regard.view.record.json_form import RecordFileDict
    from regard.view.record.record import Record


def _list_views() -> str:
    """Names of the views of the page, with what they show."""
    return "; ".join(f"{name} ({view.description})" for name, view in VIEWS.items() if view.in_page)


HELP = """Show the attention of MODEL on TEXT: a page, opened in the browser.

MODEL is a run, a model folder, or the name of a model on the hub; or a saved record (.json). With --out, a file is
written instead; its extension selects the format: .html (a self-contained page), .svg, .png, .pdf or .tex (a figure
of one view), .json (a record: texts, attention and predictions, which `see` and `figure` open without the model).

\b
  regard see runs/en-de "The animal didn't cross the street because it was too tired."
  regard see runs/en-de "Two dogs run." --out dogs.html
  regard see bert-base-uncased "The [MASK] was tired." --view heads
  regard see runs/answers "Who was tired?" --passage notes.txt
  regard see runs/en-de "Two dogs run." --ablate encoder.1.self:2 --compare
  regard see runs/mood "A quiet triumph." --attribution --importance
  regard see runs/en-de --history
  regard see runs/en-de "Two dogs run." --out dogs.json
  regard see dogs.json --view matrix --out dogs.svg
"""
MAX_SNAPSHOTS = 40  # evaluations of a training run that are shown
MAX_QKV_WORDS = 256  # up to this length, queries, keys and values of the best head are recorded by default


@verb(
    HELP,
    [
        MODEL_ARGUMENT,
        click.Argument(["text"], required=False, metavar="[TEXT]"),
        Option(["--passage"], metavar="FILE", help="Passage of a question."),
        Option(["--story"], metavar="FILE", help="Story of a question, one sentence per line."),
        Option(["--text-pair"], metavar="TEXT", help="Second text of a pair."),
        Option(
            ["--view"],
            default="",
            metavar="NAME",
            help=f"Initial view: {_list_views()}. [default: by the task]",
        ),
        Option(["--out"], metavar="FILE", help="Output file: .html, .svg, .png, .pdf, .tex or .json."),
        Option(
            ["--heads"],
            default="",
            metavar=HEADS,
            help="Heads shown at first, of one layer, as in encoder.3.self:2. [default: the head that training found "
            "to align words best, or the last layer]",
        ),
        Option(
            ["--full-layers"],
            default="",
            metavar="N,…",
            help="Layers, from 0, whose weights --out and --json write in full, as in 0,3; of the others only the "
            "largest weights. [default: all that fit]",
        ),
        Option(
            ["--words/--subwords"],
            default=False,
            help="Merge subwords into words in a figure, or not. [default: --subwords]",
        ),
        Option(
            ["--compare"],
            section="Explanations",
            is_flag=True,
            help="With --ablate: show the model without ablation, too.",
        ),
        Option(
            ["--attribution"],
            section="Explanations",
            is_flag=True,
            help="Add input attribution by gradient×input, integrated gradients and occlusion, and the Spearman rank "
            "correlation of each with attention.",
        ),
        Option(
            ["--importance"],
            section="Explanations",
            is_flag=True,
            help="Add head importance: what the prediction loses (log-probability or cosine) when one head is ablated.",
        ),
        Option(
            ["--history"],
            section="Explanations",
            is_flag=True,
            help="Show how attention on a validation text changed over the evaluations of a training run.",
        ),
        Option(
            ["--beam"],
            section="Decoding",
            type=click.IntRange(1, 64),
            help="Beam size of a translation model. [default: the model's]",
        ),
        Option(
            ["--max-new-tokens"],
            section="Decoding",
            type=click.IntRange(1),
            help="Maximum number of tokens to generate. [default: 24]",
        ),
        Option(
            ["--port"],
            section="Server",
            type=AutoNumber(click.IntRange(1, 65535)),
            default="auto",
            help="Port of the server; auto: any free one. [default: auto]",
        ),
        Option(["--no-browser"], section="Server", is_flag=True, help="Only print the address of the page."),
        *knob_options(RecordConfig, section="Record"),
        *ENGINE_OPTIONS,
    ],
    json_help="Print the record as JSON; with --out, print the path of the file as JSON.",
    output=["regard.view.record.json_form:RecordDict", "regard.view.record.json_form:RecordFileDict"],
)
def see(
    context: click.Context,
    folder: str,
    text: str | None,
    view: str,
    out: str | None,
    heads: str,
    full_layers: str,
    words: bool,
    history: bool,
    port: int,
    no_browser: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Show the attention of a model."""
    _check_view(view, out)
    layer_indices = _parse_layers(full_layers)
    model: _ViewedModel | None = None
    if folder.lower().endswith(".json") and Path(folder).is_file():
        records = [read_record(folder, text)]
    elif history:
        records = _training_records(folder, text)
    else:
        model, records = _record_text(context, folder, text, **settings)
    records = [_with_initial_view(record, view, heads) for record in records]
    if out is not None:
        site = heads.partition(",")[0]
        path = _write_records(records, out, view=view, layers=layer_indices, words=words, attention=site)
        result: RecordFileDict = {"out": str(path), "id": records[0].id, "title": records[0].title}
        print_result(result, [f"{path}"], as_json)
        return
    if as_json:
        print(json_line(records[0].to_dict(True if layer_indices is None else layer_indices)))
        return
    from regard.server import serve

    serve(
        records,
        run=None if model is None else model.run,
        port=port,
        open_browser=not no_browser,
        title=records[0].title,
        tasks=[records[0].task],
        notify=_print_address,
    )


def _record_text(
    context: click.Context,
    folder: str,
    text: str | None,
    *,
    passage: str | None,
    story: str | None,
    text_pair: str | None,
    beam: int | None,
    max_new_tokens: int | None,
    compare: bool,
    attribution: bool,
    importance: bool,
    **load_options: Any,
) -> tuple[_ViewedModel, list[Record]]:
    """Load the model and record its attention on the text."""
    if text is None:
        raise UsageError("the text is missing: write it after the model")
    decoding = {"beam": beam, "max_new_tokens": max_new_tokens}
    model = _ViewedModel(
        folder,
        load_options,
        passage=read_passage(passage),
        story=read_story_file(story),
        pair=text_pair,
        options={name: option for name, option in decoding.items() if option is not None},
        record_config=RecordConfig().override(changed_settings(context, RecordConfig)),
    )
    return model, model.records(text, compare=compare, attribution=attribution, importance=importance)


def read_record(file: str, text: str | None) -> Record:
    """Read a saved record, which comes without a text on the command line."""
    from regard.view.record.record import Record

    if text is not None:
        raise UsageError(f"{file} is a record: it has its own text, and no model to run on another one")
    return Record.read(file)


def _training_records(folder: str, text: str | None) -> list[Record]:
    """Snapshots of attention at the evaluations of a run."""
    from regard.interpret.training_records import training_records

    if text is not None:
        raise UsageError("--history shows the validation text of the run: leave the text out")
    return training_records(folder, max_records=MAX_SNAPSHOTS)


class _ViewedModel:
    """A loaded model that records its attention, once or repeatedly for the page."""

    def __init__(
        self,
        folder: str,
        load_options: Mapping[str, Any],
        *,
        passage: str,
        story: tuple[str, ...],
        pair: str | None,
        options: Mapping[str, Any],
        record_config: RecordConfig,
    ) -> None:
        from regard.attention.intervention import active_intervention
        from regard.pipeline.load import load

        self.passage = passage
        self.story = story
        self.pair = pair
        self.options = options
        self.record_config = record_config
        self.pipeline = load(folder, **load_options)
        intervention = active_intervention()
        self.ablated_heads = str(intervention).split(",") if intervention is not None else []
        self.provenance = {"version": __version__, "model": Path(folder).name or folder, **_format_dtype(load_options)}

    def records(self, text: str, *, compare: bool, attribution: bool, importance: bool) -> list[Record]:
        """Record the text with the requested explanations; to compare, first without ablation."""
        from regard.attention.intervention import disable_ablation
        from regard.interpret.record_request import add_explanations, record_request

        if compare and not self.ablated_heads:
            raise UsageError("there is nothing to compare: ablate heads with --ablate encoder.3.self:2")
        request = self._request(text)
        config = self._record_config(text)
        record = record_request(self.pipeline, request, config, provenance=self.provenance)
        if attribution or importance:
            record = add_explanations(record, self.pipeline, request, attribution=attribution, importance=importance)
        if not compare:
            return [record]
        with disable_ablation():
            unablated = record_request(self.pipeline, request, config, provenance=self.provenance)
        return [unablated, record]

    def run(self, task: str, text: str, options: Mapping[str, Any]) -> Record:
        """Record a text that the page requests."""
        from regard.attention.intervention import disable_ablation
        from regard.interpret.record_request import record_request

        decoding = {name: option for name, option in options.items() if name != "ablate"}
        heads = [*self.ablated_heads, *options.get("ablate", [])]
        with disable_ablation():
            return record_request(
                self.pipeline,
                self._request(text, decoding),
                self._record_config(text),
                provenance=self.provenance,
                ablated=heads,
            )

    def _request(self, text: str, options: Mapping[str, Any] | None = None) -> PipelineRequest:
        from regard.interpret.record_request import PipelineRequest

        merged = {**self.options, **(options or {})}
        return PipelineRequest(text, self.passage, story=self.story, pair=self.pair, options=merged)

    def _record_config(self, text: str) -> RecordConfig:
        """For short texts, record queries, keys and values of the best head, too."""
        is_long = max(len(text.split()), len(self.passage.split())) > MAX_QKV_WORDS
        if self.record_config.store_qkv or is_long:
            return self.record_config
        return self.record_config.override({"store_qkv": "best"})


def _with_initial_view(record: Record, view: str, heads: str) -> Record:
    """Make a record open with a view and with heads; raise for heads that it does not have."""
    from regard.attention.sites import site_kind, site_layer
    from regard.pipeline.result import AttentionMaps

    state: dict[str, Any] = {"view": view} if view else {}
    names = [name.strip() for name in heads.split(",") if name.strip()]
    for name in names:
        if ":" not in name:
            raise UsageError(f"{name!r} names no head: write site and head, as in encoder.3.self:2")
        _ = AttentionMaps(record)[name]  # raises for a head that the record does not have
    if names:
        sites = {name.partition(":")[0] for name in names}
        if len(sites) > 1:
            raise UsageError(f"--heads must be of one site, but there are several: {heads}")
        (site,) = sites
        indices = [int(name.partition(":")[2]) for name in names]
        state |= {"attention": site_kind(site), "layer": site_layer(site), "head": indices[0], "heads": indices}
    return replace(record, view={**record.view, **state}) if state else record


def _check_view(view: str, out: str | None) -> None:
    """Raise for an unknown view, or one that is not in the format of the output."""
    from regard.view.export import FIGURES, check_ending

    if out is not None:
        check_ending(out)
    if not view:
        return
    is_figure = out is not None and out.lower().endswith(FIGURES)
    if not (VIEWS[view].draw if is_figure else VIEWS[view].in_page):
        alternative = "the page shows it" if is_figure else "`regard figure` draws it"
        raise UsageError(f"the view {view} is not {'a figure' if is_figure else 'in the page'}: {alternative}")


def _write_records(
    records: Sequence[Record], out: str, *, view: str, layers: list[int] | None, words: bool, attention: str
) -> Path:
    """Write one record in the format of the file's extension, or several as a page."""
    from regard.view.export import write_record

    if len(records) > 1:
        if not out.lower().endswith(".html"):
            raise UsageError(f"{len(records)} records do not fit {out}, a file for one: write .html or leave out --out")
        return _write_page(records, out)
    return write_record(records[0], out, view=view, layers=layers, words=words, attention=attention)


def _write_page(records: Sequence[Record], out: str) -> Path:
    """Write a page of several records."""
    from regard.checkpoint.atomic import write_file
    from regard.view.export import check_export_size
    from regard.view.page import page

    for record in records:
        check_export_size(record)
    write_file(Path(out), page(records, title=records[0].title).encode("utf-8", "replace"))
    return Path(out)


def _parse_layers(text: str) -> list[int] | None:
    """Parse a list of layer indices.

    >>> _parse_layers("0, 3"), _parse_layers("")
    ([0, 3], None)
    """
    if not text:
        return None
    layers = [layer.strip() for layer in text.split(",")]
    if not all(layer.isdecimal() for layer in layers):
        raise UsageError(f"--full-layers takes numbers separated by commas, not {text!r}")
    return [int(layer) for layer in layers]


def read_passage(path: str | None) -> str:
    """Text of a passage file; empty without one."""
    if path is None:
        return ""
    from regard.data.ledger import read_lines

    return "\n".join(read_lines(path, ReadConfig()))


def read_story_file(path: str | None) -> tuple[str, ...]:
    """Sentences of a story file; empty without a path."""
    if path is None:
        return ()
    from regard.data.babi import read_story

    return tuple(read_story(path, ReadConfig()).sentences)


def _format_dtype(load_options: Mapping[str, Any]) -> dict[str, str]:
    return {"dtype": str(load_options["precision"])} if load_options.get("precision") else {}


def _print_address(address: str) -> None:
    note(f"{address}\n  shown on this machine only; the address works once; stop with Ctrl-C")
