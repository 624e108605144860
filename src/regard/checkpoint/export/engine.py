"""Whether models compute in the engine or in torch, and the engine's own folders of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from regard.checkpoint.causal_dir import LoadedCausalLM, save_causal_lm
from regard.checkpoint.encoder_dir import LoadedEncoder, save_encoder
from regard.checkpoint.hf import encoders
from regard.checkpoint.model_dir import LoadedTranslator, save_translator
from regard.config.models import TransformerConfig
from regard.engine import causal, file, layout
from regard.engine.backend import _check_precision
from regard.engine.encoder import obstacle
from regard.engine.library import unavailable_reason
from regard.engine.shortlist import Shortlist
from regard.engine.translator import TranslatorEngine
from regard.errors import UsageError


def save_engine_translator(
    loaded: LoadedTranslator, folder: Path, out: Path, precision: str, card: str, shortlist: Shortlist | None = None
) -> TranslatorEngine:
    """Write a translator as a folder whose weights are ready for the engine; return it as the engine computes it."""
    if not isinstance(loaded.config, TransformerConfig):
        raise UsageError(f"{folder} cannot be written for the engine: it computes Transformers, not recurrent models")
    _check_writing(folder, precision)
    config = loaded.config
    arrays = layout.pack_weights(config, {name: one.numpy() for name, one in loaded.weights.items()}, precision)
    facts = {name: value for name, value in loaded.task.items() if name not in ("decoding", "task", "version")}
    save_translator(
        out,
        config,
        loaded.weights,
        tokenizers={"source": loaded.source, "target": loaded.target},
        decoding=loaded.decoding,
        task={**facts, "precision": precision},
        card=card,
        fields=loaded.hf_config,
        weight_files={file.FILE: file.serialize(config, precision, arrays, shortlist=shortlist)},
    )
    return TranslatorEngine(config, arrays, precision)


def save_engine_encoder(
    loaded: LoadedEncoder, folder: Path, out: Path, precision: str, card: str, extra_files: Mapping[str, bytes]
) -> None:
    """Write an encoder as a folder whose weights are ready for the engine."""
    if why := obstacle(loaded.config):
        raise UsageError(f"{folder} cannot be written for the engine: {why}")
    _check_writing(folder, precision)
    arrays = layout.pack_weights(loaded.config, {name: one.numpy() for name, one in loaded.weights.items()}, precision)
    facts = {"labels": list(loaded.labels), "problem": loaded.problem_type, "longest": loaded.max_length}
    save_encoder(
        out,
        loaded.config,
        loaded.weights,
        tokenizer=loaded.tokenizer,
        task=str(loaded.task.get("task") or encoders.TASKS[loaded.config.head]),  # no weights will tell it
        facts={name: value for name, value in loaded.task.items() if name not in ("task", "version")},
        card=card,
        labels=loaded.labels,
        problem=loaded.problem_type,
        kind=loaded.model_type,
        fields=loaded.hf_config,
        max_length=loaded.max_length,
        extra_files=extra_files,
        weight_files={file.FILE: file.serialize(loaded.config, precision, arrays, facts)},
    )


def save_engine_causal(loaded: LoadedCausalLM, folder: Path, out: Path, precision: str, card: str) -> None:
    """Write a causal language model as a folder whose weights are ready for the engine."""
    if why := causal.obstacle(loaded.config):
        raise UsageError(f"{folder} cannot be written for the engine: {why}")
    _check_writing(folder, precision)
    arrays = layout.pack_weights(loaded.config, {name: one.numpy() for name, one in loaded.weights.items()}, precision)
    save_causal_lm(
        out,
        loaded.config,
        loaded.weights,
        tokenizer=loaded.tokenizer,
        facts={name: value for name, value in loaded.task.items() if name not in ("task", "version")},
        card=card,
        fields=loaded.hf_config,
        weight_files={file.FILE: file.serialize(loaded.config, precision, arrays)},
    )


def _check_writing(folder: Path, precision: str) -> None:
    _check_precision(precision)
    if why := unavailable_reason():
        raise UsageError(f"{folder} cannot be written for the engine: {why}")
