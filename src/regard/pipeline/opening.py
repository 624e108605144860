"""The ways into models: folders that are ready for the engine are opened without torch, all others by `folders`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.attention.intervention import intervention
from regard.checkpoint.location import TASK_FILE
from regard.checkpoint.sentence_modules import read_modules
from regard.config.decoding import DecodingConfig
from regard.config.model import EncoderConfig, TranslatorConfig
from regard.errors import CheckpointError, ConfigError
from regard.machine import cores
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.ready import Ready, encoder_in, is_ready, open_ready
from regard.text.framing import Framing

if TYPE_CHECKING:
    from regard.pipeline.folders import Pipeline


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
        config = open_ready(folders[0]).stored.config
        if isinstance(config, TranslatorConfig):
            return load_translator(folders[0], **given)
        if isinstance(config, EncoderConfig) and config.head == "plain":
            return load_embedder(folders[0], **given)
    from regard.pipeline.folders import open_any

    return open_any(folders, **given)


def load_embedder(
    folder: str | Path, *, device: str = "cpu", precision: str | None = None, threads: int = 0, backend: str = "auto"
) -> EmbeddingPipeline:
    """Return the encoder of a folder or of a published name, whatever its head, to make vectors of texts."""
    if not _fits(folder, device, backend):
        from regard.pipeline import folders

        return folders.load_embedder(folder, device=device, precision=precision, threads=threads, backend=backend)
    found = open_ready(folder)
    found.check_precision(precision)
    model = encoder_in(found.encoder(threads or cores()))
    longest = min(int(found.stored.facts.get("longest", model.config.places)), model.config.places)
    return EmbeddingPipeline(model, Framing(found.tokenizers()[0]), read_modules(found.path), longest=longest)


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
        from regard.pipeline.folders import open_translators

        return open_translators(folders, device=device, precision=precision, threads=threads, backend=backend)
    found = open_ready(folders[0])
    found.check_precision(precision)
    engine, model = found.translator()
    source, target = found.tokenizers()
    return TranslationPipeline(
        *([model], source, target),
        decoding=_decoding(found),
        task=found.task,
        workers=threads or cores(),
        engines=[engine],
    )


def _listed(folder: str | Path | Sequence[str | Path], more: Sequence[str | Path]) -> list[str | Path]:
    return [*([folder] if isinstance(folder, str | Path) else folder), *more]


def _fits(folder: str | Path, device: str, backend: str) -> bool:
    """Whether the engine answers from its own folder, as it is."""
    wanted = backend in ("auto", "engine") and device == "cpu" and intervention() is None
    return wanted and is_ready(folder)


def _decoding(found: Ready) -> DecodingConfig:
    told = found.task.get("decoding")
    if not isinstance(told, dict):
        raise CheckpointError(f"{found.path / TASK_FILE}: it does not say how translations are searched for")
    try:
        return DecodingConfig.from_dict(told, where=str(found.path / TASK_FILE))
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(str(error)) from None
