"""`regard see`: where a model looked while it read or wrote a text – served, or as a file by its ending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard import __version__
from regard.cli.model_options import ENGINE
from regard.cli.options import Option, changed_settings, knob_options, verb
from regard.cli.output import json_line, note, print_result
from regard.config.data import ReadConfig
from regard.config.inference import RecordConfig
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.interpret.request import PipelineRequest
    from regard.view.record.record import Record

HELP = """Show where the model of FOLDER looked while it read or wrote TEXT: a page, opened in the browser.

FOLDER is any that Regard reads: a run, a folder from elsewhere, or the name of a published model; or a record that was
written before (.json). With --out, one file is written instead, and its ending says what: .html (a page that needs
nothing else), .svg, .png, .pdf or .tex (a figure of one view), .json (the record).

\b
  regard see runs/en-de "The animal didn't cross the street because it was too tired."
  regard see runs/en-de "Two dogs run." --out dogs.html
  regard see bert-base-uncased "The animal was tired." --view heads
  regard see runs/qa "Who was tired?" --passage notes.txt
  regard see runs/en-de "Two dogs run." --off encoder.3.self:2 --compare
  regard see runs/mood "A quiet triumph." --attribution --importance
  regard see runs/en-de --epochs --view compare
  regard see dogs.json --view align --out dogs.svg
