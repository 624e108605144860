"""Loaders of models that torch computes, and `train`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint.encoder_dir import load_encoder
from regard.checkpoint.feature_dir import DEFAULT_LAYERS, FEATURES
from regard.checkpoint.model_dir import folder_task, is_encoder_folder
from regard.checkpoint.native import VOCABULARY, LoadedTextModel, load_memory_network, load_text_model
from regard.components import FAMILIES
from regard.config.rnn_models import ElmoConfig, RnnClassifierConfig, RnnTaggerConfig
from regard.config.runs import RunConfig, build_run, run_config_class, tasks_with
from regard.config.settings import Config
from regard.engine.backend import BackendOptions
from regard.errors import CheckpointError, ConfigError, TrainingError, UsageError
from regard.models import build_model
from regard.models.inference import check_ablation, configure_torch, prepare_for_inference
from regard.models.text_classifier import TextClassifierModel
from regard.pipeline.classification import ClassificationPipeline, TextModelClassifier
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.features import FeaturePipeline
from regard.pipeline.fill_mask import FillMaskPipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.load import load
from regard.pipeline.memory_network import MemoryNetworkReader
from regard.pipeline.next_sentence import NextSentencePipeline
from regard.pipeline.pickling import reloadable
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.story_readers import TextModelStoryReader
from regard.pipeline.tagging import RecurrentTagger, TokenClassificationPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tables import PACKAGE, PluginWarning, resolve
from regard.tasks.elmo import DEFAULT_SEQUENCE_LENGTH
from regard.tasks.feature_models import elmo_features, load_frozen_features, prepare_features
from regard.tasks.masked_lm import read_token_counts
from regard.tasks.story_qa import StoryVocabulary
from regard.tasks.story_sequence import StoryEncoder
from regard.tasks.text_model import TextPreprocessor
from regard.text.special_tokens import MASK_TOKENS, SpecialTokens
from regard.training.listeners import Listener
from regard.training.run import train_run

_stated_families: set[str] = set()  # families without an engine builder of which that was said
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
_NEXT_SENTENCE_ADVICE = (
    "whether a text follows another is predicted by an encoder with a next-sentence head "
    "(`regard train masked-lm FILES --next-sentence` trains one)"
)
# groups in which `train` searches a setting that is written without its group, in this order
SETTING_GROUPS = (
    *("training", "data", "tokenizer", "data.read", "decoding"),
    *("memory_network", "documents", "masking", "fine_tuning", "passages"),
)


# ---- parts of a pipeline


def _configure_family(
    folder: str | Path, family: str, precision: str | None, threads: int, backend: str
) -> torch.dtype:
    """Configure torch; for a plugin's family without an engine builder, say once that torch computes it."""
    has_engine = FAMILIES[family].engine is not None
    if backend == "engine" and not has_engine:
        raise UsageError(
            f"{folder}: the family {family} has no engine builder, torch computes it: leave out the backend"
        )
    if not has_engine and FAMILIES.owner(family) != PACKAGE and family not in _stated_families:
        _stated_families.add(family)
        warnings.warn(f"the family {family} has no engine builder: torch computes it", PluginWarning, stacklevel=4)
    return configure_torch(precision or "float32", threads)


def _load_preprocessor(
    folder: str | Path,
    loaded: LoadedTextModel[Any],
    device: str,
    dtype: torch.dtype,
) -> TextPreprocessor:
    """Load the input side of a text model, with the frozen features where an RNN has them."""
    labels = loaded.metadata.get("labels")
    if not isinstance(labels, list) or len(labels) != loaded.config.num_labels:
        raise CheckpointError(f"{folder}: task.json does not name the {loaded.config.num_labels} labels of the model")
    features = None
    is_rnn = isinstance(loaded.config, RnnClassifierConfig | RnnTaggerConfig)
    if is_rnn and loaded.config.encoder.num_feature_layers:
        features_folder = Path(folder) / FEATURES
        metadata = loaded.metadata.get("features")
        selection = str(metadata.get("selection", DEFAULT_LAYERS)) if isinstance(metadata, dict) else DEFAULT_LAYERS
        features = load_frozen_features(features_folder, selection, device=device, dtype=dtype)
        if not isinstance(metadata, dict) or features.digest != metadata.get("digest"):
            raise CheckpointError(f"{features_folder}: not the features that the model was trained with")
    return TextPreprocessor(loaded.tokenizer, int(loaded.metadata["max_length"]), features)


