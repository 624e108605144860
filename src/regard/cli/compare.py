"""`regard compare`: several models of one task on the same data, one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import click

from regard.cli.lists import split_list
from regard.cli.model_options import READ_OPTIONS
from regard.cli.options import (
    FILES_METAVAR,
    AutoNumber,
    FiniteRange,
    Option,
    changed_settings,
    is_on_command_line,
    max_two_values,
    verb,
)
from regard.cli.output import align_columns, note, print_result, progress_listener
from regard.config.architecture import architecture_table
from regard.config.data import ReadConfig
from regard.config.rnn_models import CELLS
from regard.config.runs import run_config_class
from regard.errors import UsageError
from regard.registry import TASKS

HELP = """Compare models of one task: train architectures on FILES within the same time, or load finished RUNS.

Writes one report as a self-contained page, as JSON and as Markdown: the metric of the task with confidence intervals,
paired tests against the best model, speed, parameters, learning curves, and one example through every model.
Repeat the command after an interruption: finished runs, in FOLDER/NAME/seed-N, are not trained again.

Entries of --arch: {architectures}.

counts is a baseline that counts words: logistic regression on words and bigrams, each word's most frequent tag, the
phrase near most words of the question, or the most frequent answer. MODEL is a folder or a name on the hub:
frozen:MODEL trains a head on its states, tuned:MODEL all of its weights, features:MODEL an RNN over its frozen states.
CELL:ATTENTION is an RNN with that cell and attention; hard is additive, with a straight-through estimator. NAME=ENTRY
names an entry, so that it can take part twice.

\b
  regard compare train.de train.en --test test.de test.en --arch gru:none,gru:additive,transformer --out report
  regard compare reviews.csv --task classify --arch counts,rnn:mean,transformer --test test.csv --seeds 1,2,3 --out mood
  regard compare names.conll --task tag --arch counts,rnn,tuned:bert-base-uncased --test test.conll --out names
  regard compare runs/en-de runs/mine --test test.en test.de --out report
