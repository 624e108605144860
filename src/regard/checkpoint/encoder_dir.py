"""Encoder folders in Hugging Face layout.

config.json                 the model's config, in Hugging Face's terms (`hf.encoders`), with the names of the labels
model.safetensors           weights under Hugging Face's names; large models have several files and an index (read only)
tokenizer.json              tokenizer; older folders have vocab.txt, or vocab.json and merges.txt
tokenizer_config.json       special tokens and maximal length, for other tools
modules.json, 1_Pooling/    pooling of sentence embeddings, if any (`hf.sentence_transformers`)
task.json                   task, and settings that only Regard has
README.md                   model card
MANIFEST.json               size and digest of each file
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.checkpoint import atomic, weights
from regard.checkpoint.hf import causal_encoders, encoders
from regard.checkpoint.hf.causal import NATIVE_TYPE as NATIVE_CAUSAL_TYPE
from regard.checkpoint.hf.causal import scale_queries
from regard.checkpoint.hf.encoder_types import ENCODER_TYPES, NATIVE_TYPE
from regard.checkpoint.hf.encoder_weights import EncoderWeightMatcher, to_hf_weights
from regard.checkpoint.hf.encoders import LABELLED_HEADS, LabelNames
from regard.checkpoint.hf.plausibility import find_doubts
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CONFIG, read_task, read_task_file, read_verified
from regard.checkpoint.model_dir import (
    ShapeReader,
    check_weights,
    expected_shapes,
    has_only_pickled_weights,
    name_folder_in_errors,
    publish_model,
    read_tensor_entries,
)
from regard.checkpoint.model_types import check_model_type, native_family
from regard.checkpoint.native import read_native_config
from regard.checkpoint.source import EncoderSource
from regard.checkpoint.tokenizer_files import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_vocabulary,
    read_folder_tokenizer,
    read_tokenizer_config,
    read_tokenizer_with_end,
    tokenizer_config,
)
from regard.checkpoint.unused_weights import check_unused_weights, warn_about
from regard.checkpoint.weights import Arrays, WeightReport
from regard.config.models import HEAD_PREFIXES, BertConfig, GptConfig
from regard.errors import CheckpointError
from regard.text.special_tokens import SpecialTokens
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

_MAX_LENGTH = 1 << 20  # a model_max_length beyond it stands for "unknown"


@dataclass(frozen=True)
class _EncoderRequest:
    """Arguments of `load_encoder`."""

    head: str | None = None
    labels: tuple[str, ...] | None = None
    seed: int = 1
    task: str = ""
    weights_from: Path | None = None
    read_shapes: ShapeReader = expected_shapes


@dataclass(frozen=True)
class _HeadSelection:
    """Config with the requested head."""

    config: BertConfig
    labels: LabelNames
    is_stored: bool  # whether the folder's weights hold this head with these labels
    note: str


def load_encoder(
    folder: str | Path,
    *,
    head: str | None = None,
    labels: Sequence[str] | None = None,
    seed: int = 1,
    task: str = "",
    weights_from: Path | None = None,
    read_shapes: ShapeReader = expected_shapes,
) -> EncoderSource:
    """Load and validate an encoder from a folder or the hub.

    A `head` other than the folder's is initialized from the seed; the folder's is used where the labels are the same
    too. With a `task`, a model that Regard trained for another one is rejected. `weights_from` is another folder to
    read the weights from, for pickled weights that were converted first; `read_shapes` gives the shapes that the
    weights must have.
    """
    request = _EncoderRequest(
        head,
        None if labels is None else tuple(labels),
        seed=seed,
        task=task,
        weights_from=weights_from,
        read_shapes=read_shapes,
    )
    return read_verified(resolve_model(folder), lambda path: _read_encoder(path, request))


def _read_encoder(path: Path, request: _EncoderRequest) -> EncoderSource:
    metadata = read_task(path, request.task) if request.task else read_task_file(path)
    hf_config = atomic.read_json(path / CONFIG)
    check_model_type(hf_config, str(path / CONFIG))
    entries = read_tensor_entries(request.weights_from or path)
    selection = _select_head(hf_config, list(entries), request, str(path / CONFIG))
    config = selection.config
    model_type = str(hf_config.get("model_type"))
    arrays, report = _read_weights(path, selection, model_type, entries, request)
    if config.causal:
        arrays = scale_queries(arrays, config, hf_config, "encoder")
    if selection.note:
        report.notes.append(selection.note)
    if not native_family(model_type) and not atomic.has_manifest(path):
        warn_about(find_doubts(path, hf_config, config, str(path / CONFIG)))
    check_unused_weights(path, report, is_head_requested=request.head is not None)
    tokenizer = read_encoder_tokenizer(path, model_type)
    check_vocabulary(path, tokenizer, config.vocab_size)
    return EncoderSource(
        path=path,
        config=config,
        arrays=arrays,
        tokenizer=tokenizer,
        labels=selection.labels.names,
        problem_type=selection.labels.problem_type,
        max_length=read_max_length(path, config),
        model_type=model_type,
        hf_config=hf_config,
        metadata=metadata,
        report=report,
    )


def read_encoder_config(path: Path) -> BertConfig:
    """Config of an encoder's folder with the head that its weights hold; no weights are read."""
    return _select_stored_head(path).config


