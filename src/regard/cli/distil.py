"""`regard distil`: a student with fewer layers of a fine-tuned encoder."""

from __future__ import annotations

from typing import Any

import click

from regard.cli.model_options import FOLDER
from regard.cli.options import Option, changed_settings, dotted_options, verb
from regard.cli.train import FLAGS as TRAIN_FLAGS
from regard.cli.train import build_run, train_and_report
from regard.config.defaults import FINE_TUNED_TASKS, USED_BY
from regard.config.runs import RunConfig
from regard.errors import CheckpointError, UsageError

HELP = """Teach a smaller model what the classifier, tagger or answerer in FOLDER knows, on DATA of its task.

The student has some of the teacher's layers, spread evenly, the first and the last among them, and learns from the
teacher's softened labels and from its states, beside the true labels. In the end it is measured beside its teacher:
how much of the score is kept, and how many times as fast it is.

Ctrl-C finishes the step and saves; the same command goes on from there.

\b
  regard distil runs/mood reviews.csv --layers 3 --out runs/mood-small
  regard distil runs/names names.conll --layers 2 --valid dev.conll --test test.conll --out runs/names-small
  regard distil runs/answers squad.json --layers 3 --minutes 20 --out runs/answers-small
"""

FLAGS = {
    "distillation.student_layers": "--layers",
    "distillation.temperature": "--temperature",
    "distillation.label_weight": "--truth",
    "distillation.hidden_weight": "--hidden",
    **{
        path: flag
        for path, flag in TRAIN_FLAGS.items()
        if path.startswith(("training.", "data."))
        or path in ("fine_tuning.test", "fine_tuning.seeds", "fine_tuning.class_weights")
    },
}
AS_TAUGHT = {"max_length": "data.max_length", "separator": "data.read.label_separator"}  # what a teacher's folder says
SECTIONS = {"distillation.": "Student", "training.": "Training", "data.read.": "Reading files", "": "Run"}
READ = ("distillation.", "training.", "data.", "fine_tuning.", "passages.")  # groups of settings that it reads
SKIPPED = (
    "data.train",
    *(knob.path for knob in RunConfig.knobs() if not knob.path.startswith(READ)),
    *("fine_tuning.features", "fine_tuning.feature_cache_mb", "fine_tuning.freeze_encoder", "fine_tuning.random_init"),
    *("data.read.source", "data.read.target"),
)
OPTIONS = dotted_options(RunConfig, flags=FLAGS, sections=SECTIONS, negated={}, skip=SKIPPED)


@verb(
    HELP,
    [
        FOLDER,
        click.Argument(["files"], nargs=-1, required=True, metavar="DATA…"),
        Option(
            ["--out"],
            metavar="FOLDER",
            required=True,
            section="Run",
            help="the student's folder; an unfinished run is continued",
        ),
        *sorted(OPTIONS, key=lambda option: getattr(option, "section", "") != "Student"),
    ],
    greedy=("--valid", "--data.valid"),
    most=len,
)
def distil(context: click.Context, folder: str, files: tuple[str, ...], out: str, as_json: bool) -> None:
    """Train a student."""
    given = changed_settings(context)
    if not given.get("distillation.student_layers"):
        raise UsageError("how many layers should the student have? add --layers N, fewer than its teacher has")
    task, known = read_teacher(folder)
    taught = {path: known[name] for name, path in AS_TAUGHT.items() if known.get(name)}
    config = build_run((task, *files), None, {**taught, **given, "pretrained": folder})
    train_and_report(context, config, out, as_json)


def read_teacher(folder: str) -> tuple[str, dict[str, Any]]:
    """Return the task of a folder whose model can teach, and what its folder says of it."""
    from regard.checkpoint.atomic import read_json
    from regard.checkpoint.hub import resolve_model
    from regard.checkpoint.locate import TASK_FILE, resolve_model_path
    from regard.checkpoint.model_dir import folder_task, is_encoder_folder

    place = resolve_model(folder)
    task = folder_task(place)
    if not is_encoder_folder(place) or task not in FINE_TUNED_TASKS:
        use = f" (`{USED_BY[task]}` uses it)" if task in USED_BY else ""
        raise CheckpointError(
            f"{folder}: a model for the task {task!r}{use}, not an encoder that classifies, tags or answers: "
            f"`regard train {'|'.join(FINE_TUNED_TASKS)} DATA --from ENCODER` makes one that can teach"
        )
    described = resolve_model_path(place) / TASK_FILE
    return task, read_json(described) if described.exists() else {}
