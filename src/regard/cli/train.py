"""`regard train TASK`: build a run config from a recipe and flags, train, and report. One command per task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.checkpoint.atomic import read_json
from regard.cli import Invocation
from regard.cli.options import HELP_ALL, Option, Verb, changed_settings, dotted_options, max_two_values, verb
from regard.cli.output import note, print_result, progress_listener
from regard.cli.run_report import closing_lines
from regard.config.runs import RunConfig, build_run, run_config_class, tasks_with, trained_tasks
from regard.config.settings import Knob
from regard.config.training import MEMORY_TRAINING_SETTINGS
from regard.errors import UsageError, nearest
from regard.formatting import format_duration
from regard.metric_table import default_metrics, describe_metric_name, metrics_of
from regard.registry import TASKS, Task

if TYPE_CHECKING:
    from regard.training.listeners import Listener

FLAGS = {  # in the order of the help: the common ones first
    "data.valid": "--valid",
    "fine_tuning.test": "--test",
    "fine_tuning.seeds": "--seeds",
    "data.max_length": "--max-length",
    "pretrained": "--from",
    "allow_unused": "--allow-unused",
    "architecture": "--arch",
    "preset": "--preset",
    "transformer.causal": "--causal",
    "bert.causal": "--causal",
    "seq2seq.cell": "--cell",
    "seq2seq.attention": "--attention",
    "seq2seq.hard_attention": "--hard-attention",
    "seq2seq.input_feeding": "--input-feeding",
    "memory_network.hops": "--hops",
    "training.minutes": "--minutes",
    "training.epochs": "--epochs",
    "training.steps": "--steps",
    "training.metric": "--metric",
    "training.seed": "--seed",
    "training.restarts": "--restarts",
    "training.patience": "--patience",
    "training.unknown_answers": "--unknown-answers",
    "training.average_checkpoints": "--average-checkpoints",
    "training.evaluate_every": "--evaluate-every",
    "training.log_gradients": "--log-gradients",
    "training.save_every": "--save-every",
    "training.learning_rate": "--learning-rate",
    "training.batch_tokens": "--batch-tokens",
    "fine_tuning.features": "--features",
    "fine_tuning.feature_layers": "--feature-layers",
    "fine_tuning.class_weights": "--class-weights",
    "fine_tuning.freeze_encoder": "--freeze-encoder",
    "fine_tuning.lm_weight": "--lm-weight",
    "lora.rank": "--lora",
    "trainable.freeze": "--freeze",
    "trainable.layer_lr_decay": "--layer-lr-decay",
    "masking.mask_rate": "--mask-rate",
    "masking.whole_word_masking": "--whole-word-masking",
    "masking.next_sentence": "--next-sentence",
    "documents.document_boundary": "--document-boundary",
    "documents.sequence_length": "--sequence-length",
    "training.threads": "--threads",
    "training.workers": "--workers",
    "training.precision": "--precision",
    "training.device": "--device",
    "tokenizer.kind": "--tokenizer",
    "tokenizer.vocab_size": "--vocab-size",
    "tokenizer.joint": "--no-joint-vocabulary",
    "tokenizer.extend": "--extend-vocabulary",
    "masking.new_vocabulary": "--new-vocabulary",
    "data.read.format": "--format",
    "data.read.source": "--source",
    "data.read.target": "--target",
    "data.read.text": "--text",
    "data.read.label": "--label",
    "data.read.pair": "--pair",
    "data.read.label_separator": "--label-separator",
    "data.read.header": "--header",
    "data.read.delimiter": "--delimiter",
    "data.read.encoding": "--encoding",
    "data.read.lenient": "--lenient",
    "data.read.max_reject": "--max-reject",
}
COMPUTING = ("threads", "workers", "precision", "device")
OPTIMIZATION = (
    *("optimizer", "learning_rate", "muon_learning_rate", "schedule", "warmup_steps", "lr_halving_epochs"),
    *("weight_decay", "adam_beta", "max_gradient_norm", "label_smoothing", "ema_decay"),
    *("batch_", "accumulation_"),
)
SECTIONS = {  # prefix of settings → section of the help; the first match counts
    **{f"training.{name}": "Computing" for name in COMPUTING},
    **{f"training.{name}": "Optimisation" for name in OPTIMIZATION},
    **dict.fromkeys(("training.validation_share", "training.unknown_answers"), "Run"),
    **{f"training.{name}": "Memory network" for name in MEMORY_TRAINING_SETTINGS},
    "memory_network.": "Memory network",
    "training.": "Training",
    **dict.fromkeys(("fine_tuning.test", "fine_tuning.seeds", "fine_tuning.baseline"), "Run"),
    **dict.fromkeys(("tokenizer.", "masking.new_vocabulary"), "Tokenizer"),
    **dict.fromkeys(("masking.", "documents."), "Masking and documents"),
    **dict.fromkeys(("fine_tuning.", "trainable.", "lora.", "passages."), "Fine-tuning"),
    **dict.fromkeys(("data.read.",), "Reading files"),
    **dict.fromkeys(("data.",), "Run"),
    "": "Model",
}
SKIPPED = ("task", "data.train", "distillation.")  # settings without an option
ADVANCED = (  # settings with a short flag that only `--help-all` lists
    "fine_tuning.feature_layers",
    "fine_tuning.lm_weight",
    "allow_unused",
    "training.average_checkpoints",
    "training.evaluate_every",
    "training.log_gradients",
    "training.save_every",
    "trainable.layer_lr_decay",
    "training.workers",
    "data.read.max_reject",
    "data.read.delimiter",
    "data.read.header",
)
PINNED_SETTINGS = ("precision", "threads", "batch_tokens")  # resolved settings of a recipe that is a run.json

TRAINING_OUTPUT = ("regard.training.listeners:TrainingEvent", "regard.training.run:ReportEvent")  # of --json
HELP = """Train a model on your files.

