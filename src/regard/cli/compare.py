"""`regard compare`: several models on one data set, one report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regard.cli.model_options import READING
from regard.cli.options import Option, changed_settings, verb
from regard.cli.output import align_columns, note, print_result, progress_listener
from regard.config.data import ReadConfig
from regard.config.runs import RunConfig
from regard.errors import UsageError

HELP = """Compare models: train several architectures on FILES under one budget, or take finished RUNS.

Writes one report – a page that stands alone, JSON and Markdown – with quality and its confidence, speed, quality by
length of the source, loss curves, and one sentence in every model with where it looked.

\b
  regard compare train.de train.en --test test.de test.en --arch gru:none,gru:additive,transformer --out report
  regard compare runs/a runs/b --test test.en test.de --out report
"""


@verb(
    HELP,
    [
        click.Argument(["words"], nargs=-1, required=True, metavar="FILES… | RUNS…"),
        Option(["--out"], metavar="FOLDER", required=True, help="where the report goes, and the runs it trains"),
        Option(
            ["--arch"],
            metavar="LIST",
            help="architectures to train, with commas between them: transformer, or CELL:ATTENTION with a cell of lstm "
            "or gru and attention of none, additive, dot, bilinear, concat or hard",
        ),
        Option(
            ["--task"],
            type=click.Choice(["translate"]),
            default="translate",
            help="what is learned [default: translate]",
        ),
        Option(["--valid"], multiple=True, metavar="FILE", help="validation data for training; otherwise held out"),
        Option(
            ["--test", "--on", "test"],
            multiple=True,
            metavar="FILE",
            help="what the models are compared on; without it the validation data",
        ),
        Option(["--text"], metavar="TEXT", help="the sentence shown in every model; otherwise one of the test set"),
        Option(["--minutes"], type=click.FloatRange(0, min_open=True), default=10.0, help="for each [default: 10]"),
        Option(["--preset"], metavar="NAME", default="auto", help="size of the models [default: by the data]"),
        Option(["--seed"], type=click.IntRange(0), default=1, help="seed of order, noise and weights [default: 1]"),
        Option(["--threads"], type=click.IntRange(0), default=0, help="processor threads; 0: all cores [default: 0]"),
        *(option for option in READING if getattr(option, "path", "") not in ("text", "label")),
    ],
    greedy=("--valid", "--test", "--on"),
)
def compare(
    context: click.Context,
    words: tuple[str, ...],
    out: str,
    arch: str | None,
    task: str,
    valid: tuple[str, ...],
    test: tuple[str, ...],
    text: str | None,
    minutes: float,
    preset: str,
    seed: int,
    threads: int,
    as_json: bool,
) -> None:
    """Train or load models, measure them alike, write the report."""
    tested = test or valid
    if not tested:
        raise UsageError("there is nothing to compare on: give --test FILES")
    reading = ReadConfig().override(changed_settings(context, ReadConfig))
    from regard.data.pairs import read_pairs
    from regard.report.compare import ComparedRun, compare, train_architectures, write_report

    pairs = read_pairs(tested, reading)
    if arch:
        settings: dict[str, Any] = {
            "task": task,
            "preset": preset,
            "data.train": list(words),
            "data.valid": list(valid),
            **{f"data.read.{name}": value for name, value in reading.to_dict().items()},
            "training.minutes": minutes,
            "training.seed": seed,
            "training.threads": threads,
        }
        entries = [one.strip() for one in arch.split(",") if one.strip()]
        with progress_listener(as_json) as watcher:
            contenders = train_architectures(RunConfig().override(settings), entries, Path(out), [watcher], note)
    else:
        contenders = [ComparedRun(Path(word).name or word, Path(word)) for word in words]
    title = f"{len(contenders)} models compared on {', '.join(Path(one).name for one in tested)}"
    report = compare(contenders, pairs, title=title, text=text or "", notify=note, threads=threads)
    files = write_report(report, Path(out))
    lines = [*align_columns(report.table()), "", report.conclusion(), *(f"written: {file}" for file in files)]
    print_result(report.to_dict(), lines, as_json)
