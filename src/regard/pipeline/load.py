"""`load`, and the loaders of models that the engine computes, which need no torch there.

Every loader goes the same way: locate the folder, read its `ModelSource` (`engine.folder`), choose the backend
(`engine.backend`), build the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.backends import EncoderBackend
from regard.checkpoint.hf.sentence_transformers import read_modules
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.model_dir import folder_family, folder_task, is_encoder_folder
from regard.checkpoint.source import EncoderSource, TranslatorSource
from regard.checkpoint.unused_weights import allow_unused_layers
from regard.engine.backend import BackendOptions
from regard.engine.folder import read_causal_lm, read_encoder, read_translator
from regard.errors import CheckpointError, UsageError
from regard.pipeline.classification import TASK, ClassificationPipeline, EncoderClassifier
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.pickling import reloadable
from regard.pipeline.question_answering import DEFAULT_MAX_LENGTH, QuestionAnsweringPipeline
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.story_readers import EncoderStoryReader
from regard.pipeline.tagging import EncoderTagger, TokenClassificationPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.registry import TASKS, resolve
from regard.tasks.story_sequence import StoryEncoder
from regard.tasks.tagging import FIRST_SUBWORD
from regard.text.special_tokens import SpecialTokens

if TYPE_CHECKING:
    from regard.pipeline.loaders import Pipeline


@reloadable
def load(
    folder: str | Path | Sequence[str | Path],
    *,
    task: str = "",
    ensemble: Sequence[str | Path] = (),
    device: str = "cpu",
    precision: str | None = None,
    threads: int = 0,
    backend: str = "auto",
    allow_unused: bool = False,
) -> Pipeline:
    """Load the pipeline of a run directory or model folder, or of a model on the hub, whatever its task.

    `task` selects another use of the model than its own, such as `embed` for any encoder. Several folders of
    translation models form an ensemble. Translation models, encoders and causal language models
    compute in the engine where it is available (`backend`: auto, engine or torch), in float32, bf16 or int8;
    `precision` defaults to that of the folder. A folder whose `config.json` leaves out whole layers of the weights is
    refused without `allow_unused`. Pipelines can be pickled, shared between threads and used after a fork.
    """
    with allow_unused_layers(allow_unused):
        return _load(folder, task, ensemble, device=device, precision=precision, threads=threads, backend=backend)


def _load(
    folder: str | Path | Sequence[str | Path], task: str, ensemble: Sequence[str | Path], **options: Any
) -> Pipeline:
    folders = _list_folders(folder, ensemble)
    if len(folders) != 1:
        return load_translator(folders, **options)
    row = TASKS[task or folder_task(folders[0])]
    if not row.has_engine:
        if options["backend"] == "engine":
            raise UsageError(f"{folders[0]}: the engine cannot run a model of this kind; leave out the backend")
        del options["backend"]
        options["precision"] = options["precision"] or "float32"
    pipeline: Pipeline = resolve(row.load)(folders[0], **options)
    return pipeline


@reloadable
def load_embedder(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> EmbeddingPipeline:
    """Load the encoder of a folder, or of a model on the hub, whatever its head, to embed texts."""
    source = read_encoder(folder, head="plain")
    options = BackendOptions(device, precision, threads=threads, backend=backend)
    return EmbeddingPipeline(
        options.encoder(source),
        SpecialTokens(source.tokenizer),
        read_modules(source.path),
        max_length=source.max_length,
        workers=options.num_workers,
    )


@reloadable
def load_translator(
    folder: str | Path | Sequence[str | Path],
    *,
    ensemble: Sequence[str | Path] = (),
    device: str = "cpu",
    precision: str | None = None,
    threads: int = 0,
    backend: str = "auto",
) -> TranslationPipeline:
    """Load the translation model of a run directory or model folder; several folders form an ensemble."""
    folders = _list_folders(folder, ensemble)
    if not folders:
        raise UsageError("load needs at least one folder")
    sources = [read_translator(resolve_model(name)) for name in folders]
    options = BackendOptions(device, precision, threads=threads, backend=backend)
    backends = options.translators(sources)
    _check_same_tokenizers(folders, sources)
    first = sources[0]
    return TranslationPipeline(
        backends,
        first.source,
        first.target,
        decoding=first.decoding,
        task=first.metadata,
        workers=options.num_workers,
    )


# ---- fine-tuned encoders and causal language models


@reloadable
def load_classifier(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> ClassificationPipeline:
    """Load the text classifier of a folder: a fine-tuned encoder or an RNN."""
    if is_encoder_folder(folder):
        return _load_encoder_classifier(folder, BackendOptions(device, precision, threads=threads, backend=backend))
    from regard.pipeline.loaders import load_text_classifier

    return load_text_classifier(folder, TASK, device=device, precision=precision, threads=threads, backend=backend)


def _load_encoder_classifier(folder: str | Path, options: BackendOptions) -> ClassificationPipeline:
    loaded, model = _load_fine_tuned(folder, ClassificationPipeline.task_name, "label", options)
    is_multi_label = loaded.problem_type == "multi_label_classification"
    task = {**loaded.metadata, "labels": list(loaded.labels)}
    if is_multi_label:
        task.setdefault("thresholds", dict.fromkeys(loaded.labels, 0.5))
    classifier = EncoderClassifier(
        model,
        SpecialTokens(loaded.tokenizer),
        max_length=_max_length(loaded),
        temperature=float(loaded.metadata.get("temperature", 1.0)),
        is_multi_label=is_multi_label,
    )
    return ClassificationPipeline(classifier, task)


@reloadable
def load_tagger(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> TokenClassificationPipeline:
    """Load the tagger of a folder: a fine-tuned encoder or an RNN."""
    options = BackendOptions(device, precision, threads=threads, backend=backend)
    if is_encoder_folder(folder):
        fine_tuned, encoder = _load_fine_tuned(folder, TokenClassificationPipeline.task_name, "token", options)
        encoder_tagger = EncoderTagger(
            encoder,
            SpecialTokens(fine_tuned.tokenizer),
            max_length=_max_length(fine_tuned),
            word_token=str(fine_tuned.metadata.get("word_token", FIRST_SUBWORD)),
        )
        return TokenClassificationPipeline(encoder_tagger, fine_tuned.labels, fine_tuned.metadata)
    from regard.pipeline.loaders import load_rnn_tagger

    return load_rnn_tagger(folder, options)


@reloadable
def load_answerer(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> QuestionAnsweringPipeline:
    """Load the extractive question answering model of a folder."""
    options = BackendOptions(device, precision, threads=threads, backend=backend)
    loaded, model = _load_fine_tuned(folder, QuestionAnsweringPipeline.task_name, "span", options)
    max_length = min(_max_length(loaded), DEFAULT_MAX_LENGTH)
    return QuestionAnsweringPipeline(model, SpecialTokens(loaded.tokenizer), max_length, loaded.metadata)


@reloadable
def load_stories(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> StoryQAPipeline:
    """Load the model of a folder that answers questions about stories: a memory network, an RNN or a Transformer."""
    options = BackendOptions(device, precision, threads=threads, backend=backend)
    if is_encoder_folder(folder):
        loaded, model = _load_fine_tuned(folder, StoryQAPipeline.task_name, "label", options)
        encoder = StoryEncoder(loaded.tokenizer, tuple(loaded.labels), max_length=_max_length(loaded), has_pairs=True)
        return StoryQAPipeline(EncoderStoryReader(model, encoder), loaded.metadata)
    from regard.pipeline.loaders import load_memory_stories, load_rnn_stories

    is_rnn = folder_family(folder) == "rnn_classifier"
    return load_rnn_stories(folder, options) if is_rnn else load_memory_stories(folder, options)


@reloadable
def load_generator(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> GenerationPipeline:
    """Load the causal language model of a folder, or of a model on the hub."""
    source = read_causal_lm(folder)
    options = BackendOptions(device, precision, threads=threads, backend=backend)
    return GenerationPipeline(options.causal_lm(source), source.tokenizer, source.metadata)


def _load_fine_tuned(
    folder: str | Path, task: str, head: str, options: BackendOptions
) -> tuple[EncoderSource, EncoderBackend]:
    """Load a fine-tuned encoder; another head, or another task, is an error."""
    loaded = read_encoder(folder, task=task)
    if loaded.config.head != head:
        raise CheckpointError(
            f"{folder}: a model with a {loaded.config.head} head, where `regard {task}` needs a {head} head"
        )
    return loaded, options.encoder(loaded)


def _max_length(loaded: EncoderSource) -> int:
    """Tokens of a row: as in training where that is known."""
    return min(loaded.max_length, int(loaded.metadata.get("max_length", loaded.max_length)))


def _list_folders(folder: str | Path | Sequence[str | Path], ensemble: Sequence[str | Path]) -> list[str | Path]:
    folders = [folder] if isinstance(folder, str | Path) else folder
    return [*folders, *ensemble]


def _check_same_tokenizers(folders: Sequence[str | Path], sources: Sequence[TranslatorSource]) -> None:
    first = sources[0]
    for folder, translator in zip(folders, sources, strict=True):
        tokenizers = (("source", first.source, translator.source), ("target", first.target, translator.target))
        for side, expected, tokenizer in tokenizers:
            if tokenizer.digest != expected.digest:
                raise UsageError(
                    f"{folder} has another {side} tokenizer than {folders[0]}: the models of an ensemble must be "
                    "trained with the same one"
                )
