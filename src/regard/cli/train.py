"""`regard train`: a RunConfig from a recipe and flags, then a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.checkpoint.atomic import read_json
from regard.checkpoint.run_defaults import apply_defaults
from regard.cli.options import Option, changed_settings, dotted_options, verb
from regard.cli.output import note, print_result, progress_listener
from regard.cli.progress import format_metrics
from regard.config.defaults import in_own_names
from regard.config.runs import TASKS, RunConfig
from regard.errors import UsageError, nearest
from regard.formatting import format_duration

if TYPE_CHECKING:
    from regard.training.listeners import Listener
    from regard.training.verdict import Verdict

FLAGS = {
    "data.valid": "--valid",
    "pretrained": "--from",
    "preset": "--preset",
    "architecture": "--arch",
    "seq2seq.cell": "--cell",
    "seq2seq.attention": "--attention",
    "seq2seq.hard_attention": "--choice",
    "seq2seq.input_feeding": "--input-feeding",
    "memory_network.hops": "--hops",
    "stories.restarts": "--starts",
    "stories.unknown_answers": "--unseen",
    "fine_tuning.features": "--features",
    "fine_tuning.seeds": "--seeds",
    "fine_tuning.test": "--test",
    "fine_tuning.class_weights": "--weights",
    "fine_tuning.freeze_encoder": "--frozen",
    "fine_tuning.layer_lr_decay": "--layer-decay",
    "documents.document_boundary": "--document",
    "masking.mask_rate": "--mask-rate",
    "masking.whole_word_masking": "--whole-words",
    "masking.next_sentence": "--next-sentence",
    "masking.words": "--words",
    "documents.sequence_length": "--row",
    "training.minutes": "--minutes",
    "training.steps": "--steps",
    "training.epochs": "--epochs",
    "training.seed": "--seed",
    "training.batch_tokens": "--batch-tokens",
    "training.learning_rate": "--learning-rate",
    "training.patience": "--patience",
    "training.average_checkpoints": "--average",
    "training.evaluate_every": "--evaluate-every",
    "training.save_every": "--save-every",
    "training.threads": "--threads",
    "training.workers": "--workers",
    "training.device": "--device",
    "training.precision": "--precision",
    "tokenizer.kind": "--tokenizer",
    "tokenizer.vocab_size": "--vocabulary",
    "tokenizer.joint": "--separate",
    "data.max_length": "--max-length",
    "data.read.encoding": "--encoding",
    "data.read.format": "--format",
    "data.read.source": "--source",
    "data.read.target": "--target",
    "data.read.text": "--text",
    "data.read.label": "--label",
    "data.read.pair": "--pair",
    "data.read.label_separator": "--label-separator",
    "data.read.no_header": "--no-header",
    "data.read.delimiter": "--delimiter",
    "data.read.lenient": "--lenient",
    "data.read.max_reject": "--max-reject",
}
SECTIONS = {
    "memory_network.": "Stories",
    "stories.": "Stories",
    "training.": "Training",
    "tokenizer.": "Words",
    "data.read.": "Reading files",
    "": "Run",
}
NEGATED = {"tokenizer.joint": "a tokenizer for each language instead of one for both"}

MANY_FILES = {"stories", "language", "tag", "answer"}  # tasks that take any number of files; the others two, or one

TRIES = {  # task, or architecture where it has several uses → how its model is used
    "translate": 'regard translate {} "…"',
    "stories": 'regard answer {} --story STORY.txt "…"',
    "language": "regard train classify TEXTS.csv --features {} --out FOLDER",
    "gpt": 'regard generate {} "…"',
    "bert": 'regard fill {} "… [MASK] …"',
    "classify": 'regard classify {} "…"',
    "tag": 'regard tag {} "…"',
    "answer": 'regard answer {} --passage PASSAGE.txt "…"',
}

HELP = """Train a model on FILES: two parallel files, or one with two columns (.tsv, .csv, .jsonl; .gz too).

A language model reads plain text, a classifier texts with a label each, a tagger a word and its tag a line; stories
with questions are in the form of the bAbI tasks, one file a task.

Ctrl-C finishes the step, or the pass over stories, and saves; the same command goes on from there.

