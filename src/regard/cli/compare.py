"""`regard compare`: several models on one data set, one report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regard.cli.model_options import PAIR_READ_OPTIONS
from regard.cli.options import FILES_METAVAR, AutoNumber, FiniteRange, Option, changed_settings, verb
from regard.cli.output import align_columns, note, note_each, print_result, progress_listener
from regard.config.data import ReadConfig
from regard.config.rnn_models import SEQ2SEQ_PRESETS
from regard.config.task_runs import TranslateRun
from regard.errors import UsageError

HELP = """Compare translation models: train several architectures on FILES within the same time, or load finished RUNS.

Writes one report as a self-contained page, as JSON and as Markdown: quality with confidence intervals, speed, quality
by source length, loss curves, and the attention of every model on one sentence.

\b
  regard compare train.de train.en --test test.de test.en --arch gru:none,gru:additive,transformer --out report
  regard compare runs/en-de runs/mine --test test.en test.de --out report
"""


@verb(
    HELP,
    [
        click.Argument(["inputs"], nargs=-1, required=True, metavar="FILES… | RUNS…"),
        Option(["--out"], metavar="FOLDER", required=True, help="Folder for the report and for the runs it trains."),
        Option(
            ["--arch"],
            metavar="LIST",
            help="Architectures to train, separated by commas: transformer, or CELL:ATTENTION with cell lstm or gru "
            "and attention none, additive, dot, bilinear, concat or hard (additive, with a straight-through "
            "estimator).",
        ),
        Option(
            ["--valid"],
            multiple=True,
            metavar=FILES_METAVAR,
            help="Validation data for training, one file or two, after FILES; otherwise held out.",
        ),
        Option(
            ["--test"],
            multiple=True,
            metavar=FILES_METAVAR,
            help="Test data of the comparison, one file or two. [default: the validation data]",
        ),
        Option(
            ["--sentence"], metavar="TEXT", help="Sentence whose attention is shown. [default: one of the test set]"
        ),
        Option(
            ["--minutes"],
            type=FiniteRange(0, min_open=True),
            default=10.0,
            help="Training time of each model in minutes. [default: 10]",
        ),
        Option(
            ["--preset"],
            type=click.Choice(("auto", *SEQ2SEQ_PRESETS)),
            default="auto",
            help="Model size, as in `regard train translate --help`; auto: by the size of the data. [default: auto]",
        ),
        Option(
            ["--seed"], type=click.IntRange(0), default=1, help="Seed of data order, dropout and weights. [default: 1]"
        ),
        Option(
            ["--threads"],
            type=AutoNumber(click.IntRange(1)),
            default="auto",
            help="Number of threads; auto: all cores. [default: auto]",
        ),
        *PAIR_READ_OPTIONS,
    ],
    greedy=("--valid", "--test"),
    output=["regard.training.listeners:TrainingEvent", "regard.report.json_output:ComparisonReportDict"],
)
def compare(
    context: click.Context,
    inputs: tuple[str, ...],
    out: str,
    arch: str | None,
    valid: tuple[str, ...],
    test: tuple[str, ...],
    sentence: str | None,
    minutes: float,
    preset: str,
    seed: int,
    threads: int,
    as_json: bool,
) -> None:
    """Train or load models, evaluate them on the same data, write the report."""
    test_files = test or valid
    if not test_files:
        raise UsageError("the test data are missing: add --test FILES")
    read_config = ReadConfig().override(changed_settings(context, ReadConfig))
    from regard.data.pairs import read_pairs
    from regard.report.compare import ComparedRun, compare, train_architectures, write_report

    pairs = read_pairs(test_files, read_config)
    note_each(pairs.notes)
    if arch:
        settings: dict[str, Any] = {
            "preset": preset,
            "data.train": list(inputs),
            "data.valid": list(valid),
            **{f"data.read.{path}": setting for path, setting in changed_settings(context, ReadConfig).items()},
            "training.minutes": minutes,
            "training.seed": seed,
            "training.threads": threads,
        }
        config = TranslateRun.build(settings)
        architectures = [name.strip() for name in arch.split(",") if name.strip()]
        with progress_listener(as_json) as listener:
            runs = train_architectures(config, architectures, Path(out), [listener], note)
    else:
        runs = [ComparedRun(Path(folder).name or folder, Path(folder)) for folder in inputs]
    title = f"{len(runs)} models compared on {', '.join(Path(file).name for file in test_files)}"
    report = compare(runs, pairs, title=title, text=sentence or "", notify=note, threads=threads)
    files = write_report(report, Path(out))
    lines = [*align_columns(report.table()), "", report.conclusion(), *(f"written: {file}" for file in files)]
    print_result(report.to_dict(), lines, as_json)
