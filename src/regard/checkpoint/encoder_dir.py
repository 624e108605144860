"""An encoder as a folder in Hugging Face layout: others read what we write, and we read theirs.

config.json                 what the model is, in their terms (`hf_encoders`), with the labels' names
model.safetensors           weights under their names; several files with an index when large (read only)
tokenizer.json              text to tokens; older folders have vocab.txt, or vocab.json and merges.txt
tokenizer_config.json       special tokens and longest row, for others
modules.json, 1_Pooling/    how one vector is made of a text, if it is (`sentence_modules`)
task.json                   what is ours alone: the task and its settings
README.md                   the model card
MANIFEST.json               size and digest of each file
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.checkpoint import atomic, weights
from regard.checkpoint.hf import encoders
from regard.checkpoint.hf.encoder_types import KINDS
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import (
    CONFIG,
    TASK_FILE,
    read_task,
    read_task_file,
    resolve_model_path,
    retry_while_replaced,
    verify,
)
from regard.checkpoint.model_dir import (
    check_weights,
    expected_shapes,
    has_only_pickled_weights,
    name_folder_in_errors,
    publish_model,
    read_tensor_entries,
)
from regard.checkpoint.native import read_native_config
from regard.checkpoint.tokenizer_files import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_vocabulary,
    read_folder_tokenizer,
    read_tokenizer_config,
    tokenizer_config,
)
from regard.checkpoint.weights import WeightReport
from regard.config.models import BertConfig
from regard.errors import CheckpointError
from regard.models.base import meta_device
from regard.models.bert import Bert, initialize_bert
from regard.text.special_tokens import SpecialTokens
from regard.text.tokenizer import Tokenizer

_HEADS = ("pooler", "masked", "next", "span", "output")  # how the names of weights begin that are not the backbone's
_LONGEST = 1 << 20  # a longest row beyond this means that nobody said how long


@dataclass(frozen=True)
class LoadedEncoder:
    """A model as its folder holds it."""

    config: BertConfig
    weights: dict[str, Tensor]  # under our names, float32; what the folder lacks is made anew
    tokenizer: Tokenizer
    labels: tuple[str, ...]  # names of a label or token head's labels
    problem_type: str  # what the labels are, as others say it: single_label_classification, …; nothing where unsaid
    max_length: int  # tokens of a row, special ones counted
    model_type: str  # their type
    hf_config: dict[str, Any]  # config.json as it stands, to be written back
    task: dict[str, Any]  # task.json; nothing for a folder from elsewhere
    report: WeightReport
    digest: str  # of config, weights and tokenizer
    path: Path  # where it was read

    def model(self) -> Bert:
        """Return the model with a copy of these weights."""
        with meta_device():
            made = Bert(self.config)
        made.load_state_dict({name: tensor.clone() for name, tensor in self.weights.items()}, assign=True)
        return made


def load_encoder(
    folder: str | Path,
    *,
    head: str | None = None,
    labels: Sequence[str] | None = None,
    seed: int = 1,
    task: str = "",
    weights_from: Path | None = None,
) -> LoadedEncoder:
    """Return the encoder of a folder or of a published name after checking all of it.

    Another `head` than the folder's is made anew, by the seed; one of the same kind and with the same labels is kept.
    A model that was trained here for another `task` is refused, if one is given. `weights_from` is another folder to
    read the weights from, for one whose own were converted first.
    """
    place = resolve_model(folder)
    wish = _EncoderRequest(head, None if labels is None else tuple(labels), seed, task, weights_from)
    return retry_while_replaced(place, lambda one: _load(one, wish))


@dataclass(frozen=True)
class _EncoderRequest:
    head: str | None
    labels: tuple[str, ...] | None
    seed: int
    task: str
    weights_from: Path | None


def _load(folder: Path, wish: _EncoderRequest) -> LoadedEncoder:
    path = resolve_model_path(folder)
    task = read_task(path, wish.task) if wish.task else read_task_file(path)
    fields, where = atomic.read_json(path / CONFIG), str(path / CONFIG)
    verify(path, (CONFIG, weights.FILE, TOKENIZER, TASK_FILE))
    entries = read_tensor_entries(wish.weights_from or path)
    config, labels, kept, note = _shaped(fields, list(entries), wish, where)
    kind = str(fields.get("model_type"))
    loaded, report = _read_weights(path, config, kind, entries, kept, wish.seed)
    report.notes += [note] if note else []
    tokenizer = read_encoder_tokenizer(path, kind)
    check_vocabulary(path, tokenizer, config.vocab_size)
    digest = _digest(path, wish.weights_from, tokenizer)
    longest = _longest(path, config)
    facts = (labels.names, labels.problem_type, longest, kind, fields, task, report, digest, path)
    return LoadedEncoder(config, loaded, tokenizer, *facts)


def read_encoder_config(path: Path) -> BertConfig:
    """Return the config of an encoder's folder, with the head that its weights hold; no weights are read."""
    return _described(path)[0]


