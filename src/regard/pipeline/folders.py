"""From folders to pipelines: `load` opens models, `train` makes one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint.directory import LoadedModel, load_model
from regard.config.run import RunConfig
from regard.errors import ConfigError, TrainingError, UsageError, nearest
from regard.machine import cores
from regard.models import build
from regard.models.writer import Writer
from regard.pipeline.translation import TranslationPipeline
from regard.training.run import train_run
from regard.training.watch import Watcher

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
GROUPS = ("training", "data", "tokenizer", "data.read", "decoding")  # where a setting without its group is looked for


def load(
    folder: str | Path | Sequence[str | Path],
    *,
    ensemble: Sequence[str | Path] = (),
    device: str = "cpu",
    precision: str = "float32",
    threads: int = 0,
) -> TranslationPipeline:
    """Return the pipeline of a run's or model's folder; of several folders, one whose models decide together."""
    folders = [folder] if isinstance(folder, str | Path) else [*folder]
    folders += ensemble
    if not folders:
        raise UsageError("load needs at least one folder")
    if precision not in PRECISIONS:
        raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    threads = threads or cores()
    torch.set_num_threads(threads)
    loaded = [load_model(Path(one)) for one in folders]
    first = loaded[0]
    for one, other in zip(folders, loaded, strict=True):
        for side, ours, theirs in (("source", first.source, other.source), ("target", first.target, other.target)):
            if ours.digest != theirs.digest:
                raise UsageError(
                    f"{one} has another {side} tokenizer than {folders[0]}: models that decide together must be "
                    "trained with the same one"
                )
    models = [_model(one, device, PRECISIONS[precision]) for one in loaded]
    workers = threads if device == "cpu" else 1  # where there are several batches, a core for each pays best
    return TranslationPipeline(
        models, first.source, first.target, decoding=first.decoding, task=first.task, workers=workers
    )


def train(
    task: str,
    *files: str | Path,
    out: str | Path,
    valid: Sequence[str | Path] = (),
    watchers: Sequence[Watcher] = (),
    **settings: Any,
) -> TranslationPipeline:
    """Train a model on files, or go on training the run in `out`, and return its pipeline.

    Settings are named as in a recipe, without their group where that is clear: `minutes=5`, `preset="tiny"`,
    `kind="unigram"`; with it they are written `decoding__beam=4`.
    """
    given = {_setting(name): value for name, value in settings.items()}
    given |= {"task": task, "data.train": [*map(str, files)], "data.valid": [*map(str, valid)]}
    report = train_run(RunConfig().override(given), Path(out), watchers=watchers)
    if not report.finished:
        raise TrainingError(f"{report.reason} stopped training at step {report.step}: call train again to go on")
    return load(out)


def _setting(name: str) -> str:
    """Return the dotted path of a setting of a run.

    >>> _setting("minutes"), _setting("decoding__beam")
    ('training.minutes', 'decoding.beam')
    """
    paths = [knob.path for deep in (True, False) for knob in RunConfig.knobs(deep=deep)]
    dotted = name.replace("__", ".")
    for path in (dotted, *(f"{group}.{dotted}" for group in GROUPS)):
        if path in paths:
            return path
    raise ConfigError(f"unknown setting {name!r}{nearest(dotted, [path.rpartition('.')[2] for path in paths])}")


def _model(loaded: LoadedModel, device: str, precision: torch.dtype) -> Writer:
    model: Writer = build(loaded.config)
    model.load_state_dict(loaded.weights)
    try:
        return model.to(device=device, dtype=precision).eval().pack()
    except (RuntimeError, AssertionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"the model cannot be put on the device {device!r}: {reason}") from None
