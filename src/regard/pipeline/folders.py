"""From folders to pipelines: `load` opens models, `train` makes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from regard.checkpoint.directory import LoadedModel, load_model
from regard.checkpoint.folder import task_of
from regard.checkpoint.memory_folder import VOCABULARY, load_memory
from regard.checkpoint.reader_folder import FEATURES, load_reader
from regard.config.model import ClassifierConfig
from regard.config.run import RunConfig
from regard.config.tasks import in_own_names, usual
from regard.errors import CheckpointError, ConfigError, TrainingError, UsageError, nearest
from regard.machine import cores
from regard.models import build
from regard.models.base import placed
from regard.models.writer import Writer
from regard.pipeline.classification import ClassificationPipeline
from regard.pipeline.features import FeaturePipeline
from regard.pipeline.stories import StoryPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.classification import Perception
from regard.tasks.features import Features
from regard.tasks.stories import Vocabulary
from regard.training.run import train_run
from regard.training.watch import Watcher

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
Pipeline = TranslationPipeline | FeaturePipeline | ClassificationPipeline | StoryPipeline
# where a setting without its group is looked for
GROUPS = ("training", "data", "tokenizer", "data.read", "decoding", "memory", "stories", "language", "classify")


def load(
    folder: str | Path | Sequence[str | Path],
    *,
    ensemble: Sequence[str | Path] = (),
    device: str = "cpu",
    precision: str = "float32",
    threads: int = 0,
) -> Pipeline:
    """Return the pipeline of a run's or model's folder, whatever its task.

    Of several folders with translators, return one whose models decide together.
    """
    folders = [folder] if isinstance(folder, str | Path) else [*folder]
    if len(folders) == 1 and not ensemble and (opener := OPENERS.get(task_of(folders[0]))) is not None:
        return opener(folders[0], device=device, precision=precision, threads=threads)
    return load_translator(folders, ensemble=ensemble, device=device, precision=precision, threads=threads)


def load_features(
    folder: str | Path, *, device: str = "cpu", precision: str = "float32", threads: int = 0
) -> FeaturePipeline:
    """Return the features of a folder that `regard train language` made."""
    return FeaturePipeline(_features(folder, device, _computing(precision, threads)))


def _features(folder: str | Path, device: str, precision: torch.dtype) -> Features:
    loaded = Features.opened(folder)
    return replace(loaded, model=placed(loaded.model, device, precision).eval())


def load_classifier(
    folder: str | Path, *, device: str = "cpu", precision: str = "float32", threads: int = 0
) -> ClassificationPipeline:
    """Return the classifier of a folder; its frozen features are in the same folder."""
    dtype = _computing(precision, threads)
    loaded = load_reader(folder, ClassifierConfig, "classify")
    model = build(loaded.config)
    model.load_state_dict(loaded.weights)
    labels, beside = loaded.task.get("labels"), loaded.task.get("features")
    if not isinstance(labels, list) or len(labels) != loaded.config.labels:
        raise CheckpointError(f"{folder}: task.json does not name the {loaded.config.labels} labels of the model")
    features = None
    if loaded.config.encoder.feature_layers:
        features = _features(Path(folder) / FEATURES, device, dtype)
        if not isinstance(beside, dict) or features.digest != beside.get("digest"):
            raise CheckpointError(f"{Path(folder) / FEATURES}: not the features that the classifier was trained with")
    perception = Perception(loaded.tokenizer, int(loaded.task["max_length"]), features)
    return ClassificationPipeline(placed(model, device, dtype).eval(), perception, loaded.task)


def load_stories(
    folder: str | Path, *, device: str = "cpu", precision: str = "float32", threads: int = 0
) -> StoryPipeline:
    """Return the memory network of a folder, which answers questions about stories."""
    dtype = _computing(precision, threads)
    if dtype != torch.float32:
        raise ConfigError(f"memory networks compute in float32, not in {precision}: leave out --precision")
    loaded = load_memory(folder)
    model = build(loaded.config)
    model.load_state_dict(loaded.weights)
    vocabulary = Vocabulary.from_dict(loaded.vocabulary, str(loaded.path / VOCABULARY))
    return StoryPipeline(placed(model, device, dtype).eval(), vocabulary, loaded.task)


def load_translator(
    folder: str | Path | Sequence[str | Path],
    *,
    ensemble: Sequence[str | Path] = (),
    device: str = "cpu",
    precision: str = "float32",
    threads: int = 0,
) -> TranslationPipeline:
    """Return the translator of a run's or model's folder; of several folders, one whose models decide together."""
    folders = [folder] if isinstance(folder, str | Path) else [*folder]
    folders += ensemble
    if not folders:
        raise UsageError("load needs at least one folder")
    threads, dtype = threads or cores(), _computing(precision, threads)
    loaded = [load_model(Path(one)) for one in folders]
    first = loaded[0]
    for one, other in zip(folders, loaded, strict=True):
        for side, ours, theirs in (("source", first.source, other.source), ("target", first.target, other.target)):
            if ours.digest != theirs.digest:
                raise UsageError(
                    f"{one} has another {side} tokenizer than {folders[0]}: models that decide together must be "
                    "trained with the same one"
                )
    models = [_model(one, device, dtype) for one in loaded]
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
) -> Pipeline:
    """Train a model on files, or go on training the run in `out`, and return its pipeline.

    Settings are named as in a recipe, without their group where that is clear: `minutes=5`, `preset="tiny"`,
    `kind="unigram"`; with it they are written `decoding__beam=4`.
    """
    given = {_setting(name): value for name, value in settings.items()}
    given = {**usual(task), **in_own_names(task, given)}
    given |= {"data.train": [*map(str, files)], "data.valid": [*map(str, valid)]}
    report = train_run(RunConfig().override(given), Path(out), watchers=watchers)
    if not report.finished:
        raise TrainingError(
            f"{report.reason} stopped training at {report.unit} {report.step}: call train again to go on"
        )
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
    return placed(model, device, precision).eval().pack()


def _computing(precision: str, threads: int) -> torch.dtype:
    """Take so many threads, or all cores; return the number format of this name."""
    if precision not in PRECISIONS:
        raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    torch.set_num_threads(threads or cores())
    return PRECISIONS[precision]


class Opener(Protocol):
    """Opens the models of one task."""

    def __call__(self, folder: str | Path, *, device: str, precision: str, threads: int) -> Pipeline: ...


OPENERS: dict[str, Opener] = {  # all other folders translate
    "language": load_features,
    "classify": load_classifier,
    "stories": load_stories,
}
