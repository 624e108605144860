"""From folders to pipelines, with torch: models of every task are opened, `train` makes one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from regard.attention.intervention import intervention
from regard.checkpoint.directory import LoadedModel
from regard.checkpoint.encoder_folder import LoadedEncoder, load_encoder
from regard.checkpoint.folder import is_encoder_folder, task_of
from regard.checkpoint.gpt_folder import load_gpt
from regard.checkpoint.memory_folder import VOCABULARY, load_memory
from regard.checkpoint.published import local_folder
from regard.checkpoint.reader_folder import FEATURES, LoadedReader, load_reader
from regard.checkpoint.sentence_modules import read_modules
from regard.checkpoint.starting import with_usual
from regard.compiled import compiled, compiled_encoder, compiled_gpt, open_encoder, open_translator
from regard.config.model import ClassifierConfig, TaggerConfig
from regard.config.run import RunConfig
from regard.errors import CheckpointError, ConfigError, TrainingError, UsageError, nearest
from regard.machine import cores
from regard.models import build
from regard.models.base import Model, Placed, placed
from regard.models.encoder import Encoder
from regard.models.gpt import Gpt
from regard.models.writer import Writer
from regard.pipeline.answering import LONGEST_ROW, AnsweringPipeline
from regard.pipeline.classification import ClassificationPipeline, EncoderReader, OwnReader
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.features import FeaturePipeline
from regard.pipeline.filling import FillingPipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.stories import StoryPipeline
from regard.pipeline.tagging import EncoderTagReader, OwnTagReader, TaggingPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.ready import encoder_in, gpt_in, is_ready, open_ready
from regard.tasks.features import Features
from regard.tasks.masking import token_counts_of
from regard.tasks.perception import Perception
from regard.tasks.stories import Vocabulary
from regard.text.framing import MASKS, Framing
from regard.training.run import train_run
from regard.training.watch import Watcher

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
Pipeline = (
    TranslationPipeline
    | FeaturePipeline
    | ClassificationPipeline
    | StoryPipeline
    | TaggingPipeline
    | AnsweringPipeline
    | GenerationPipeline
    | EmbeddingPipeline
    | FillingPipeline
)
# where a setting without its group is looked for
GROUPS = (
    *("training", "data", "tokenizer", "data.read", "decoding"),
    *("memory", "stories", "language", "masking", "classify", "answer"),
)


def open_any(
    folders: Sequence[str | Path], *, device: str, precision: str | None, threads: int, backend: str
) -> Pipeline:
    """Return the pipeline of a folder, whatever its task; of several, that of translators that decide together."""
    task = task_of(folders[0]) if len(folders) == 1 else ""
    if (compiling := COMPILED.get(task)) is not None:
        return compiling(folders[0], device=device, precision=precision, threads=threads, backend=backend)
    if (opener := OPENERS.get(task)) is not None:
        if backend == "engine":
            raise UsageError(f"{folders[0]}: the engine does not compute such a model; leave out the backend")
        return opener(folders[0], device=device, precision=precision or "float32", threads=threads)
    return open_translators(folders, device=device, precision=precision, threads=threads, backend=backend)


def load_features(
    folder: str | Path, *, device: str = "cpu", precision: str = "float32", threads: int = 0
) -> FeaturePipeline:
    """Return the features of a folder that `regard train language` made."""
    features = _features(folder, device, _computing(precision, threads))
    _check_off(features.model)
    return FeaturePipeline(features)


def _features(folder: str | Path, device: str, precision: torch.dtype) -> Features:
    loaded = Features.opened(folder)
    return replace(loaded, model=placed(loaded.model, device, precision).eval())


def _ready(model: Placed, device: str, precision: torch.dtype) -> Placed:
    """Return a model where it is to compute, for use; heads that are switched off must be its own."""
    _check_off(model)
    return placed(model, device, precision).eval()


def _check_off(model: Model) -> None:
    if (chosen := intervention()) is not None:
        chosen.check(model.sites())


def load_classifier(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> ClassificationPipeline:
    """Return the classifier of a folder; its frozen features are in the same folder."""
    if is_encoder_folder(folder):
        return ClassificationPipeline(*_label_reader(folder, _Wish(device, precision, threads, backend)))
    dtype = _own(folder, precision, threads, backend)
    loaded = load_reader(folder, ClassifierConfig, "classify")
    model = build(loaded.config)
    model.load_state_dict(loaded.weights)
    perception = _perception(folder, loaded, device, dtype)
    return ClassificationPipeline(OwnReader(_ready(model, device, dtype), perception), loaded.task)


def _perception(
    folder: str | Path,
    loaded: LoadedReader[ClassifierConfig] | LoadedReader[TaggerConfig],
    device: str,
    dtype: torch.dtype,
) -> Perception:
    """Return how a reader with words of its own reads texts, with its frozen features where it has some."""
    labels, beside = loaded.task.get("labels"), loaded.task.get("features")
    if not isinstance(labels, list) or len(labels) != loaded.config.labels:
        raise CheckpointError(f"{folder}: task.json does not name the {loaded.config.labels} labels of the model")
    features = None
    if loaded.config.encoder.feature_layers:
        features = _features(Path(folder) / FEATURES, device, dtype)
        if not isinstance(beside, dict) or features.digest != beside.get("digest"):
            raise CheckpointError(
                f"{Path(folder) / FEATURES}: not the features that the {loaded.config.family} was trained with"
            )
    return Perception(loaded.tokenizer, int(loaded.task["max_length"]), features)


@dataclass(frozen=True)
class _Wish:
    """Where and how a model is to compute."""

    device: str
    precision: str | None
    threads: int
    backend: str

    def encoder(self, loaded: LoadedEncoder) -> Encoder:
        """Return an encoder as it is to compute: in the engine, in torch while someone watches, or in torch."""
        dtype = _computing("float32" if self.precision == "int8" else self.precision or "float32", self.threads)
        threads = self.threads or cores()

        def model() -> Encoder:
            return _ready(loaded.model(), self.device, dtype).pack()

        if is_ready(loaded.path):
            held = open_ready(loaded.path)
            held.check_precision(self.precision)
            fits = self.backend != "torch" and self.device == "cpu"
            return encoder_in(held.encoder(threads) if fits else _ready(held.model(), self.device, dtype))
        return compiled_encoder(loaded, model, self.backend, self.precision, self.device, threads)


def _tuned(folder: str | Path, task: str, head: str, wish: _Wish) -> tuple[LoadedEncoder, Encoder]:
    """Return the encoder of a folder, ready to use; one without this head, or for another task, is refused."""
    loaded = open_encoder(folder, task=task)
    if loaded.config.head != head:
        held = loaded.config.head
        raise CheckpointError(f"{folder}: a model with a {held} head, where `regard {task}` needs a {head} head")
    return loaded, wish.encoder(loaded)


def _longest(loaded: LoadedEncoder) -> int:
    """Return how many tokens a row has, as in training where that is known."""
    return min(loaded.longest, int(loaded.task.get("max_length", loaded.longest)))


def _label_reader(folder: str | Path, wish: _Wish) -> tuple[EncoderReader, dict[str, Any]]:
    loaded, model = _tuned(folder, "classify", "label", wish)
    several = loaded.problem == "multi_label_classification"
    task = {**loaded.task, "labels": list(loaded.labels)}
    if several:
        task.setdefault("thresholds", dict.fromkeys(loaded.labels, 0.5))
    temperature = float(loaded.task.get("temperature", 1.0))
    return EncoderReader(model, Framing(loaded.tokenizer), _longest(loaded), temperature, several), task


def load_tagger(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> TaggingPipeline:
    """Return the tagger of a folder, which labels the words of texts."""
    if is_encoder_folder(folder):
        tuned, encoder = _tuned(folder, "tag", "token", _Wish(device, precision, threads, backend))
        reader = EncoderTagReader(encoder, Framing(tuned.tokenizer), _longest(tuned))
        return TaggingPipeline(reader, tuned.labels, tuned.task)
    dtype = _own(folder, precision, threads, backend)
    loaded = load_reader(folder, TaggerConfig, "tag")
    model = build(loaded.config)
    model.load_state_dict(loaded.weights)
    perception = _perception(folder, loaded, device, dtype)
    own = OwnTagReader(_ready(model, device, dtype), perception)
    return TaggingPipeline(own, loaded.task["labels"], loaded.task)


def load_answerer(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> AnsweringPipeline:
    """Return what answers questions by spans of passages."""
    loaded, model = _tuned(folder, "answer", "span", _Wish(device, precision, threads, backend))
    return AnsweringPipeline(model, Framing(loaded.tokenizer), min(_longest(loaded), LONGEST_ROW), loaded.task)


def load_embedder(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> EmbeddingPipeline:
    """Return the encoder of a folder or of a published name, whatever its head, to make vectors of texts."""
    loaded = open_encoder(folder, head="plain")
    model = _Wish(device, precision, threads, backend).encoder(loaded)
    workers = (threads or cores()) if device == "cpu" else 1  # of several batches, a core for each pays best
    return EmbeddingPipeline(
        model, Framing(loaded.tokenizer), read_modules(loaded.path), longest=loaded.longest, workers=workers
    )


def load_filler(
    folder: str | Path, *, device: str = "cpu", precision: str = "float32", threads: int = 0
) -> FillingPipeline:
    """Return the masked-word model of a folder or of a published name, which fills the gaps of texts."""
    dtype = _computing(precision, threads)
    loaded = load_encoder(folder)
    if loaded.config.head not in ("masked", "pretraining"):
        raise CheckpointError(
            f"{folder}: a {loaded.config.head} head; one for masked words is needed: "
            f"`regard train language FILES --from {folder}` gives it one"
        )
    if Framing(loaded.tokenizer).mask < 0:
        raise CheckpointError(f"{folder}: its tokenizer has no mask token ({' or '.join(MASKS)}) to write gaps with")
    counts = token_counts_of(loaded.path, loaded.tokenizer.size)
    model = _ready(loaded.model(), device, dtype).pack()
    return FillingPipeline(model, loaded.tokenizer, loaded.task, loaded.longest, counts)


def load_generator(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> GenerationPipeline:
    """Return the causal language model of a folder or of a published name, which continues texts."""
    dtype = _computing("float32" if precision == "int8" else precision or "float32", threads)
    if is_ready(folder):
        held = open_ready(folder)
        held.check_precision(precision)
        fits = backend != "torch" and device == "cpu"
        ready = gpt_in(held.gpt()) if fits else _ready(held.model(), device, dtype)
        return GenerationPipeline(ready, held.tokenizers()[0], held.task)
    loaded = load_gpt(folder)

    def model() -> Gpt:
        made: Gpt = build(loaded.config)
        made.load_state_dict(loaded.weights)
        return _ready(made, device, dtype).pack()

    return GenerationPipeline(compiled_gpt(loaded, model, backend, precision, device), loaded.tokenizer, loaded.task)


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
    return StoryPipeline(_ready(model, device, dtype), vocabulary, loaded.task)


def open_translators(
    folders: Sequence[str | Path], *, device: str, precision: str | None, threads: int, backend: str
) -> TranslationPipeline:
    """Return the translator of a run's or model's folder; of several folders, one whose models decide together."""
    if not folders:
        raise UsageError("load needs at least one folder")
    found = [open_translator(local_folder(one)) for one in folders]
    engines = compiled(found, backend, precision, device)
    loaded = [one.loaded for one in found]
    threads, dtype = threads or cores(), _computing("float32" if engines else precision or "float32", threads)
    first = loaded[0]
    for one, other in zip(folders, loaded, strict=True):
        for side, ours, theirs in (("source", first.source, other.source), ("target", first.target, other.target)):
            if ours.digest != theirs.digest:
                raise UsageError(
                    f"{one} has another {side} tokenizer than {folders[0]}: models that decide together must be "
                    "trained with the same one"
                )
    models = [_model(one, device, dtype, pack=not engines) for one in loaded]
    workers = threads if device == "cpu" else 1  # where there are several batches, a core for each pays best
    return TranslationPipeline(
        *(models, first.source, first.target),
        decoding=first.decoding,
        task=first.task,
        workers=workers,
        engines=engines,
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
    `kind="unigram"`; with it they are written `decoding__beam=4`. A run that learned nothing, or needs more time, is
    told by a warning.
    """
    given = {_setting(name): value for name, value in settings.items()}
    given = with_usual(task, given)
    given |= {"data.train": [*map(str, files)], "data.valid": [*map(str, valid)]}
    report = train_run(RunConfig().changed(given), Path(out), watchers=watchers)
    if not report.finished:
        raise TrainingError(
            f"{report.reason} stopped training at {report.unit} {report.step}: call train again to go on"
        )
    if report.verdict is not None and report.verdict.text:
        warnings.warn(f"{out}: {report.verdict.text}", stacklevel=2)
    return open_any([out], device="cpu", precision=None, threads=0, backend="auto")


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