# ---- one loader for each task


@reloadable
def load_features(
    folder: str | Path, *, device: str = "cpu", precision: str = "float32", threads: int = 0
) -> FeaturePipeline:
    """Load ELMo features, as `regard train elmo` writes them."""
    dtype = configure_torch(precision, threads)
    loaded = load_text_model(folder, ElmoConfig, FeaturePipeline.task_name)
    features = elmo_features(loaded)
    prepare_features(features, device, dtype)
    check_ablation(features.model)
    return FeaturePipeline(features, int(loaded.metadata.get("row", DEFAULT_SEQUENCE_LENGTH)))


@reloadable
def load_text_classifier(
    folder: str | Path,
    task: str = "",
    *,
    device: str = "cpu",
    precision: str | None = None,
    threads: int = 0,
    backend: str = "auto",
) -> ClassificationPipeline:
    """Load a text classifier with its own vocabulary, of any family: an RNN, or one of a plugin.

    `task` is the one that it must be for; by default any.
    """
    loaded: LoadedTextModel[Any] = load_text_model(folder, Config, task or folder_task(folder))
    family = loaded.config.family
    if not issubclass(resolve(FAMILIES[family].model), TextClassifierModel):
        raise CheckpointError(f"{folder}: a model of the family {family}, where a text classifier is needed")
    dtype = _configure_family(folder, family, precision, threads, backend)
    engine = resolve(FAMILIES[family].engine)
    model: TextClassifierModel
    if engine is not None and backend != "torch":
        arrays = {name: tensor.numpy() for name, tensor in loaded.weights.items()}
        model = engine.from_weights(loaded.config, arrays, precision or "float32")
    else:
        model = build_model(loaded.config)
        model.load_state_dict(loaded.weights)
        model = prepare_for_inference(model, device, dtype)
    preprocessor = _load_preprocessor(folder, loaded, device, dtype)
    return ClassificationPipeline(TextModelClassifier(model, preprocessor), loaded.metadata)


def load_rnn_tagger(folder: str | Path, options: BackendOptions) -> TokenClassificationPipeline:
    """Load an RNN tagger with its own vocabulary."""
    dtype = _configure_family(folder, RnnTaggerConfig().family, options.precision, options.threads, options.backend)
    loaded = load_text_model(folder, RnnTaggerConfig, TokenClassificationPipeline.task_name)
    model = build_model(loaded.config)
    model.load_state_dict(loaded.weights)
    preprocessor = _load_preprocessor(folder, loaded, options.device, dtype)
    rnn_tagger = RecurrentTagger(prepare_for_inference(model, options.device, dtype), preprocessor)
    return TokenClassificationPipeline(rnn_tagger, loaded.metadata["labels"], loaded.metadata)


@reloadable
def load_filler(
    folder: str | Path, *, device: str = "cpu", precision: str = "float32", threads: int = 0
) -> FillMaskPipeline:
    """Load the masked language model of a folder, or of a model on the hub."""
    dtype = configure_torch(precision, threads)
    loaded = load_encoder(folder)
    if loaded.config.head not in ("masked", "pretraining"):
        raise CheckpointError(
            f"{folder}: a {loaded.config.head} head, where a masked-LM head is needed: "
            f"`regard train masked-lm FILES --from {folder}` trains one"
        )
    if SpecialTokens(loaded.tokenizer).mask_id < 0:
        raise CheckpointError(f"{folder}: its tokenizer has no mask token ({' or '.join(MASK_TOKENS)})")
    counts = read_token_counts(loaded.path, loaded.tokenizer.vocab_size)
    model = prepare_for_inference(loaded.model(), device, dtype).pack()
    return FillMaskPipeline(model, loaded.tokenizer, loaded.metadata, loaded.max_length, counts)