\b
  regard train translate train.en train.de --valid val.en val.de --out runs/en-de
  regard train classify reviews.csv --from bert-base-uncased --out runs/mood
  regard train --recipe recipes/multi30k-en-de.json --out runs/x
  regard train classify --help
"""
TASK_HELP = """{summary}.

FILES: {data}; they come before the options, or from --recipe.
{columns}
Interrupted or killed: repeat the same command; it continues from the last checkpoint (about one a minute). Ctrl-C
finishes the step or epoch and saves one first.

\b
{commands}
"""


class TrainGroup(click.Group):
    """Command group with one command per task, built when it is used."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Tasks in the order of the table."""
        return trained_tasks()

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Build the command of a task."""
        names = trained_tasks()
        if name not in names:
            advice = f"regard train translate {name} …" if Path(name).exists() else ", ".join(names)
            suggestion = nearest(name, names)
            raise UsageError(f"unknown task {name!r}{suggestion}: the first argument is the task – {advice}")
        return train_command(name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the tasks with what they train."""
        with formatter.section("Tasks"):
            formatter.write_dl([(name, TASKS[name].summary) for name in trained_tasks()])

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """List the tasks without arguments; take the task from the recipe where the command line names none."""
        if not arguments:
            arguments = ["--help"]
        if arguments[0].startswith("-") and "--recipe" in arguments[:-1]:
            recipe, _ = read_recipe(arguments[arguments.index("--recipe") + 1])
            arguments = [recipe["task"], *arguments]
        return super().parse_args(context, arguments)


train = TrainGroup("train", help=HELP, context_settings={"help_option_names": ["-h", "--help"]})


class TrainVerb(Verb):
    """Command of one task; an option of another task is answered with the tasks that have it."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Parse the command line."""
        try:
            return super().parse_args(context, arguments)
        except click.NoSuchOption as error:
            flag = error.option_name.partition("=")[0]
            paths = [path for path, short in FLAGS.items() if flag in (short, f"--{path}")] or [flag.removeprefix("--")]
            owners = [task for task in trained_tasks() if any(task in tasks_with(path) for path in paths)]
            if not owners or self.name in owners:
                raise
            raise UsageError(
                f"no such option: {flag} is for {', '.join(owners)}, not for {self.name}\n"
                f"  {context.command_path} --help shows the usage"
            ) from None


@cache
def train_command(name: str) -> Verb:
    """Build the command that trains models of a task."""
    task = TASKS[name]
    config = run_config_class(name)

    def call(
        context: click.Context, files: tuple[str, ...], out: str, recipe: str | None, watch: bool, as_json: bool
    ) -> None:
        run, pinned = configure_run(name, files, recipe, changed_settings(context))
        listeners = [_serve_snapshots(run, out)] if watch else []
        train_and_report(context, run, out, as_json, listeners=listeners, pinned=pinned)

    options = [
        click.Argument(["files"], nargs=-1, metavar="[FILES]…"),
        Option(
            ["--out"],
            metavar="FOLDER",
            required=True,
            section="Run",
            help="Run directory; an unfinished run is resumed.",
        ),
        Option(
            ["--recipe"],
            metavar="FILE",
            section="Run",
            help="JSON file with settings, or the run.json of a run; FILES and options override it. Its paths are "
            "relative to the working directory.",
        ),
        Option(
            ["--watch"], is_flag=True, section="Run", help="Open a page that shows attention while the model trains."
        ),
        *dotted_options(
            _with_metrics(name, in_help_order(config.knobs())),
            flags=FLAGS,
            sections=SECTIONS,
            skip=SKIPPED,
            advanced=ADVANCED,
        ),
        HELP_ALL,
    ]
    decorate = verb(
        _task_help(name, task),
        options,
        greedy=("--valid", "--data.valid"),
        max_values=len if task.has_many_files else max_two_values,
        model_groups=_model_groups(config),
        output=TRAINING_OUTPUT,
        name=name,
        verb_class=TrainVerb,
    )
    return decorate(call)


