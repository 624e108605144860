"""`regard train`: build a run config from a recipe and flags, train, and report."""

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
from regard.config.defaults import move_shared_settings
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
    "trainable.freeze": "--freeze",
    "trainable.layer_lr_decay": "--layer-decay",
    "lora.rank": "--lora",
    "lora.keep_adapter": "--keep-adapter",
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
    "tokenizer.extend": "--extend-vocabulary",
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
NEGATED = {"tokenizer.joint": "a tokenizer per language instead of one for both"}

MULTI_FILE_TASKS = {
    "stories",
    "language",
    "tag",
    "answer",
}  # tasks with any number of files; the others have one or two

USAGE_EXAMPLES = {  # task, or architecture of a language model → command that uses the trained model
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

Language models are trained on plain text, classifiers on labelled texts, taggers on CoNLL columns, question answering
on SQuAD files or, with memory networks, on stories in the format of the bAbI tasks, one file per task.

Ctrl-C finishes the step, or the epoch over stories, and saves a checkpoint; the same command resumes.

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


def _max_values(arguments: Sequence[str]) -> int:
    """Number of files after --valid: any for tasks with many files, else two."""
    return len(arguments) if set(arguments) & MULTI_FILE_TASKS else 2


@verb(
    HELP,
    [
        click.Argument(["arguments"], nargs=-1, metavar="TASK FILES…"),
        Option(
            ["--out"],
            metavar="FOLDER",
            required=True,
            section="Run",
            help="run directory; an unfinished run is resumed",
        ),
        Option(["--recipe"], metavar="FILE", section="Run", help="JSON file with the settings of a run"),
        Option(
            ["--watch"], is_flag=True, section="Run", help="open a page that shows attention while the model trains"
        ),
        *dotted_options(RunConfig, flags=FLAGS, sections=SECTIONS, negated=NEGATED, skip=("task", "data.train")),
    ],
    greedy=("--valid", "--data.valid"),
    max_values=_max_values,
)
def train(
    context: click.Context, arguments: tuple[str, ...], out: str, recipe: str | None, watch: bool, as_json: bool
) -> None:
    """Train a model."""
    config = build_run(arguments, recipe, changed_settings(context))
    listeners = [_serve_snapshots(config, out)] if watch else []
    train_and_report(context, config, out, as_json, listeners)


def _serve_snapshots(config: RunConfig, out: str) -> Listener:
    """Serve a page during training; return the listener that adds snapshots of attention to it."""
    import sys
    import threading

    from regard.interpret.training_records import SnapshotListener
    from regard.server.app import create_app
    from regard.server.serve import serve
    from regard.server.store import RecordStore

    assert create_app is not None  # a missing extra is reported here, not in the thread
    store = RecordStore()
    settings = {
        "open_browser": sys.stderr.isatty(),
        "title": out,
        "live": True,
        "notify": lambda address: note(f"page while training runs: {address}"),
    }
    threading.Thread(target=serve, args=[store], kwargs=settings, daemon=True).start()
    return SnapshotListener(Path(out), store.replace, config.task)


def train_and_report(
    context: click.Context, config: RunConfig, out: str, as_json: bool, extra_listeners: Sequence[Listener] = ()
) -> None:
    """Train with progress output and print how the run ended."""
    from regard.training.run import train_run

    with progress_listener(as_json) as listener:
        report = train_run(config, Path(out), listeners=[listener, *extra_listeners], started=context.obj)
    if not report.is_rank_zero:
        return
    result = {
        "event": "report",
        "folder": str(report.folder),
        "step": report.step,
        "reason": report.reason,
        "metrics": report.metrics,
        "verdict": report.verdict.to_dict() if report.verdict is not None else None,
        "seconds": round(report.seconds, 1),
    }
    duration = format_duration(report.seconds)
    lines = [f"{report.folder}: {report.unit} {report.step}, {report.reason}, {duration} of training"]
    if report.is_finished:
        command = _usage_example(config).format(report.folder)
        lines += [format_metrics(report.metrics), *_closing_lines(report.verdict, command)]
    print_result(result, lines, as_json)


def _closing_lines(verdict: Verdict | None, command: str) -> list[str]:
    """How to use the model, unless it learned nothing; then the verdict, if it is a warning."""
    if verdict is None:
        return [f"try it: {command}"]
    lines = [] if verdict.status == "learned_nothing" else [f"try it: {command}"]
    if verdict.text:
        lines.append(verdict.text)
    return lines


def _usage_example(config: RunConfig) -> str:
    """Command that uses the model of a run."""
    if config.task == "language" and config.architecture in USAGE_EXAMPLES:
        return USAGE_EXAMPLES[config.architecture]
    return USAGE_EXAMPLES[config.task]


def build_run(arguments: tuple[str, ...], recipe: str | None, settings: dict[str, Any]) -> RunConfig:
    """Build the config of a run: the recipe or the defaults, then the settings of the command line."""
    config = RunConfig.from_dict(read_json(Path(recipe)), where=recipe) if recipe else RunConfig()
    task, *files = arguments or (config.task,)
    if task not in TASKS:
        advice = f"regard train translate {' '.join(arguments)} …" if Path(task).exists() else ", ".join(TASKS)
        raise UsageError(f"unknown task {task!r}{nearest(task, TASKS)}: the first argument is the task – {advice}")
    settings = apply_defaults(task, settings) if task != config.task else move_shared_settings(task, settings)
    if files:
        settings["data.train"] = files
    elif not config.data.train:
        reason = " (the files after --valid are validation data)" if settings.get("data.valid") else ""
        raise UsageError(f"no training files{reason}: regard train {task} FILES… --out FOLDER")
    return config.with_settings(settings)