def read_encoder_labels(path: Path) -> tuple[str, ...]:
    """Return the names of the labels of an encoder's folder."""
    return _described(path)[1].names


def _described(path: Path) -> tuple[BertConfig, encoders.LabelNames, bool, str]:
    fields = atomic.read_json(path / CONFIG)
    names = [] if fields.get("model_type") == encoders.OWN else list(_names(path))
    return _shaped(fields, names, _EncoderRequest(None, None, 1, "", None), str(path / CONFIG))


def _names(path: Path) -> list[str]:
    return [] if has_only_pickled_weights(path) else list(read_tensor_entries(path))


def _shaped(
    fields: Mapping[str, Any], names: list[str], wish: _EncoderRequest, where: str
) -> tuple[BertConfig, encoders.LabelNames, bool, str]:
    """Return the config with the head that is wanted, its labels, whether that is the folder's head, and a note."""
    note = ""
    if fields.get("model_type") == encoders.OWN:
        config = read_native_config(fields, {encoders.OWN: BertConfig}, where)
        held = config.head
    else:
        held, note = encoders.detect_head(fields, names, where)
        config = encoders.read_config(fields, held, 0, where)
    labelled = ("label", "token")
    labels = encoders.read_labels(fields, where) if held in labelled else encoders.LabelNames()
    head = wish.head or held
    kept = head == held and wish.labels in (None, labels.names)
    if wish.labels is not None and wish.labels != labels.names:
        labels = encoders.LabelNames(wish.labels)
    if head in labelled and not labels.names:
        raise CheckpointError(f"{where}: a {head} head needs labels: none are in the folder, and none are given")
    count = len(labels.names) if head in labelled else 0
    if head == held:
        config = replace(config, num_labels=count)
    elif fields.get("model_type") == encoders.OWN:
        config = replace(config, head=head, num_labels=count)
    else:
        config = encoders.read_config(fields, head, count, where)
        note = ""
    if head == "plain" and fields.get("model_type") != encoders.OWN:
        config = replace(config, pooler=_has_pooler(fields, names))
    if head not in labelled:
        labels = encoders.LabelNames()
    return config, labels, kept, note


def _has_pooler(fields: Mapping[str, Any], names: list[str]) -> bool:
    kind = KINDS[str(fields["model_type"])]
    wanted = [theirs for ours, theirs in kind.heads["plain"].names if ours == "pooler"]
    return any(name.endswith(f"{one}.weight"[1:]) for name in names for one in wanted)


def _read_weights(
    path: Path,
    config: BertConfig,
    kind: str,
    entries: Mapping[str, weights.TensorEntry],
    kept: bool,
    seed: int,
) -> tuple[dict[str, Tensor], WeightReport]:
    with name_folder_in_errors(path):
        shapes = {name: entry.shape for name, entry in entries.items()}
        freedom: tuple[Sequence[str], Sequence[str]] = ((), ()) if kept else (_HEADS, ("output",))
        matched = encoders.EncoderWeightMatcher(config, kind, shapes, expected_shapes(config), *freedom)
        read = weights.read_float_tensors(entries, matched.tensors_to_read)
        return matched.assemble(read, _fresh(config, seed) if matched.fresh else {}), matched.report


