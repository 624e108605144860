"""The ways into models: folders that are ready for the engine are opened without torch, all others by `folders`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.attention.intervention import active_intervention
from regard.checkpoint.hf.sentence_transformers import read_modules
from regard.checkpoint.locate import TASK_FILE
from regard.config.inference import DecodingConfig
from regard.config.models import BertConfig, TransformerConfig
from regard.engine.folder import EngineFolder, encoder_in, is_engine_folder, open_engine_folder
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
    """Return the pipeline of a run's or model's folder, whatever its task.

    Of several folders with translators, return one whose models decide together. Translators and encoders compute in
    the engine where it is there (`backend`: auto, engine or torch), in float32, bf16 or int8; without a precision in
    that of the folder.
    """
    given: dict[str, Any] = {"device": device, "precision": precision, "threads": threads, "backend": backend}
    folders = _listed(folder, ensemble)
    if len(folders) == 1 and _fits(folders[0], device, backend):
        config = open_engine_folder(folders[0]).stored.config
        if isinstance(config, TransformerConfig):
            return load_translator(folders[0], **given)
        if isinstance(config, BertConfig) and config.head == "plain":
            return load_embedder(folders[0], **given)
    from regard.pipeline.loaders import open_any

    return open_any(folders, **given)


def load_embedder(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> EmbeddingPipeline:
    """Return the encoder of a folder or of a published name, whatever its head, to make vectors of texts."""
    if not _fits(folder, device, backend):
        from regard.pipeline import loaders

        return loaders.load_embedder(folder, device=device, precision=precision, threads=threads, backend=backend)
    found = open_engine_folder(folder)
    found.check_precision(precision)
    model = encoder_in(found.encoder(threads or available_cores()))
    longest = min(int(found.stored.metadata.get("longest", model.config.max_positions)), model.config.max_positions)
    return EmbeddingPipeline(model, SpecialTokens(found.tokenizers()[0]), read_modules(found.path), max_length=longest)


def load_translator(
    folder: str | Path | Sequence[str | Path],
    *,
    ensemble: Sequence[str | Path] = (),
    device: str = "cpu",
    precision: str | None = None,
    threads: int = 0,
    backend: str = "auto",
) -> TranslationPipeline:
    """Return the translator of a run's or model's folder; of several folders, one whose models decide together."""
    folders = _listed(folder, ensemble)
    if len(folders) != 1 or not _fits(folders[0], device, backend):
        from regard.pipeline.loaders import load_translators

        return load_translators(folders, device=device, precision=precision, threads=threads, backend=backend)
    found = open_engine_folder(folders[0])
    found.check_precision(precision)
    engine, model = found.translator()
    source, target = found.tokenizers()
    return TranslationPipeline(
        *([model], source, target),
        decoding=_decoding(found),
        task=found.task,
        workers=threads or available_cores(),
        engines=[engine],
    )


def _listed(folder: str | Path | Sequence[str | Path], more: Sequence[str | Path]) -> list[str | Path]:
    return [*([folder] if isinstance(folder, str | Path) else folder), *more]


def _fits(folder: str | Path, device: str, backend: str) -> bool:
    """Whether the engine answers from its own folder, as it is."""
    wanted = backend in ("auto", "engine") and device == "cpu" and active_intervention() is None
    return wanted and is_engine_folder(folder)


def _decoding(found: EngineFolder) -> DecodingConfig:
    told = found.task.get("decoding")
    if not isinstance(told, dict):
        raise CheckpointError(f"{found.path / TASK_FILE}: it does not say how translations are searched for")
    try:
        return DecodingConfig.from_dict(told, where=str(found.path / TASK_FILE))
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(str(error)) from None