\b
  regard train translate train.en train.de --valid val.en val.de --out runs/en-de
  regard train translate pairs.tsv --minutes 30 --out runs/x
  regard train translate mine.tsv --from runs/en-de --out runs/mine
  regard train language books/*.txt --arch elmo --out runs/elmo
  regard train language books/*.txt --arch bert --preset mini --minutes 60 --out runs/bert
  regard train language notes/*.txt --from runs/bert --out runs/adapted
  regard train language book.txt --arch gpt --tokenizer characters --minutes 20 --out runs/gpt
  regard train classify reviews.csv --features runs/elmo --out runs/mood
  regard train classify reviews.csv --from folder/of/a/bert --out runs/mood
  regard train tag names.conll --features runs/elmo --out runs/names
  regard train tag names.conll --from folder/of/a/bert --out runs/names
  regard train answer squad.json --from folder/of/a/bert --out runs/answers
  regard train stories qa1_train.txt qa2_train.txt --valid qa1_test.txt qa2_test.txt --hops 3 --out runs/babi
  regard train --recipe recipes/multi30k-en-de.json --out runs/x
"""


@verb(
    HELP,
    [
        click.Argument(["words"], nargs=-1, metavar="TASK FILES…"),
        Option(
            ["--out"],
            metavar="FOLDER",
            required=True,
            section="Run",
            help="the run's folder; an unfinished run is continued",
        ),
        Option(["--recipe"], metavar="FILE", section="Run", help="a JSON file with a whole run's settings"),
        Option(
            ["--watch"], is_flag=True, section="Run", help="open a page that shows where the model looks as it learns"
        ),
        *dotted_options(RunConfig, flags=FLAGS, sections=SECTIONS, negated=NEGATED, skip=("task", "data.train")),
    ],
    greedy=("--valid", "--data.valid"),
    most=lambda words: len(words) if {*words} & MANY_FILES else 2,
)
def train(
    context: click.Context, words: tuple[str, ...], out: str, recipe: str | None, watch: bool, as_json: bool
) -> None:
    """Train a model."""
    config = build_run(words, recipe, changed_settings(context))
    train_and_report(context, config, out, as_json, _open_page(config, out) if watch else [])


def _open_page(config: RunConfig, out: str) -> list[Listener]:
    """Serve a page beside the training and return the watcher that puts what is seen there."""
    import sys
    import threading

    from regard.interpret.training_records import SnapshotListener
    from regard.server.app import create_app
    from regard.server.serve import serve
    from regard.server.store import RecordStore

    assert create_app is not None
    shelf = RecordStore()
    settings = {
        "open_browser": sys.stderr.isatty(),
        "title": out,
        "live": True,
        "notify": lambda address: note(f"page while training runs: {address}"),
    }
    threading.Thread(target=serve, args=[shelf], kwargs=settings, daemon=True).start()
    return [SnapshotListener(Path(out), shelf.replace, config.task)]


def train_and_report(
    context: click.Context, config: RunConfig, out: str, as_json: bool, others: Sequence[Listener] = ()
) -> None:
    """Train a run while it is shown, and give how it ended."""
    from regard.training.run import train_run

    with progress_listener(as_json) as watcher:
        report = train_run(config, Path(out), listeners=[watcher, *others], started=context.obj)
    if not report.leads:
        return
    facts = {"folder": str(report.folder), "step": report.step, "reason": report.reason, "metrics": report.metrics}
    lines = [
        f"{report.folder}: {report.unit} {report.step}, {report.reason}, {format_duration(report.seconds)} of training"
    ]
    if report.finished:
        lines += [format_metrics(report.metrics), *_last_lines(report.verdict, _tried(config).format(report.folder))]
    facts["verdict"] = report.verdict.to_dict() if report.verdict is not None else None
    print_result({"event": "report", **facts, "seconds": round(report.seconds, 1)}, lines, as_json)


def _last_lines(verdict: Verdict | None, command: str) -> list[str]:
    """How to use the model, unless it learned nothing; then the verdict, if it is a warning."""
    usable = verdict is None or verdict.status != "learned_nothing"
    warning = verdict.text if verdict is not None else ""
    return [*([f"try it: {command}"] if usable else []), *([warning] if warning else [])]


def _tried(config: RunConfig) -> str:
    """Return how the model of a run is used."""
    return TRIES.get(config.architecture if config.task == "language" else config.task, TRIES[config.task])


def build_run(words: tuple[str, ...], recipe: str | None, given: dict[str, Any]) -> RunConfig:
    """Return the run that the command line asks for: the recipe or the defaults, then what was given."""
    config = RunConfig.from_dict(read_json(Path(recipe)), where=recipe) if recipe else RunConfig()
    task, *files = words if words else (config.task,)
    if task not in TASKS:
        advice = f"regard train translate {' '.join(words)} …" if Path(task).exists() else ", ".join(TASKS)
        raise UsageError(f"unknown task {task!r}{nearest(task, TASKS)}: the first word says what to learn – {advice}")
    given = apply_defaults(task, given) if task != config.task else in_own_names(task, given)
    if files:
        given["data.train"] = files
    elif not config.data.train:
        last = " (those after --valid are its own)" if given.get("data.valid") else ""
        raise UsageError(f"no training files{last}: regard train {task} FILES… --out FOLDER")
    return config.with_settings(given)
