"""`load` and the loaders that need no torch: engine folders are opened here, all other folders by `loaders`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.attention.intervention import active_intervention
from regard.checkpoint.hf.sentence_transformers import read_modules
from regard.checkpoint.locate import TASK_FILE
from regard.config.inference import DecodingConfig
from regard.config.models import BertConfig, TransformerConfig
from regard.engine.folder import EngineFolder, as_bert, is_engine_folder, open_engine_folder
from regard.errors import CheckpointError, ConfigError
from regard.hardware import available_cores
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.text.special_tokens import SpecialTokens

if TYPE_CHECKING:
    from regard.pipeline.loaders import Pipeline


def load(
    folder: str | Path | Sequence[str | Path],
    *,
    ensemble: Sequence[str | Path] = (),
    device: str = "cpu",
    precision: str | None = None,
    threads: int = 0,
    backend: str = "auto",
) -> Pipeline:
    """Load the pipeline of a run directory or model folder, whatever its task.

    Several folders of translation models form an ensemble. Translation models and encoders compute in the engine where
    it is available (`backend`: auto, engine or torch), in float32, bf16 or int8; `precision` defaults to that of the
    folder.
    """
    options: dict[str, Any] = {"device": device, "precision": precision, "threads": threads, "backend": backend}
    folders = _list_folders(folder, ensemble)
    if len(folders) == 1 and _can_use_engine_folder(folders[0], device, backend):
        config = open_engine_folder(folders[0]).stored.config
        if isinstance(config, TransformerConfig):
            return load_translator(folders[0], **options)
        if isinstance(config, BertConfig) and config.head == "plain":
            return load_embedder(folders[0], **options)
    from regard.pipeline.loaders import load_pipeline

    return load_pipeline(folders, **options)


def load_embedder(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> EmbeddingPipeline:
    """Load the encoder of a folder, or of a model on the hub, whatever its head, to embed texts."""
    if not _can_use_engine_folder(folder, device, backend):
        from regard.pipeline import loaders

        return loaders.load_embedder(folder, device=device, precision=precision, threads=threads, backend=backend)
    engine_folder = open_engine_folder(folder)
    engine_folder.check_precision(precision)
    model = as_bert(engine_folder.encoder(threads or available_cores()))
    max_positions = model.config.max_positions
    return EmbeddingPipeline(
        model,
        SpecialTokens(engine_folder.tokenizers()[0]),
        read_modules(engine_folder.path),
        max_length=min(int(engine_folder.stored.metadata.get("max_length", max_positions)), max_positions),
    )


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
    if len(folders) != 1 or not _can_use_engine_folder(folders[0], device, backend):
        from regard.pipeline.loaders import load_translators

        return load_translators(folders, device=device, precision=precision, threads=threads, backend=backend)
    engine_folder = open_engine_folder(folders[0])
    engine_folder.check_precision(precision)
    engine, model = engine_folder.translator()
    source, target = engine_folder.tokenizers()
    return TranslationPipeline(
        [model],
        source,
        target,
        decoding=_read_decoding_config(engine_folder),
        task=engine_folder.task,
        workers=threads or available_cores(),
        engines=[engine],
    )


def _list_folders(folder: str | Path | Sequence[str | Path], ensemble: Sequence[str | Path]) -> list[str | Path]:
    folders = [folder] if isinstance(folder, str | Path) else folder
    return [*folders, *ensemble]


def _can_use_engine_folder(folder: str | Path, device: str, backend: str) -> bool:
    """Whether the engine can run from this folder as it is: an engine folder, on the CPU, without ablation."""
    if backend not in ("auto", "engine") or device != "cpu" or active_intervention() is not None:
        return False
    return is_engine_folder(folder)


def _read_decoding_config(engine_folder: EngineFolder) -> DecodingConfig:
    where = str(engine_folder.path / TASK_FILE)
    settings = engine_folder.task.get("decoding")
    if not isinstance(settings, dict):
        raise CheckpointError(f"{where}: it has no decoding settings")
    try:
        return DecodingConfig.from_dict(settings, where=where)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(str(error)) from None