def _model(loaded: LoadedModel, device: str, precision: torch.dtype, pack: bool) -> Writer:
    model: Writer = build(loaded.config)
    model.load_state_dict(loaded.weights)
    model = _ready(model, device, precision)
    return model.pack() if pack else model


def _own(folder: str | Path, precision: str | None, threads: int, backend: str) -> torch.dtype:
    """Return the number format of a model with words of its own, which the engine does not compute."""
    if backend == "engine":
        raise UsageError(f"{folder}: the engine does not compute such a model; leave out the backend")
    return _computing(precision or "float32", threads)


def _computing(precision: str, threads: int) -> torch.dtype:
    """Take so many threads, or all cores; return the number format of this name."""
    if precision not in PRECISIONS:
        raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    torch.set_num_threads(threads or cores())
    return PRECISIONS[precision]


class Opener(Protocol):
    """Opens the models of one task."""

    def __call__(self, folder: str | Path, *, device: str, precision: str, threads: int) -> Pipeline: ...


class CompiledOpener(Protocol):
    """Opens the models of one task, which the engine may compute."""

    def __call__(
        self, folder: str | Path, *, device: str, precision: str | None, threads: int, backend: str
    ) -> Pipeline: ...


OPENERS: dict[str, Opener] = {  # all other folders translate
    "language": load_features,
    "fill": load_filler,
    "stories": load_stories,
}
COMPILED: dict[str, CompiledOpener] = {
    "embed": load_embedder,
    "classify": load_classifier,
    "tag": load_tagger,
    "answer": load_answerer,
    "generate": load_generator,
}