def in_help_order(knobs: Iterable[Knob]) -> list[Knob]:
    """Settings in the order of `FLAGS`, those without a short flag last."""
    order = {path: index for index, path in enumerate(FLAGS)}
    return sorted(knobs, key=lambda knob: order.get(knob.path, len(order)))


def describe_metric(tasks: Sequence[str]) -> str:
    """Help of the metric that selects the best model of these tasks: its default and the names."""
    defaults = dict.fromkeys(name for task in tasks for name in default_metrics(task))
    names = dict.fromkeys(name for task in tasks for name in metrics_of(task))
    choice = f"auto: {' or '.join(defaults)}. Names: {', '.join(map(describe_metric_name, names))}."
    return f"Validation metric by which the best model is selected; {choice}"


def _with_metrics(task: str, knobs: Iterable[Knob]) -> list[Knob]:
    help = describe_metric([task])
    return [replace(knob, help=help) if knob.path == "training.metric" else knob for knob in knobs]


def _task_help(name: str, task: Task) -> str:
    summary = task.summary[0].upper() + task.summary[1:]
    commands = "\n".join(f"  regard train {name} {arguments}" for arguments in task.commands)
    columns = f"Columns: {task.columns}.\n" if task.columns else ""
    return TASK_HELP.format(summary=summary, data=task.data, columns=columns, commands=commands)


def _model_groups(config: type[RunConfig]) -> dict[str, str]:
    """Groups of settings that the help lists by name alone, with their help: configs of a model family, decoding."""
    families = [knob.path.partition(".")[0] for knob in config.knobs() if knob.path.endswith(".family")]
    listed = (*families, "decoding")  # `regard translate --help` describes those of decoding
    return {knob.path: knob.help for knob in config.knobs(deep=False) if knob.path in listed}


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
    context: click.Context,
    config: RunConfig,
    out: str,
    as_json: bool,
    *,
    listeners: Sequence[Listener] = (),
    pinned: Mapping[str, Any] | None = None,
) -> None:
    """Train with progress output and print how the run ended."""
    from regard.training.run import train_run

    invocation: Invocation = context.obj
    with progress_listener(as_json) as listener:
        all_listeners = [listener, *listeners]
        report = train_run(config, Path(out), listeners=all_listeners, started=invocation.started, pinned=pinned)
    if not report.is_rank_zero:
        return
    if report.is_finished:
        lines = closing_lines(report, config, invocation.arguments)
    else:
        lines = [f"{report.folder}: {report.unit} {report.step}, {report.reason}, {format_duration(report.seconds)}"]
    print_result({"event": "report", **report.to_dict()}, lines, as_json)


def read_recipe(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of a recipe file, and the resolved settings of the run where it is the run.json of one."""
    values = read_json(Path(path))
    resolved: dict[str, Any] = {}
    if isinstance(values.get("config"), dict):
        resolved = dict(values.get("resolved") or {})
        values = values["config"]
    if values.get("task") not in trained_tasks():
        names = ", ".join(trained_tasks())
        raise UsageError(f"{path}: the task of a recipe must be one of {names}, not {values.get('task')!r:.60}")
    return values, resolved


def configure_run(
    task: str, files: Sequence[str], recipe: str | None, settings: dict[str, Any]
) -> tuple[RunConfig, dict[str, Any]]:
    """Config of a run, and the resolved settings that a run.json pins: all of them where nothing else is set.

    Settings of the command line come before those of the recipe, and these before the defaults.
    """
    values: dict[str, Any] = {}
    resolved: dict[str, Any] = {}
    if recipe:
        values, resolved = read_recipe(recipe)
        if values["task"] != task:
            raise UsageError(f"{recipe} is for the task {values['task']}: regard train {values['task']} --recipe …")
    if settings:
        names = [name for name in PINNED_SETTINGS if name in resolved and f"training.{name}" not in settings]
        resolved = {name: resolved[name] for name in names}
    if files:
        settings = {**settings, "data.train": list(files)}
    config = build_run(task, settings, values, where=recipe or "")
    if not config.data.train:
        reason = " (the files after --valid are validation data)" if settings.get("data.valid") else ""
        raise UsageError(f"no training files{reason}: regard train {task} FILES… --out FOLDER")
    return config, resolved