"""
TRAINING_FLAGS = ("--set", "--valid", "--minutes", "--preset", "--seeds")
DEFAULT_TASK = "translate"


def _list_architectures() -> str:
    """Entries of every task; those of RNNs in translation are too many to name."""
    lists = []
    for task in TASKS:
        names = architecture_table(task)
        cells = {name for name in names if name.partition(":")[0] in CELLS}
        shown = [name for name in names if name not in cells] + (["CELL:ATTENTION"] if cells else [])
        if shown:
            lists.append(f"{task}: {', '.join(shown)}")
    return "; ".join(lists)


def _max_values(arguments: Sequence[str]) -> int:
    """Maximum number of files after --valid and --test: two parallel ones, or as many as the task reads.

    Finished RUNS are folders, so that all files beside them are test data.
    """
    if _find_value(arguments, "--arch") is None:
        return max(1, sum(Path(argument).exists() and not Path(argument).is_dir() for argument in arguments))
    task = _find_value(arguments, "--task") or DEFAULT_TASK
    return len(arguments) if task in TASKS and TASKS[task].has_many_files else max_two_values(arguments)


def _find_value(arguments: Sequence[str], flag: str) -> str | None:
    """Value of an option before the command line is parsed; None without the option.

    >>> _find_value(["a.txt", "--task", "tag"], "--task"), _find_value(["--task=tag"], "--task"), _find_value([], "-x")
    ('tag', 'tag', None)
    """
    value = None
    for argument, following in pairwise([*arguments, ""]):
        if argument == flag:
            value = following
        elif argument.startswith(f"{flag}="):
            value = argument.removeprefix(f"{flag}=")
    return value


def _parse_seeds(context: click.Context, option: click.Parameter, value: str) -> tuple[int, ...]:
    """Seeds from their list."""
    texts = split_list(value)
    if not texts or not all(text.isdecimal() for text in texts):
        raise click.BadParameter(f"{value!r}: must be whole numbers from 0, separated by commas: 1,2,3")
    return tuple(map(int, texts))


@verb(
    HELP.format(architectures=_list_architectures()),
    [
        click.Argument(["inputs"], nargs=-1, required=True, metavar="FILES… | RUNS…"),
        Option(["--out"], metavar="FOLDER", required=True, help="Folder for the report and for the runs it trains."),
        Option(
            ["--task"],
            metavar="TASK",
            help=f"Task that models are trained for; finished RUNS have one. [default: {DEFAULT_TASK}]",
        ),
        Option(["--arch"], metavar="LIST", help="Architectures to train, separated by commas; see above."),
        Option(
            ["--set", "settings"],
            multiple=True,
            metavar="[NAME:]PATH=VALUE",
            help="Setting of all architectures, or of the one with this NAME, by its dotted path as in "
            "`regard train TASK --help-all`; may be repeated. Data, seeds and time have options of their own.",
        ),
        Option(
            ["--valid"],
            multiple=True,
            metavar=FILES_METAVAR,
            help="Validation data for training, after FILES; otherwise held out.",
        ),
        Option(
            ["--test"],
            multiple=True,
            metavar=FILES_METAVAR,
            help="Test data of the comparison. [default: the validation data, which also select the checkpoints: "
            "scores are then optimistic, and the report says so]",
        ),
        Option(
            ["--metric"],
            metavar="NAME",
            help="Metric that ranks the models, as in `regard evaluate`. [default: that of the task]",
        ),
        Option(
            ["--example"],
            type=click.IntRange(1),
            help="Number of the test example that is shown through every model. [default: one of suitable length]",
        ),
        Option(
            ["--minutes"],
            type=FiniteRange(0, min_open=True),
            default=10.0,
            help="Training time of each run in minutes; memory networks train their number of epochs. [default: 10]",
        ),
        Option(
            ["--preset"],
            metavar="NAME",
            help="Size of the models that are trained from scratch, as in `regard train TASK --help`. [default: by the "
            "size of the data]",
        ),
        Option(
            ["--seeds"],
            metavar="LIST",
            default="1",
            callback=_parse_seeds,
            help="Seeds of data order, dropout and weights, separated by commas: one run for each. [default: 1]",
        ),
        Option(
            ["--threads"],
            type=AutoNumber(click.IntRange(1)),
            default="auto",
            help="Number of threads; auto: all cores. [default: auto]",
        ),
        *READ_OPTIONS,
    ],
    greedy=("--valid", "--test"),
    max_values=_max_values,
    output=["regard.training.listeners:TrainingEvent", "regard.report.json_output:ComparisonReportDict"],
)
def compare(
    context: click.Context,
    inputs: tuple[str, ...],
    out: str,
    task: str | None,
    arch: str | None,
    settings: tuple[str, ...],
    valid: tuple[str, ...],
    test: tuple[str, ...],
    metric: str | None,
    example: int | None,
    minutes: float,
    preset: str | None,
    seeds: tuple[int, ...],
    threads: int,
    as_json: bool,
) -> None:
    """Train or load models, evaluate them on the same data, write the report."""
    test_files = test or valid
    if not test_files:
        raise UsageError("the test data are missing: add --test FILES")
    from regard.report.comparison.compare import NOTE, ComparisonOptions, compare_architectures, compare_runs
    from regard.report.comparison.page import report_table, write_report
    from regard.report.comparison.training import TrainingPlan, check_task, finished_task, parse_candidates

    options = ComparisonOptions(metric=metric or "", example=example or 0, threads=threads)
    reading = changed_settings(context, ReadConfig)
    if arch:
        task = check_task(task or DEFAULT_TASK)
        _check_reading(task, reading)
        plan = TrainingPlan(
            task,
            parse_candidates(split_list(arch), task, settings),
            _shared_settings(inputs, valid, reading, threads),
            seeds=seeds,
            minutes=minutes,
            preset=preset or "",
        )
        with progress_listener(as_json) as listener:
            report = compare_architectures(plan, test_files, Path(out), options, listeners=[listener], notify=note)
    else:
        _reject_training_options(context)
        _check_reading(finished_task(inputs, task or ""), reading)
        report = compare_runs(inputs, test_files, ReadConfig().override(reading), options, notify=note)
    files = write_report(report, Path(out))
    lines = [
        *align_columns(report_table(report)),
        "",
        report.conclusion,
        *([f"note: {report.details[NOTE]}"] if NOTE in report.details else []),
        *(f"written: {file}" for file in files),
    ]
    print_result(report.to_dict(), lines, as_json)


def _shared_settings(
    train: Sequence[str], valid: Sequence[str], reading: Mapping[str, object], threads: int
) -> dict[str, object]:
    """Settings that all runs share: the data, how files are read, and the number of threads."""
    settings: dict[str, object] = {"data.train": list(train)}
    if valid:
        settings["data.valid"] = list(valid)
    settings |= {f"data.read.{path}": setting for path, setting in reading.items()}
    return {**settings, "training.threads": threads}


def _reject_training_options(context: click.Context) -> None:
    """Refuse options of training where finished runs are compared."""
    for flag in TRAINING_FLAGS:
        if is_on_command_line(context, flag):
            raise UsageError(f"{flag} is for training: name architectures with --arch, or leave it out")


def _check_reading(task: str, reading: Mapping[str, object]) -> None:
    """Refuse a setting of reading that means nothing to the task."""
    config = run_config_class(task)
    known = {knob.path for knob in config.knobs()}
    for path in reading:
        if f"data.read.{path}" not in known:
            raise config.unknown_setting(f"data.read.{path}", known)
