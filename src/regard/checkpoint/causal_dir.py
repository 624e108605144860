"""Folders of causal language models: Hugging Face's `gpt2` or `gpt_neox` by their positions, else a type of our own.

Beside config and weights there are `tokenizer.json` (older folders: `vocab.json` and `merges.txt`),
`generation_config.json` and, for models that Regard trained, `task.json` and the model card.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.checkpoint import atomic, weights
from regard.checkpoint.hf import causal
from regard.checkpoint.hf.causal import CAUSAL_TYPES, NATIVE_TYPE
from regard.checkpoint.hf.plausibility import find_doubts
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CONFIG, read_task, read_verified
from regard.checkpoint.model_dir import (
    ShapeReader,
    check_weights,
    expected_shapes,
    name_folder_in_errors,
    publish_model,
    read_tensor_entries,
)
from regard.checkpoint.model_types import check_model_type
from regard.checkpoint.native import read_native_config, read_native_weights, save_native
from regard.checkpoint.source import CausalSource
from regard.checkpoint.tokenizer_files import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_vocabulary,
    read_tokenizer_with_end,
    tokenizer_config,
)
from regard.checkpoint.unused_weights import check_unused_weights, warn_about
from regard.checkpoint.weights import Arrays, WeightReport
from regard.config.models import GptConfig
from regard.errors import CheckpointError
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

MODEL_TYPES = (*CAUSAL_TYPES, NATIVE_TYPE)
GENERATION = "generation_config.json"


def save_causal_lm(
    folder: str | Path,
    config: GptConfig,
    model_weights: Mapping[str, Tensor],
    *,
    tokenizer: Tokenizer,
    metadata: Mapping[str, Any],
    card: str,
    original_config: Mapping[str, Any] | None = None,
    weight_files: Mapping[str, atomic.Content] | None = None,
) -> None:
    """Write a causal language model atomically; other files of the folder stay.

    The fields of the `config.json` that the model was imported with are written back where we do not know them.
    `weight_files` replace the safetensors file.
    """
    extra_files = {
        TOKENIZER: tokenizer.to_json().encode(),
        TOKENIZER_CONFIG: atomic.json_bytes(_tokenizer_config(tokenizer, config)),
        GENERATION: atomic.json_bytes(_generation_config(config)),
    }
    model_type, _ = causal.causal_model_type(config)
    if not model_type:
        save_native(
            folder,
            config,
            model_weights,
            task=causal.TASK,
            metadata=metadata,
            card=card,
            extra_files=extra_files,
            weight_files=weight_files,
        )
        return
    hf_weights = causal.to_hf_weights(config, check_weights(config, model_weights))
    publish_model(
        folder,
        causal.config_to_hf(config, original_config),
        hf_weights,
        task=causal.TASK,
        metadata=metadata,
        card=card,
        extra_files=extra_files,
        weight_files=weight_files,
    )


def load_causal_lm(
    folder: str | Path, *, weights_from: Path | None = None, read_shapes: ShapeReader = expected_shapes
) -> CausalSource:
    """Load and validate a causal language model from a folder or the hub.

    `weights_from` is another folder to read the weights from, for pickled weights that were converted first.
    `read_shapes` gives the shapes that the weights must have.
    """
    return read_verified(resolve_model(folder), lambda path: _read_causal_lm(path, weights_from, read_shapes))


def _read_causal_lm(path: Path, weights_from: Path | None, read_shapes: ShapeReader) -> CausalSource:
    metadata = read_task(path, causal.TASK)
    hf_config = atomic.read_json(path / CONFIG)
    where = str(path / CONFIG)
    check_model_type(hf_config, where)
    model_type = hf_config.get("model_type")
    if model_type not in MODEL_TYPES:
        allowed = ", ".join(MODEL_TYPES)
        raise CheckpointError(f"{where}: a model of type {model_type!r:.60}; causal language models are {allowed}")
    if model_type == NATIVE_TYPE:
        config = read_native_config(hf_config, GptConfig, where)
        arrays, report = read_native_weights(path, config, read_shapes)
    else:
        config = causal.config_from_hf(hf_config, where)
        entries = read_tensor_entries(weights_from or path)
        with name_folder_in_errors(path):
            arrays, report = _read_weights(config, hf_config, entries, read_shapes)
        if not atomic.has_manifest(path):
            warn_about(find_doubts(path, hf_config, config, where))
    check_unused_weights(path, report)
    return CausalSource(
        path=path,
        config=config,
        arrays=arrays,
        tokenizer=read_causal_tokenizer(path, config),
        metadata=metadata,
        hf_config=hf_config,
        report=report,
    )


def _read_weights(
    config: GptConfig,
    hf_config: Mapping[str, Any],
    entries: Mapping[str, weights.TensorEntry],
    read_shapes: ShapeReader,
) -> tuple[Arrays, WeightReport]:
    shapes = {name: entry.shape for name, entry in entries.items()}
    matcher = causal.CausalWeightMatcher(config, shapes, read_shapes(config))
    arrays = weights.read_float_arrays(entries, matcher.tensors_to_read)
    return matcher.assemble(arrays, hf_config), matcher.report


def read_causal_tokenizer(path: Path, config: GptConfig) -> Tokenizer:
    """Tokenizer of a folder, which fits the config."""
    tokenizer = read_tokenizer_with_end(path)
    check_vocabulary(path, tokenizer, config.vocab_size)
    return tokenizer


def _tokenizer_config(tokenizer: Tokenizer, config: GptConfig) -> dict[str, Any]:
    roles = {
        "bos_token": config.eos_id,
        "eos_token": config.eos_id,
        "pad_token": config.eos_id,
        "unk_token": tokenizer.unk_id,
    }
    return {**tokenizer_config(tokenizer, roles, config.max_positions), "padding_side": "left"}


def _generation_config(config: GptConfig) -> dict[str, Any]:
    fields = {"max_length": config.max_positions}
    if config.eos_id >= 0:
        fields |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), config.eos_id)
    return fields
