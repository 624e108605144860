"""`regard distil`: knowledge distillation of a fine-tuned encoder into a student with fewer layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import click

from regard.cli.model_options import ANY_FORMAT, MODEL_ARGUMENT
from regard.cli.options import HELP_ALL, Option, changed_settings, dotted_options, verb
from regard.cli.train import ADVANCED, TRAINING_OUTPUT, describe_metric, in_help_order, train_and_report
from regard.cli.train import FLAGS as TRAIN_FLAGS
from regard.cli.train import SECTIONS as TRAIN_SECTIONS
from regard.config.runs import build_run, run_config_class
from regard.config.settings import Knob
from regard.errors import CheckpointError, UsageError
from regard.registry import TASKS, usage_hint

HELP = """Distil the classifier, tagger or question answering model in MODEL into a smaller one, on DATA of its task.

The student starts from some of the teacher's layers, evenly spaced, including the first and the last. It learns from
the teacher's softened probabilities and hidden states, and from the true labels. The final report compares it with its
teacher: how much of the score remains, and how many times as fast it is. DATA are read with the columns of the
teacher's training, unless --text or --label is set.

Interrupted or killed: repeat the same command; it continues from the last checkpoint (about one a minute).

\b
  regard distil runs/mood reviews.csv --student-layers 3 --out runs/mood-small
  regard distil runs/names names.conll --student-layers 2 --valid dev.conll --test test.conll --out runs/names-small
  regard distil runs/answers squad.json --student-layers 3 --minutes 20 --out runs/answers-small
"""

SHARED_FLAGS = ("fine_tuning.test", "fine_tuning.seeds", "fine_tuning.class_weights")
FLAGS = {
    "distillation.student_layers": "--student-layers",
    "distillation.temperature": "--temperature",
    "distillation.label_weight": "--label-weight",
    "distillation.hidden_weight": "--hidden-weight",
    **{
        path: flag
        for path, flag in TRAIN_FLAGS.items()
        if path.startswith(("training.", "data.")) or path in SHARED_FLAGS
    },
}
# key of task.json → path of a setting
DESCRIPTIONS = {  # path of a setting → its help, where a student differs from other models
    "data.max_length": "Maximum tokens of a row, special tokens included; longer texts are cut into windows. [default: "
    "the teacher's]",
    "data.read.format": ANY_FORMAT,
    "fine_tuning.test": "Test file of the teacher's task, scored at the end; with --seeds, once per seed.",
    "training.learning_rate": "Peak learning rate; auto: by the hidden size and the optimizer.",
}
TEACHER_SETTINGS = {"max_length": "data.max_length", "label_separator": "data.read.label_separator"}
SECTIONS = {"distillation.": "Student", **TRAIN_SECTIONS}
GROUPS = ("distillation.", "training.", "data.", "fine_tuning.", "passages.")  # of settings that distillation reads
SKIPPED = (
    "data.train",
    "fine_tuning.features",
    "fine_tuning.feature_layers",
    "fine_tuning.feature_cache_mb",
    "fine_tuning.freeze_encoder",
    "fine_tuning.random_init",
    "fine_tuning.lm_weight",
)


def _student_knobs() -> Iterable[Knob]:
    """Settings of a student of any task."""
    tasks = [name for name, task in TASKS.items() if task.distillation is not None]
    knobs = {knob.path: knob for name in tasks for knob in run_config_class(name).knobs()}
    declared = {knob.path: knob.help for name in reversed(tasks) for knob in run_config_class(name).knobs()}
    help = {**declared, **DESCRIPTIONS, "training.metric": describe_metric(tasks)}
    return [
        replace(knob, help=help[path], default=None if path in TEACHER_SETTINGS.values() else knob.default)
        for path, knob in knobs.items()
        if path.startswith(GROUPS)
    ]


OPTIONS = dotted_options(
    in_help_order(_student_knobs()), flags=FLAGS, sections=SECTIONS, skip=SKIPPED, advanced=ADVANCED
)

for option in OPTIONS:
    if getattr(option, "path", "") == "distillation.student_layers" and isinstance(option, Option):
        option.help = "Layers of the student, fewer than the teacher has.  [required]"


@verb(
    HELP,
    [
        MODEL_ARGUMENT,
        click.Argument(["files"], nargs=-1, required=True, metavar="DATA…"),
        Option(
            ["--out"],
            metavar="FOLDER",
            required=True,
            section="Run",
            help="Run directory of the student; an unfinished run is resumed.",
        ),
        *sorted(OPTIONS, key=lambda option: getattr(option, "section", "") != "Student"),
        HELP_ALL,
    ],
    greedy=("--valid", "--data.valid"),
    max_values=len,
    output=TRAINING_OUTPUT,
)
def distil(context: click.Context, folder: str, files: tuple[str, ...], out: str, as_json: bool) -> None:
    """Train a student."""
    settings = changed_settings(context)
    if not settings.get("distillation.student_layers"):
        raise UsageError(
            "the number of the student's layers is missing: add --student-layers N, fewer than its teacher has"
        )
    task, metadata = read_teacher(folder)
    config = build_run(
        task, {**inherited_settings(metadata), **settings, "pretrained": folder, "data.train": list(files)}
    )
    train_and_report(context, config, out, as_json)


def inherited_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a student that are those of its teacher, from the teacher's task.json.

    >>> inherited_settings({"max_length": 64, "label_separator": "", "columns": {"text": "review"}})
    {'data.max_length': 64, 'data.read.text': 'review'}
    """
    from regard.data.labelled import training_columns

    settings = {path: metadata[name] for name, path in TEACHER_SETTINGS.items() if metadata.get(name)}
    return settings | {f"data.read.{role}": column for role, column in training_columns(metadata).items()}


def read_teacher(folder: str) -> tuple[str, dict[str, Any]]:
    """Task of a teacher and the metadata of its folder; raise for a model that cannot be a teacher."""
    from regard.checkpoint.hub import resolve_model
    from regard.checkpoint.locate import read_task_file, resolve_model_path
    from regard.checkpoint.model_dir import folder_task, is_encoder_folder

    path = resolve_model(folder)
    task = folder_task(path)
    if not is_encoder_folder(path) or TASKS[task].distillation is None:
        names = [name for name, row in TASKS.items() if row.distillation is not None]
        raise CheckpointError(
            f"{folder}: a model for the task {task!r}{usage_hint(task)}, not a fine-tuned encoder: "
            f"train a teacher with `regard train {'|'.join(names)} DATA --from ENCODER`"
        )
    return task, read_task_file(resolve_model_path(path))