"""
MOMENTS = 40  # evaluations of a training that are shown
SHORT = 256  # tokens of a text whose best head's numbers are kept without being asked for


@verb(
    HELP,
    [
        click.Argument(["folder"], metavar="FOLDER"),
        click.Argument(["text"], required=False, metavar="[TEXT]"),
        Option(["--passage"], metavar="FILE", help="the text that a question is about"),
        Option(["--story"], metavar="FILE", help="what was told before a question, one sentence a line"),
        Option(["--pair"], metavar="TEXT", help="a second text that is read beside the first"),
        Option(
            ["--view"],
            default="",
            help="look, heads, align, steps, maths, place, verdict or flow [default: by the task]",
        ),
        Option(["--out"], metavar="FILE", help="write a file: .html, .svg, .png, .pdf, .tex or .json"),
        Option(
            ["--heads"], default="", metavar="NAMES", help="heads to open with: encoder.3.self:2, … [default: the best]"
        ),
        Option(
            ["--layers"],
            default="",
            metavar="NUMBERS",
            help="layers that a file has whole; of others the most [default: all that fit]",
        ),
        Option(["--words"], is_flag=True, help="figures of words instead of tokens"),
        Option(["--compare"], is_flag=True, help="show it beside the same model with all heads on"),
        Option(["--attribution"], is_flag=True, help="add what the answer hangs on, and how far attention agrees"),
        Option(["--importance"], is_flag=True, help="add what this answer loses without each head"),
        Option(["--epochs"], is_flag=True, help="a run's evaluations: where it looked at one text as it learned"),
        Option(["--beam"], type=click.IntRange(1, 64), help="hypotheses that a translator keeps at each step"),
        Option(["--most"], type=click.IntRange(1), help="tokens that a causal model writes [default: 24]"),
        Option(
            ["--port"],
            type=click.IntRange(0, 65535),
            default=0,
            help="where it is served; 0: any that is free [default: 0]",
        ),
        Option(["--no-browser", "quiet"], is_flag=True, help="only say where the page is"),
        *knob_options(RecordConfig, section="What is kept"),
        *ENGINE,
    ],
)
def see(
    context: click.Context,
    folder: str,
    text: str | None,
    passage: str | None,
    story: str | None,
    pair: str | None,
    view: str,
    out: str | None,
    heads: str,
    layers: str,
    words: bool,
    compare: bool,
    attribution: bool,
    importance: bool,
    epochs: bool,
    beam: int | None,
    most: int | None,
    port: int,
    quiet: bool,
    as_json: bool,
    **computing: Any,
) -> None:
    """Show where a model looked."""
    from regard.view.export import check_ending, write_record

    _check_view(view)
    if out is not None:
        check_ending(out)
    chosen = _numbers(layers)
    if folder.lower().endswith(".json") and Path(folder).is_file():
        from regard.view.record.record import Record

        if text is not None:
            raise UsageError(f"{folder} is a record: it has its text already, and no model to read another one")
        records, run = [Record.read(folder)], None
    elif epochs:
        from regard.interpret.training_records import training_records

        if text is not None:
            raise UsageError("--epochs shows the text that training kept: leave the text out")
        records, run = training_records(folder, max_records=MOMENTS), None
    else:
        if text is None:
            raise UsageError("the text is missing: write it behind the folder")
        seeing = RecordConfig().override(changed_settings(context, RecordConfig))
        options = {name: value for name, value in (("beam", beam), ("max_new_tokens", most)) if value is not None}
        reasons = {"attribution": attribution, "importance": importance}
        model = _ViewedModel(folder, computing, passage, story, pair, options, seeing, reasons)
        records, run = model.records(text, compare), model.run
    records = [_opened(record, view, heads) for record in records]
    if out is not None and len(records) > 1 and not out.lower().endswith(".html"):
        raise UsageError(f"{len(records)} records are shown, but {out} holds one: write .html, or look at them served")
    if out is not None:
        made = _page(records, out) if len(records) > 1 else None
        figure = {"words": words, "attention": heads.partition(",")[0]}
        made = made or write_record(records[0], out, view=view, layers=chosen, **figure)
        print_result({"out": str(made), "id": records[0].id, "title": records[0].title}, [f"{made}"], as_json)
        return
    if as_json:
        print(json_line(records[0].to_dict(True if chosen is None else chosen)))
        return
    from regard.server import serve

    title, tasks = records[0].title, [records[0].task]
    serve(records, run, port, not quiet, title=title, tasks=tasks, notify=lambda address: note(_where(address)))


class _ViewedModel:
    """A model that was loaded to be asked, once or, over the page, again and again."""

    def __init__(
        self,
        folder: str,
        computing: Mapping[str, Any],
        passage: str | None,
        story: str | None,
        pair: str | None,
        options: Mapping[str, Any],
        seeing: RecordConfig,
        reasons: Mapping[str, bool],
    ) -> None:
        from regard.attention.intervention import active_intervention
        from regard.pipeline.load import load

        self.passage, self.story = read_passage(passage), read_story_file(story)
        self.pair, self.options, self.seeing, self.reasons = pair, options, seeing, reasons
        self.pipeline = load(folder, **computing)
        silent = active_intervention()
        self.off = str(silent).split(",") if silent is not None else []
        self.made = {"version": __version__, "model": Path(folder).name or folder, **_format(computing)}

    def asked(self, text: str, options: Mapping[str, Any]) -> PipelineRequest:
        from regard.interpret.request import PipelineRequest

        return PipelineRequest(text, self.passage, self.story, self.pair, {**self.options, **options})

    def records(self, text: str, compare: bool) -> list[Record]:
        """Return the record of a text; to compare, first that with all heads on."""
        from regard.attention.intervention import disable_ablation
        from regard.interpret.request import record_request

        if compare and not self.off:
            raise UsageError("there is nothing to compare: name heads to switch off with --off encoder.3.self:2")
        asked = self.asked(text, {})
        seeing = self._seeing(text)
        made = [record_request(self.pipeline, asked, seeing, provenance=self.made)]
        if any(self.reasons.values()):
            from regard.interpret.request import add_explanations

            made = [add_explanations(made[0], self.pipeline, asked, **self.reasons)]
        if compare:
            with disable_ablation():
                made.insert(0, record_request(self.pipeline, asked, seeing, provenance=self.made))
        return made

    def run(self, task: str, text: str, options: Mapping[str, Any]) -> Record:
        """Return the record of a text that was asked for over the page."""
        from regard.attention.intervention import disable_ablation
        from regard.interpret.request import record_request

        given = {name: value for name, value in options.items() if name != "off"}
        heads = [*self.off, *options.get("off", [])]
        with disable_ablation():
            return record_request(
                self.pipeline, self.asked(text, given), self._seeing(text), provenance=self.made, ablated=heads
            )

    def _seeing(self, text: str) -> RecordConfig:
        """Return what is kept: of a short text the numbers inside the best head, too."""
        if self.seeing.store_qkv or len(text.split()) > SHORT or len(self.passage.split()) > SHORT:
            return self.seeing
        return self.seeing.override({"store_qkv": "best"})


def _opened(record: Record, view: str, heads: str) -> Record:
    """Return the record opening with a view and with heads; heads that it has not are refused."""
    from regard.attention.sites import site_kind, site_layer
    from regard.pipeline.result import AttentionMaps

    state: dict[str, Any] = {"view": view} if view else {}
    names = [name.strip() for name in heads.split(",") if name.strip()]
    for name in names:
        if ":" not in name:
            raise UsageError(f"{name!r} names no head: write site and number, as in encoder.3.self:2")
        _ = AttentionMaps(record)[name]
    if names:
        numbers = [int(name.partition(":")[2]) for name in names]
        site = names[0].partition(":")[0]
        if any(name.partition(":")[0] != site for name in names):
            raise UsageError(f"--heads are of one site, but there are several: {heads}")
        state |= {"attn": site_kind(site), "layer": site_layer(site), "head": numbers[0], "heads": numbers}
    return replace(record, view={**record.view, **state}) if state else record


def _check_view(view: str) -> None:
    from regard.errors import nearest
    from regard.view.figure import FIGURE_VIEWS

    if view and view not in FIGURE_VIEWS:
        raise UsageError(f"no such view: {view}{nearest(view, FIGURE_VIEWS)}: there are {', '.join(FIGURE_VIEWS)}")


def _page(records: Sequence[Record], out: str) -> Path:
    """Write a page of several records."""
    from regard.checkpoint.atomic import write_file
    from regard.view.export import check_size
    from regard.view.page import page

    for record in records:
        check_size(record)
    write_file(Path(out), page(records, title=records[0].title).encode("utf-8", "replace"))
    return Path(out)


def _numbers(given: str) -> list[int] | None:
    """Return the numbers of a list.

    >>> _numbers("0, 3"), _numbers("")
    ([0, 3], None)
    """
    if not given:
        return None
    words = [word.strip() for word in given.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"--layers are numbers parted by commas, not {given!r}")
    return [int(word) for word in words]


def read_passage(path: str | None) -> str:
    """Return the text of a file that a question is about."""
    if path is None:
        return ""
    from regard.data.ledger import read_lines

    return "\n".join(read_lines(path, ReadConfig()))


def read_story_file(path: str | None) -> tuple[str, ...]:
    """Return the sentences of a file that a question is about."""
    if path is None:
        return ()
    from regard.data.babi import read_story

    return tuple(read_story(path, ReadConfig()).sentences)


def _format(computing: Mapping[str, Any]) -> dict[str, str]:
    return {"dtype": str(computing["precision"])} if computing.get("precision") else {}


def _where(address: str) -> str:
    return f"{address}\n  shown on this machine only; the address is good for one use; end with Ctrl-C"