def read_encoder_labels(path: Path) -> tuple[str, ...]:
    """Label names of an encoder's folder."""
    return _select_stored_head(path).labels.names


def read_encoder_tokenizer(path: Path, model_type: str) -> Tokenizer:
    """Read a folder's tokenizer with the template of its model type."""
    row = ENCODER_TYPES.get(model_type)
    if row is None or row.is_causal:
        return read_tokenizer_with_end(path)
    return read_folder_tokenizer(path, row.template)


def _select_stored_head(path: Path) -> _HeadSelection:
    hf_config = atomic.read_json(path / CONFIG)
    if hf_config.get("model_type") == NATIVE_TYPE:
        return _select_head(hf_config, [], _EncoderRequest(), str(path / CONFIG))
    if not has_only_pickled_weights(path):
        return _select_head(hf_config, list(read_tensor_entries(path)), _EncoderRequest(), str(path / CONFIG))
    head = encoders.named_head(hf_config, str(path / CONFIG)) or "plain"  # pickles are not opened
    selection = _select_head(hf_config, [], _EncoderRequest(head), str(path / CONFIG))
    return replace(selection, config=replace(selection.config, pooler=True)) if head == "plain" else selection


def _select_head(
    hf_config: Mapping[str, Any], names: list[str], request: _EncoderRequest, where: str
) -> _HeadSelection:
    """Combine the head and labels of a folder, whose weights have these names, with the requested ones."""
    stored, note = _stored_config(hf_config, names, where)
    stored_labels = encoders.read_labels(hf_config, where) if stored.head in LABELLED_HEADS else LabelNames()
    head = request.head or stored.head
    labels = _select_labels(head, stored_labels, request, where)
    num_labels = len(labels.names)
    is_native = bool(native_family(hf_config.get("model_type")))
    if head == stored.head:
        config = replace(stored, num_labels=num_labels)
    elif is_native:
        config = _replace_head(stored, head, num_labels)
    else:
        config = encoders.config_from_hf(hf_config, head, num_labels, where)
        note = ""
    if head == "plain" and not is_native:
        config = replace(config, pooler=_has_pooler(hf_config, names))
    is_stored = head == stored.head and request.labels in (None, stored_labels.names)
    return _HeadSelection(config, labels, is_stored=is_stored, note=note)


def _stored_config(hf_config: Mapping[str, Any], names: list[str], where: str) -> tuple[BertConfig, str]:
    """Config with the head that a folder's weights hold, and a note where `config.json` names another one."""
    model_type = hf_config.get("model_type")
    if model_type == NATIVE_TYPE:
        return read_native_config(hf_config, BertConfig, where), ""
    if model_type == NATIVE_CAUSAL_TYPE:
        return causal_encoders.encoder_config(read_native_config(hf_config, GptConfig, where), where), ""
    head, note = encoders.detect_head(hf_config, names, where)
    return encoders.config_from_hf(hf_config, head, 0, where), note


def _replace_head(config: BertConfig, head: str, num_labels: int) -> BertConfig:
    """Config of our own type with another head; one direction is pooled at its last token."""
    changes: dict[str, Any] = {"head": head, "num_labels": num_labels}
    if head == "label":
        changes |= {"pooling": "last"} if config.causal else {"pooler": True}
    return replace(config, **changes)


def _select_labels(head: str, stored_labels: LabelNames, request: _EncoderRequest, where: str) -> LabelNames:
    """Labels of a head: the requested ones, else those of the folder; none where the head has no labels."""
    if head not in LABELLED_HEADS:
        return LabelNames()
    labels = stored_labels
    if request.labels is not None and request.labels != stored_labels.names:
        labels = LabelNames(request.labels)
    if not labels.names:
        raise CheckpointError(f"{where}: a {head} head needs labels: the folder has none, and none were passed")
    return labels