@reloadable
def load_next_sentence(
    folder: str | Path, *, device: str = "cpu", precision: str = "float32", threads: int = 0
) -> NextSentencePipeline:
    """Load an encoder that predicts whether a text follows another, from a folder or the hub."""
    dtype = configure_torch(precision, threads)
    if not is_encoder_folder(folder):
        raise CheckpointError(f"{folder}: {_NEXT_SENTENCE_ADVICE}, and this is a model for {folder_task(folder)!r}")
    loaded = load_encoder(folder)
    if loaded.config.head not in ("next", "pretraining"):
        raise CheckpointError(f"{folder}: a {loaded.config.head} head: {_NEXT_SENTENCE_ADVICE}")
    model = prepare_for_inference(loaded.model(), device, dtype).pack()
    return NextSentencePipeline(model, SpecialTokens(loaded.tokenizer), loaded.max_length)


def load_memory_stories(folder: str | Path, options: BackendOptions) -> StoryQAPipeline:
    """Load a memory network, which answers questions about stories."""
    if options.backend == "engine":
        raise UsageError(f"{folder}: the engine does not run memory networks: leave out the backend")
    dtype = configure_torch(options.precision or "float32", options.threads)
    if dtype != torch.float32:
        raise ConfigError(f"memory networks compute in float32, not in {options.precision}: leave out --precision")
    loaded = load_memory_network(folder)
    model = build_model(loaded.config)
    model.load_state_dict(loaded.weights)
    vocabulary = StoryVocabulary.from_dict(loaded.vocabulary, str(loaded.path / VOCABULARY))
    reader = MemoryNetworkReader(prepare_for_inference(model, options.device, dtype), vocabulary)
    return StoryQAPipeline(reader, loaded.metadata)


def load_rnn_stories(folder: str | Path, options: BackendOptions) -> StoryQAPipeline:
    """Load an RNN that answers questions about stories."""
    dtype = _configure_family(folder, RnnClassifierConfig().family, options.precision, options.threads, options.backend)
    loaded = load_text_model(folder, RnnClassifierConfig, StoryQAPipeline.task_name)
    model = build_model(loaded.config)
    model.load_state_dict(loaded.weights)
    preprocessor = _load_preprocessor(folder, loaded, options.device, dtype)
    encoder = StoryEncoder(
        preprocessor.tokenizer,
        tuple(loaded.metadata["labels"]),
        max_length=preprocessor.max_length,
        has_pairs=False,
    )
    reader = TextModelStoryReader(prepare_for_inference(model, options.device, dtype), encoder)
    return StoryQAPipeline(reader, loaded.metadata)


# ---- training


def train(
    task: str,
    *files: str | Path,
    out: str | Path,
    valid: Sequence[str | Path] = (),
    listeners: Sequence[Listener] = (),
    **settings: Any,
) -> Pipeline:
    """Train a model on files, or resume the run in `out`, and return its pipeline.

    Settings are named as in a recipe, without their group where that is unambiguous: `minutes=5`, `preset="tiny"`,
    `kind="unigram"`; with it they are written `decoding__beam=4`. A run that learned nothing or too little warns.
    """
    run_config = run_config_class(task)
    overrides = {_resolve_setting(name, run_config): value for name, value in settings.items()}
    overrides["data.train"] = [str(path) for path in files]
    overrides["data.valid"] = [str(path) for path in valid]
    report = train_run(build_run(task, overrides), Path(out), listeners=listeners)
    if not report.is_finished:
        raise TrainingError(
            f"{report.reason} stopped training at {report.unit} {report.step}: call train again to resume"
        )
    if report.verdict is not None and report.verdict.text:
        warnings.warn(f"{out}: {report.verdict.text}", stacklevel=2)
    return load(out)


def _resolve_setting(name: str, run_config: type[RunConfig]) -> str:
    """Dotted path of a setting of a run.

    >>> run_config = run_config_class("translate")
    >>> _resolve_setting("minutes", run_config), _resolve_setting("decoding__beam", run_config)
    ('training.minutes', 'decoding.beam')
    """
    paths = [knob.path for deep in (True, False) for knob in run_config.knobs(deep=deep)]
    dotted = name.replace("__", ".")
    candidates = (dotted, *(f"{group}.{dotted}" for group in SETTING_GROUPS))
    for path in candidates:
        if path in paths:
            return path
    path = next((path for path in candidates if tasks_with(path)), dotted)
    raise run_config.unknown_setting(path, [path.rpartition(".")[2] for path in paths])
