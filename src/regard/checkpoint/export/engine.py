"""Engine folders: models whose weights are packed for the C++ engine, in a chosen precision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.checkpoint.causal_dir import save_causal_lm
from regard.checkpoint.encoder_dir import save_encoder
from regard.checkpoint.model_dir import save_translator
from regard.checkpoint.source import CausalSource, EncoderSource, TranslatorSource
from regard.config.models import TransformerConfig
from regard.engine import causal, file, layout
from regard.engine.base import check_precision
from regard.engine.encoder import unsupported_reason
from regard.engine.library import unavailable_reason
from regard.engine.shortlist import Shortlist
from regard.engine.translator import TranslatorEngine, unsupported_transformer_reason
from regard.errors import UsageError
from regard.registry import task_of_head


def save_engine_translator(
    loaded: TranslatorSource, folder: Path, out: Path, precision: str, card: str, shortlist: Shortlist | None = None
) -> TranslatorEngine:
    """Write a translation model as an engine folder; return it as the engine runs it."""
    config = loaded.config
    if not isinstance(config, TransformerConfig):
        raise UsageError(f"{folder} cannot be written for the engine: it computes Transformers, not recurrent models")
    if reason := unsupported_transformer_reason(config):
        raise UsageError(f"{folder} cannot be written for the engine: {reason}")
    _check_engine(folder, precision)
    arrays = layout.pack_weights(config, loaded.arrays, precision)
    save_translator(
        out,
        config,
        loaded.weights,
        tokenizers={"source": loaded.source, "target": loaded.target},
        decoding=loaded.decoding,
        metadata={**without_keys(loaded.metadata, "decoding", "task", "version"), "precision": precision},
        card=card,
        original_config=loaded.hf_config,
        weight_files={file.ENGINE_FILE: file.serialize(config, precision, arrays, shortlist=shortlist)},
    )
    return TranslatorEngine(config, arrays, precision)


def save_engine_encoder(
    loaded: EncoderSource, folder: Path, out: Path, precision: str, card: str, extra_files: Mapping[str, bytes]
) -> None:
    """Write an encoder as an engine folder."""
    config = loaded.config
    if reason := unsupported_reason(config):
        raise UsageError(f"{folder} cannot be written for the engine: {reason}")
    _check_engine(folder, precision)
    arrays = layout.pack_weights(config, loaded.arrays, precision)
    metadata = {"labels": list(loaded.labels), "problem_type": loaded.problem_type, "max_length": loaded.max_length}
    save_encoder(
        out,
        config,
        loaded.weights,
        tokenizer=loaded.tokenizer,
        task=str(loaded.metadata.get("task") or task_of_head(config.head)),  # no weights will show the head
        metadata=without_keys(loaded.metadata, "task", "version"),
        card=card,
        labels=loaded.labels,
        problem_type=loaded.problem_type,
        preferred_type=loaded.model_type,
        original_config=loaded.hf_config,
        max_length=loaded.max_length,
        extra_files=extra_files,
        weight_files={file.ENGINE_FILE: file.serialize(config, precision, arrays, metadata)},
    )


def save_engine_causal(loaded: CausalSource, folder: Path, out: Path, precision: str, card: str) -> None:
    """Write a causal language model as an engine folder."""
    config = loaded.config
    if reason := causal.unsupported_reason(config):
        raise UsageError(f"{folder} cannot be written for the engine: {reason}")
    _check_engine(folder, precision)
    arrays = layout.pack_weights(config, loaded.arrays, precision)
    save_causal_lm(
        out,
        config,
        loaded.weights,
        tokenizer=loaded.tokenizer,
        metadata=without_keys(loaded.metadata, "task", "version"),
        card=card,
        original_config=loaded.hf_config,
        weight_files={file.ENGINE_FILE: file.serialize(config, precision, arrays)},
    )


def without_keys(metadata: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Content of task.json without keys that saving writes itself.

    >>> without_keys({"task": "tag", "step": 7}, "task", "version")
    {'step': 7}
    """
    return {name: value for name, value in metadata.items() if name not in keys}


def _check_engine(folder: Path, precision: str) -> None:
    check_precision(precision)
    if reason := unavailable_reason():
        raise UsageError(f"{folder} cannot be written for the engine: {reason}")