def _has_pooler(hf_config: Mapping[str, Any], names: list[str]) -> bool:
    """Whether the weights include the pooler of a model without a head."""
    row = ENCODER_TYPES[str(hf_config["model_type"])]
    poolers = [hf_name for name, hf_name in row.heads["plain"].names if name == "pooler"]
    endings = tuple(f"{pooler}.weight".removeprefix(".") for pooler in poolers)
    return any(name.endswith(endings) for name in names)


def _read_weights(
    path: Path,
    selection: _HeadSelection,
    model_type: str,
    entries: Mapping[str, weights.TensorEntry],
    request: _EncoderRequest,
) -> tuple[Arrays, WeightReport]:
    """Read the weights; those of a head that the folder lacks are initialized."""
    with name_folder_in_errors(path):
        config = selection.config
        matcher = EncoderWeightMatcher(
            config,
            model_type,
            shapes={name: entry.shape for name, entry in entries.items()},
            expected=request.read_shapes(config),
            optional=() if selection.is_stored else HEAD_PREFIXES,
            replaced=() if selection.is_stored else ("classifier",),
        )
        arrays = weights.read_float_arrays(entries, matcher.tensors_to_read)
        initial_weights = _initial_weights(config, request.seed) if matcher.weights_to_initialize else {}
        return matcher.assemble(arrays, initial_weights), matcher.report


def _initial_weights(config: BertConfig, seed: int) -> Arrays:
    """Random weights of a whole model, of which its head is used."""
    from regard.models.bert import Bert, initialize_bert

    model = Bert(config)
    initialize_bert(model, seed)
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def read_max_length(path: Path, config: BertConfig) -> int:
    """Maximal length of a sequence: the model's, or a smaller one of the tokenizer."""
    max_length = read_tokenizer_config(path).get("model_max_length")
    if isinstance(max_length, int | float) and 2 < max_length < _MAX_LENGTH:
        return min(config.max_positions, int(max_length))
    return config.max_positions


def save_encoder(
    folder: str | Path,
    config: BertConfig,
    model_weights: Mapping[str, Tensor],
    *,
    tokenizer: Tokenizer,
    task: str,
    metadata: Mapping[str, Any],
    card: str,
    labels: Sequence[str] = (),
    problem_type: str = "",
    preferred_type: str = "bert",
    original_config: Mapping[str, Any] | None = None,
    max_length: int = 0,
    extra_files: Mapping[str, bytes] | None = None,
    weight_files: Mapping[str, atomic.Content] | None = None,
) -> str:
    """Write an encoder atomically; return the model type it is written as.

    The model type and `config.json` fields of the folder that the model was imported from are preferred and written
    back. The metadata goes into `task.json`; without a task there is no such file. `weight_files` replace the
    safetensors file.
    """
    floats = check_weights(config, model_weights)
    if config.head in LABELLED_HEADS and labels and len(labels) != config.num_labels:
        raise ValueError(f"{config.num_labels} labels need as many names, not {len(labels)}")
    model_type, _ = encoders.hf_model_type(config, preferred_type)
    hf_config = encoders.config_to_hf(config, model_type, LabelNames(tuple(labels), problem_type), original_config)
    tokenizer_files = serialize_tokenizer(tokenizer, config, max_length or config.max_positions)
    publish_model(
        folder,
        hf_config,
        to_hf_weights(config, model_type, floats),
        task=task,
        metadata=metadata,
        card=card,
        extra_files={**tokenizer_files, **(extra_files or {})},
        weight_files=weight_files,
    )
    return model_type


def serialize_tokenizer(tokenizer: Tokenizer, config: BertConfig, max_length: int) -> dict[str, bytes]:
    """Files of an encoder's tokenizer, with its special tokens and maximal length for other tools."""
    special_tokens = SpecialTokens(tokenizer)
    roles = {"pad_token": special_tokens.pad_id, "unk_token": special_tokens.unk_id}
    if config.causal:
        roles |= {"bos_token": special_tokens.eos_id, "eos_token": special_tokens.eos_id}
    else:
        roles |= {
            "cls_token": special_tokens.bos_id,
            "sep_token": special_tokens.eos_id,
            "mask_token": special_tokens.mask_id,
        }
    inputs = ["input_ids", "attention_mask"]
    if config.num_token_types > 1:
        inputs.insert(1, "token_type_ids")
    settings = tokenizer_config(tokenizer, roles, max_length, inputs)
    return {TOKENIZER: tokenizer.to_json().encode(), TOKENIZER_CONFIG: atomic.json_bytes(settings)}