def _fresh(config: BertConfig, seed: int) -> dict[str, Tensor]:
    """Return a model's first weights, of which its head is used."""
    model = Bert(config)
    initialize_bert(model, seed)
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def read_encoder_tokenizer(path: Path, kind: str) -> Tokenizer:
    """Return a folder's tokenizer with the template of its type."""
    row = KINDS.get(kind)
    return read_folder_tokenizer(path, row.template) if row is not None else read_folder_tokenizer(path)


def _longest(path: Path, config: BertConfig) -> int:
    """Return the longest row that a folder's files allow: the model's, or a smaller one."""
    value = read_tokenizer_config(path).get("model_max_length")
    return (
        min(config.max_positions, int(value))
        if isinstance(value, int | float) and 2 < value < _LONGEST
        else config.max_positions
    )


def _digest(path: Path, weights_from: Path | None, tokenizer: Tokenizer) -> str:
    """Return the SHA-256 of what decides a model's answers: its config, weights and tokenizer."""
    digest = hashlib.sha256((path / CONFIG).read_bytes())
    for file in sorted({entry.file for entry in read_tensor_entries(weights_from or path).values()}):
        with open(file, "rb") as opened_file:
            digest.update(hashlib.file_digest(opened_file, "sha256").digest())
    digest.update(tokenizer.digest.encode())
    return digest.hexdigest()


def save_encoder(
    folder: str | Path,
    config: BertConfig,
    model_weights: Mapping[str, Tensor],
    *,
    tokenizer: Tokenizer,
    task: str,
    facts: Mapping[str, Any],
    card: str,
    labels: Sequence[str] = (),
    problem: str = "",
    kind: str = "bert",
    fields: Mapping[str, Any] | None = None,
    max_length: int = 0,
    extra_files: Mapping[str, bytes] | None = None,
    weight_files: Mapping[str, atomic.Content] | None = None,
) -> str:
    """Write an encoder so that readers find the old one or the new one whole; return the type it is written as.

    `kind` and `fields` are those of the folder that the model came from, if it did: what we do not know in its
    `config.json` is written back. `facts` go into `task.json`; without a task there is none. `instead` are files to
    write instead of the weights.
    """
    floats = check_weights(config, model_weights)
    if config.head in ("label", "token") and labels and len(labels) != config.num_labels:
        raise ValueError(f"{config.num_labels} labels need as many names, not {len(labels)}")
    written, _ = encoders.hf_model_type(config, kind)
    theirs = encoders.to_hf_weights(config, written, floats)
    named = encoders.LabelNames(tuple(labels), problem)
    own = {**serialize_tokenizer(tokenizer, config, max_length or config.max_positions), **(extra_files or {})}
    written_fields = encoders.write_config(config, written, named, fields)
    publish_model(
        folder, written_fields, theirs, task=task, metadata=facts, card=card, extra_files=own, weight_files=weight_files
    )
    return written


def serialize_tokenizer(tokenizer: Tokenizer, config: BertConfig, max_length: int) -> dict[str, bytes]:
    """Return the files of a tokenizer, with what tells others which tokens are special and how long a row may be."""
    framing = SpecialTokens(tokenizer)
    roles = {
        "pad_token": framing.pad,
        "unk_token": framing.unknown,
        "cls_token": framing.start,
        "sep_token": framing.end,
        "mask_token": framing.mask,
    }
    types = ["token_type_ids"] if config.num_token_types > 1 else []
    told = tokenizer_config(tokenizer, roles, max_length, ["input_ids", *types, "attention_mask"])
    return {TOKENIZER: tokenizer.to_json().encode(), TOKENIZER_CONFIG: atomic.json_bytes(told)}
