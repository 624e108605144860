"""From folders to pipelines, with torch: models of every task are opened, `train` makes one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from regard.attention.intervention import active_intervention
from regard.checkpoint.causal_dir import load_causal_lm
from regard.checkpoint.encoder_dir import LoadedEncoder, load_encoder
from regard.checkpoint.hf.sentence_transformers import read_modules
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.model_dir import LoadedTranslator, folder_task, is_encoder_folder
from regard.checkpoint.native import FEATURES, VOCABULARY, LoadedRnnText, load_memory_network, load_rnn_text
from regard.checkpoint.run_defaults import apply_defaults
from regard.config.rnn_models import RnnClassifierConfig, RnnTaggerConfig
from regard.config.runs import RunConfig
from regard.engine.backend import causal_backend, encoder_backend, read_encoder, read_translator, translator_backends
from regard.engine.folder import encoder_in, gpt_in, is_engine_folder, open_engine_folder
from regard.errors import CheckpointError, ConfigError, TrainingError, UsageError, nearest
from regard.hardware import available_cores
from regard.models import build_model
from regard.models.base import EncoderDecoder, Model, Placed, move_to_device
from regard.models.bert import Bert
from regard.models.gpt import Gpt
from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier, RecurrentClassifier
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.features import FeaturePipeline
from regard.pipeline.fill_mask import FillMaskPipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.question_answering import LONGEST_ROW, QuestionAnsweringPipeline
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.tagging import EncoderTagger, RecurrentTagger, TokenClassificationPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.elmo import ElmoFeatures
from regard.tasks.masked_lm import read_token_counts
from regard.tasks.rnn_text import RnnPreprocessor
from regard.tasks.story_qa import StoryVocabulary
from regard.text.special_tokens import MASKS, SpecialTokens
from regard.training.listeners import Listener
from regard.training.run import train_run

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
Pipeline = (
    TranslationPipeline
    | FeaturePipeline
    | ClassificationPipeline
    | StoryQAPipeline
    | TokenClassificationPipeline
    | QuestionAnsweringPipeline
    | GenerationPipeline
    | EmbeddingPipeline
    | FillMaskPipeline
)
# where a setting without its group is looked for
GROUPS = (
    *("training", "data", "tokenizer", "data.read", "decoding"),
    *("memory_network", "stories", "documents", "masking", "fine_tuning", "passages"),
)


def open_any(
    folders: Sequence[str | Path], *, device: str, precision: str | None, threads: int, backend: str
) -> Pipeline:
    """Return the pipeline of a folder, whatever its task; of several, that of translators that decide together."""
    task = folder_task(folders[0]) if len(folders) == 1 else ""
    if (compiling := COMPILED.get(task)) is not None:
        return compiling(folders[0], device=device, precision=precision, threads=threads, backend=backend)
    if (opener := OPENERS.get(task)) is not None:
        if backend == "engine":
            raise UsageError(f"{folders[0]}: the engine does not compute such a model; leave out the backend")
        return opener(folders[0], device=device, precision=precision or "float32", threads=threads)
    return load_translators(folders, device=device, precision=precision, threads=threads, backend=backend)


def load_features(
    folder: str | Path, *, device: str = "cpu", precision: str = "float32", threads: int = 0
) -> FeaturePipeline:
    """Return the features of a folder that `regard train language` made."""
    features = _features(folder, device, _computing(precision, threads))
    _check_off(features.model)
    return FeaturePipeline(features)


def _features(folder: str | Path, device: str, precision: torch.dtype) -> ElmoFeatures:
    loaded = ElmoFeatures.load(folder)
    return replace(loaded, model=move_to_device(loaded.model, device, precision).eval())


def _ready(model: Placed, device: str, precision: torch.dtype) -> Placed:
    """Return a model where it is to compute, for use; heads that are switched off must be its own."""
    _check_off(model)
    return move_to_device(model, device, precision).eval()


def _check_off(model: Model) -> None:
    if (chosen := active_intervention()) is not None:
        chosen.check(model.attention_sites())


def load_classifier(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> ClassificationPipeline:
    """Return the classifier of a folder; its frozen features are in the same folder."""
    if is_encoder_folder(folder):
        return ClassificationPipeline(*_label_reader(folder, ComputeOptions(device, precision, threads, backend)))
    dtype = _own(folder, precision, threads, backend)
    loaded = load_rnn_text(folder, RnnClassifierConfig, "classify")
    model = build_model(loaded.config)
    model.load_state_dict(loaded.weights)
    perception = _perception(folder, loaded, device, dtype)
    return ClassificationPipeline(RecurrentClassifier(_ready(model, device, dtype), perception), loaded.task)


def _perception(
    folder: str | Path,
    loaded: LoadedRnnText[RnnClassifierConfig] | LoadedRnnText[RnnTaggerConfig],
    device: str,
    dtype: torch.dtype,
) -> RnnPreprocessor:
    """Return how a reader with words of its own reads texts, with its frozen features where it has some."""
    labels, beside = loaded.task.get("labels"), loaded.task.get("features")
    if not isinstance(labels, list) or len(labels) != loaded.config.num_labels:
        raise CheckpointError(f"{folder}: task.json does not name the {loaded.config.num_labels} labels of the model")
    features = None
    if loaded.config.encoder.num_feature_layers:
        features = _features(Path(folder) / FEATURES, device, dtype)
        if not isinstance(beside, dict) or features.digest != beside.get("digest"):
            raise CheckpointError(
                f"{Path(folder) / FEATURES}: not the features that the {loaded.config.family} was trained with"
            )
    return RnnPreprocessor(loaded.tokenizer, int(loaded.task["max_length"]), features)


@dataclass(frozen=True)
class ComputeOptions:
    """Where and how a model is to compute."""

    device: str
    precision: str | None
    threads: int
    backend: str

    def encoder(self, loaded: LoadedEncoder) -> Bert:
        """Return an encoder as it is to compute: in the engine, in torch while someone watches, or in torch."""
        dtype = _computing("float32" if self.precision == "int8" else self.precision or "float32", self.threads)
        threads = self.threads or available_cores()

        def model() -> Bert:
            return _ready(loaded.model(), self.device, dtype).pack()

        if is_engine_folder(loaded.path):
            held = open_engine_folder(loaded.path)
            held.check_precision(self.precision)
            fits = self.backend != "torch" and self.device == "cpu"
            return encoder_in(held.encoder(threads) if fits else _ready(held.model(), self.device, dtype))
        return encoder_backend(loaded, model, self.backend, self.precision, self.device, threads)


def _tuned(folder: str | Path, task: str, head: str, wish: ComputeOptions) -> tuple[LoadedEncoder, Bert]:
    """Return the encoder of a folder, ready to use; one without this head, or for another task, is refused."""
    loaded = read_encoder(folder, task=task)
    if loaded.config.head != head:
        held = loaded.config.head
        raise CheckpointError(f"{folder}: a model with a {held} head, where `regard {task}` needs a {head} head")
    return loaded, wish.encoder(loaded)


def _longest(loaded: LoadedEncoder) -> int:
    """Return how many tokens a row has, as in training where that is known."""
    return min(loaded.max_length, int(loaded.task.get("max_length", loaded.max_length)))


def _label_reader(folder: str | Path, wish: ComputeOptions) -> tuple[EncoderClassifier, dict[str, Any]]:
    loaded, model = _tuned(folder, "classify", "label", wish)
    several = loaded.problem_type == "multi_label_classification"
    task = {**loaded.task, "labels": list(loaded.labels)}
    if several:
        task.setdefault("thresholds", dict.fromkeys(loaded.labels, 0.5))
    temperature = float(loaded.task.get("temperature", 1.0))
    return EncoderClassifier(model, SpecialTokens(loaded.tokenizer), _longest(loaded), temperature, several), task


def load_tagger(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> TokenClassificationPipeline:
    """Return the tagger of a folder, which labels the words of texts."""
    if is_encoder_folder(folder):
        tuned, encoder = _tuned(folder, "tag", "token", ComputeOptions(device, precision, threads, backend))
        reader = EncoderTagger(encoder, SpecialTokens(tuned.tokenizer), _longest(tuned))
        return TokenClassificationPipeline(reader, tuned.labels, tuned.task)
    dtype = _own(folder, precision, threads, backend)
    loaded = load_rnn_text(folder, RnnTaggerConfig, "tag")
    model = build_model(loaded.config)
    model.load_state_dict(loaded.weights)
    perception = _perception(folder, loaded, device, dtype)
    own = RecurrentTagger(_ready(model, device, dtype), perception)
    return TokenClassificationPipeline(own, loaded.task["labels"], loaded.task)


def load_answerer(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> QuestionAnsweringPipeline:
    """Return what answers questions by spans of passages."""
    loaded, model = _tuned(folder, "answer", "span", ComputeOptions(device, precision, threads, backend))
    return QuestionAnsweringPipeline(
        model, SpecialTokens(loaded.tokenizer), min(_longest(loaded), LONGEST_ROW), loaded.task
    )


def load_embedder(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> EmbeddingPipeline:
    """Return the encoder of a folder or of a published name, whatever its head, to make vectors of texts."""
    loaded = read_encoder(folder, head="plain")
    model = ComputeOptions(device, precision, threads, backend).encoder(loaded)
    workers = (threads or available_cores()) if device == "cpu" else 1  # of several batches, a core for each pays best
    return EmbeddingPipeline(
        model, SpecialTokens(loaded.tokenizer), read_modules(loaded.path), max_length=loaded.max_length, workers=workers
    )


def load_filler(
    folder: str | Path, *, device: str = "cpu", precision: str = "float32", threads: int = 0
) -> FillMaskPipeline:
    """Return the masked-word model of a folder or of a published name, which fills the gaps of texts."""
    dtype = _computing(precision, threads)
    loaded = load_encoder(folder)
    if loaded.config.head not in ("masked", "pretraining"):
        raise CheckpointError(
            f"{folder}: a {loaded.config.head} head; one for masked words is needed: "
            f"`regard train language FILES --from {folder}` gives it one"
        )
    if SpecialTokens(loaded.tokenizer).mask < 0:
        raise CheckpointError(f"{folder}: its tokenizer has no mask token ({' or '.join(MASKS)}) to write gaps with")
    counts = read_token_counts(loaded.path, loaded.tokenizer.vocab_size)
    model = _ready(loaded.model(), device, dtype).pack()
    return FillMaskPipeline(model, loaded.tokenizer, loaded.task, loaded.max_length, counts)


def load_generator(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> GenerationPipeline:
    """Return the causal language model of a folder or of a published name, which continues texts."""
    dtype = _computing("float32" if precision == "int8" else precision or "float32", threads)
    if is_engine_folder(folder):
        held = open_engine_folder(folder)
        held.check_precision(precision)
        fits = backend != "torch" and device == "cpu"
        ready = gpt_in(held.causal_lm()) if fits else _ready(held.model(), device, dtype)
        return GenerationPipeline(ready, held.tokenizers()[0], held.task)
    loaded = load_causal_lm(folder)

    def model() -> Gpt:
        made: Gpt = build_model(loaded.config)
        made.load_state_dict(loaded.weights)
        return _ready(made, device, dtype).pack()

    return GenerationPipeline(causal_backend(loaded, model, backend, precision, device), loaded.tokenizer, loaded.task)


def load_stories(
    folder: str | Path, *, device: str = "cpu", precision: str = "float32", threads: int = 0
) -> StoryQAPipeline:
    """Return the memory network of a folder, which answers questions about stories."""
    dtype = _computing(precision, threads)
    if dtype != torch.float32:
        raise ConfigError(f"memory networks compute in float32, not in {precision}: leave out --precision")
    loaded = load_memory_network(folder)
    model = build_model(loaded.config)
    model.load_state_dict(loaded.weights)
    vocabulary = StoryVocabulary.from_dict(loaded.vocabulary, str(loaded.path / VOCABULARY))
    return StoryQAPipeline(_ready(model, device, dtype), vocabulary, loaded.task)


def load_translators(
    folders: Sequence[str | Path], *, device: str, precision: str | None, threads: int, backend: str
) -> TranslationPipeline:
    """Return the translator of a run's or model's folder; of several folders, one whose models decide together."""
    if not folders:
        raise UsageError("load needs at least one folder")
    found = [read_translator(resolve_model(one)) for one in folders]
    engines = translator_backends(found, backend, precision, device)
    loaded = [one.loaded for one in found]
    threads, dtype = threads or available_cores(), _computing("float32" if engines else precision or "float32", threads)
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
    listeners: Sequence[Listener] = (),
    **settings: Any,
) -> Pipeline:
    """Train a model on files, or go on training the run in `out`, and return its pipeline.

    Settings are named as in a recipe, without their group where that is clear: `minutes=5`, `preset="tiny"`,
    `kind="unigram"`; with it they are written `decoding__beam=4`. A run that learned nothing, or needs more time, is
    told by a warning.
    """
    given = {_setting(name): value for name, value in settings.items()}
    given = apply_defaults(task, given)
    given |= {"data.train": [*map(str, files)], "data.valid": [*map(str, valid)]}
    report = train_run(RunConfig().with_settings(given), Path(out), listeners=listeners)
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


def _model(loaded: LoadedTranslator, device: str, precision: torch.dtype, pack: bool) -> EncoderDecoder:
    model: EncoderDecoder = build_model(loaded.config)
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
    torch.set_num_threads(threads or available_cores())
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
