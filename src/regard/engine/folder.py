"""From a folder to its `ModelSource`, whether it holds plain weights or those of the engine. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from regard.checkpoint import atomic
from regard.checkpoint.causal_dir import load_causal_lm, read_causal_tokenizer
from regard.checkpoint.encoder_dir import load_encoder, read_encoder_tokenizer
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CONFIG, read_task, read_task_file, read_verified
from regard.checkpoint.model_dir import (
    expected_shapes,
    load_translator,
    read_decoding,
    read_translator_tokenizers,
)
from regard.checkpoint.source import CausalSource, EncoderSource, PackedWeights, TranslatorSource
from regard.checkpoint.tokenizer_files import check_vocabulary
from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.engine import causal, encoder, file, layout, translator
from regard.engine.library import unavailable_reason
from regard.errors import CheckpointError, UsageError

SourceT = TypeVar("SourceT", TranslatorSource, EncoderSource, CausalSource)
TRANSLATE = "translate"
CAUSAL_LM = "causal-lm"
_FAMILIES = {TransformerConfig: "a translation model", BertConfig: "an encoder", GptConfig: "a causal language model"}


def unsupported_reason(config: Any) -> str:
    """Why the engine cannot run a model; empty where it can.

    >>> unsupported_reason(BertConfig(attention="blocks"))
    'it has no block-sparse attention'
    """
    if isinstance(config, TransformerConfig):
        return translator.unsupported_transformer_reason(config)
    if isinstance(config, BertConfig):
        return encoder.unsupported_reason(config)
    if isinstance(config, GptConfig):
        return causal.unsupported_reason(config)
    return "it computes Transformers; a recurrent model runs on torch"


def weight_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a config's weights: by the engine's layout where it runs the model, else by a torch model.

    >>> weight_shapes(BertConfig(vocab_size=9, hidden_size=4))["token_embedding.weight"]
    (9, 4)
    """
    if unsupported_reason(config):
        return expected_shapes(config)
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in layout.weight_specs(config):
        shapes.setdefault(spec.weight, (spec.outputs,) if spec.kind == "norm" else (spec.outputs, spec.inputs))
        if spec.bias:
            shapes[spec.bias] = (spec.outputs,)
    return shapes


def is_engine_folder(folder: str | Path) -> bool:
    """Whether a folder holds engine weights."""
    path = resolve_model(folder)
    return path.is_dir() and (atomic.published_path(path) / file.ENGINE_FILE).is_file()


# ---- one function for each kind of model


def read_translator(folder: str | Path) -> TranslatorSource:
    """Read a translation model."""
    if is_engine_folder(folder):
        return _read_engine_folder(folder, _read_engine_translator)
    return load_translator(folder, read_shapes=weight_shapes)


def read_encoder(folder: str | Path, *, head: str | None = None, task: str = "") -> EncoderSource:
    """Read an encoder; a `head` other than the folder's is for plain weights only."""
    if is_engine_folder(folder):
        return _read_engine_folder(folder, lambda path: _read_engine_encoder(path, task))
    return load_encoder(folder, head=head, task=task, read_shapes=weight_shapes)


def read_causal_lm(folder: str | Path) -> CausalSource:
    """Read a causal language model."""
    if is_engine_folder(folder):
        return _read_engine_folder(folder, _read_engine_causal_lm)
    return load_causal_lm(folder, read_shapes=weight_shapes)


def _read_engine_folder(folder: str | Path, read: Callable[[Path], SourceT]) -> SourceT:
    if reason := unavailable_reason():
        raise UsageError(f"{folder} needs the engine, which is not available: {reason}")
    return read_verified(resolve_model(folder), read)


def _read_engine_file(path: Path, config_type: type[TransformerConfig | BertConfig | GptConfig]) -> file.EngineFile:
    stored = file.read_engine_file(path / file.ENGINE_FILE)
    if not isinstance(stored.config, config_type):
        raise CheckpointError(f"{path}: {_FAMILIES[type(stored.config)]}, where {_FAMILIES[config_type]} is needed")
    return stored


def _packed_weights(stored: file.EngineFile) -> PackedWeights:
    return PackedWeights(stored.precision, stored.arrays, shortlist=stored.shortlist)


def _read_engine_translator(path: Path) -> TranslatorSource:
    metadata = read_task(path, TRANSLATE)
    stored = _read_engine_file(path, TransformerConfig)
    assert isinstance(stored.config, TransformerConfig)
    hf_config = atomic.read_json(path / CONFIG)
    source, target = read_translator_tokenizers(path, stored.config)
    return TranslatorSource(
        path=path,
        config=stored.config,
        metadata=metadata,
        hf_config=hf_config,
        arrays={},
        packed=_packed_weights(stored),
        source=source,
        target=target,
        decoding=read_decoding(path, hf_config, metadata),
    )


def _read_engine_encoder(path: Path, task: str) -> EncoderSource:
    metadata = read_task(path, task) if task else read_task_file(path)
    stored = _read_engine_file(path, BertConfig)
    config = stored.config
    assert isinstance(config, BertConfig)
    hf_config = atomic.read_json(path / CONFIG)
    model_type = str(hf_config.get("model_type"))
    tokenizer = read_encoder_tokenizer(path, model_type)
    check_vocabulary(path, tokenizer, config.vocab_size)
    return EncoderSource(
        path=path,
        config=config,
        metadata=metadata,
        hf_config=hf_config,
        arrays={},
        packed=_packed_weights(stored),
        tokenizer=tokenizer,
        labels=_read_labels(path, stored.metadata, config),
        problem_type=str(stored.metadata.get("problem_type", "")),
        max_length=_read_max_length(path, stored.metadata, config),
        model_type=model_type,
    )


def _read_labels(path: Path, metadata: Mapping[str, Any], config: BertConfig) -> tuple[str, ...]:
    """Names of the labels: as many as the head has."""
    labels = metadata.get("labels", [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise CheckpointError(f"{path}: labels must be a list of names; convert the model again")
    num_labels = config.num_labels if config.head in ("label", "token") else 0
    if labels and len(labels) != num_labels:
        raise CheckpointError(f"{path}: {len(labels)} labels, but its head has {num_labels}; convert the model again")
    return tuple(labels)


def _read_max_length(path: Path, metadata: Mapping[str, Any], config: BertConfig) -> int:
    """Longest text in tokens, at most what the model takes."""
    max_length = metadata.get("max_length", config.max_positions)
    if type(max_length) is not int or max_length < 1:
        raise CheckpointError(
            f"{path}: max_length must be a whole number from 1 on, not {max_length!r:.40}; convert the model again"
        )
    return min(max_length, config.max_positions)


def _read_engine_causal_lm(path: Path) -> CausalSource:
    metadata = read_task(path, CAUSAL_LM)
    stored = _read_engine_file(path, GptConfig)
    assert isinstance(stored.config, GptConfig)
    return CausalSource(
        path=path,
        config=stored.config,
        metadata=metadata,
        hf_config=atomic.read_json(path / CONFIG),
        arrays={},
        packed=_packed_weights(stored),
        tokenizer=read_causal_tokenizer(path, stored.config),
    )
