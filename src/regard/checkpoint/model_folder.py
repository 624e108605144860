"""A model as a folder in Hugging Face layout: others read what we write, and we read theirs.

config.json                 what the model is, in their terms (`hf_names`)
model.safetensors           weights under their names; several files with an index when large (read only)
tokenizer.json              text to tokens; target_tokenizer.json beside it where the target side has its own
tokenizer_config.json       special tokens and longest row, for others
generation_config.json      how translations are searched for
task.json                   what is ours alone: the task and its settings
README.md                   the model card
MANIFEST.json               size and digest of each file
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.checkpoint import files, hf_names, sentencepiece_files, weights
from regard.checkpoint.disk import DISK, Disk
from regard.config.decoding import DecodingConfig
from regard.config.model import WritingConfig
from regard.errors import CheckpointError, ConfigError
from regard.models import build
from regard.text.tokenizer import Tokenizer

_TOKENIZER_LIMIT = 256 << 20  # bytes of a tokenizer file
_PATIENCE = 20  # times that a folder is read again because it was being replaced meanwhile
TASK = "translate"
VERSION = 1
CONFIG = "config.json"
TOKENIZER, TARGET_TOKENIZER = "tokenizer.json", "target_tokenizer.json"
TOKENIZER_CONFIG, GENERATION, TASK_FILE, CARD = (
    "tokenizer_config.json",
    "generation_config.json",
    "task.json",
    "README.md",
)


@dataclass(frozen=True)
class LoadedModel:
    """A model as its folder holds it."""

    config: WritingConfig
    weights: dict[str, Tensor]  # under our names, float32
    source: Tokenizer
    target: Tokenizer
    decoding: DecodingConfig
    task: dict[str, Any]  # task.json; nothing for a folder from elsewhere
    fields: dict[str, Any] = field(default_factory=dict)  # config.json as it stands, to be written back
    report: hf_names.WeightReport = field(default_factory=hf_names.WeightReport)


def save_model(
    folder: str | Path,
    model_config: WritingConfig,
    model_weights: Mapping[str, Tensor],
    *,
    tokenizers: Mapping[str, Tokenizer],
    decoding: DecodingConfig,
    task: Mapping[str, Any],
    card: str,
    fields: Mapping[str, Any] | None = None,
    disk: Disk = DISK,
) -> None:
    """Write a model into a folder so that readers find the old one or the new one whole; other files there stay.

    `tokenizers` has "source" and "target"; `fields` are the `config.json` of the folder that the model came from,
    if it did: what we do not know in it is written back.
    """
    floats = {name: tensor.detach().cpu().float() for name, tensor in model_weights.items()}
    expected = expected_shapes(model_config)
    if {name: tuple(tensor.shape) for name, tensor in floats.items()} != expected:
        different = sorted(name for name in expected.keys() ^ floats.keys())[:5]
        raise ValueError(f"the weights are not those of the config; names that differ: {different}")
    source, target = tokenizers["source"], tokenizers["target"]
    theirs = hf_names.to_theirs(model_config, floats)
    contents: dict[str, files.Content] = {
        weights.FILE: weights.content(theirs),
        TOKENIZER: source.dumps().encode(),
        TOKENIZER_CONFIG: files.json_bytes(_tokenizer_config(source, model_config)),
        GENERATION: files.json_bytes(hf_names.write_decoding(model_config, decoding)),
        TASK_FILE: files.json_bytes({"task": TASK, "version": VERSION, **task, "decoding": decoding.to_dict()}),
        CARD: card.encode(),
    }
    if source.digest != target.digest:
        contents[TARGET_TOKENIZER] = target.dumps().encode()
    contents[CONFIG] = files.json_bytes(hf_names.write_config(model_config, fields))
    files.publish(Path(folder), contents, size=weights.size(theirs), disk=disk)


def load_model(folder: str | Path, *, weights_from: Path | None = None) -> LoadedModel:
    """Return the model of a folder, ours or a Marian or Pegasus one from elsewhere, after checking all of it.

    `weights_from` is another folder to read the weights from, for one whose own were converted first. A folder that a
    training run replaces at this moment is read again.
    """
    folder = Path(folder)
    for _ in range(_PATIENCE):
        before = _version(folder)
        try:
            return _load(folder, weights_from)
        except CheckpointError:
            if _version(folder) == before:
                raise
    return _load(folder, weights_from)


def _version(folder: Path) -> list[tuple[int, int]]:
    """Return what changes whenever a folder's model is replaced, even by one with the same content."""
    seen = []
    for manifest in (folder / files.MANIFEST, folder / files.NEW / files.MANIFEST):
        try:
            found = manifest.stat()
        except OSError:
            seen.append((0, 0))
        else:
            seen.append((found.st_ino, found.st_mtime_ns))
    return seen


def _load(folder: Path, weights_from: Path | None) -> LoadedModel:
    path = _opened(folder)
    task = _read_task(path)
    fields = files.read_json(path / CONFIG)
    where = str(path / CONFIG)
    config = hf_names.read_config(fields, where)
    _verify(path)
    entries = _headers(weights_from or path)
    config, loaded, report = read_weights(path, config, entries)
    source, target = _read_tokenizers(path, fields)
    for side, tokenizer, size in (
        ("source", source, config.source_vocabulary),
        ("target", target, config.target_vocabulary),
    ):
        if tokenizer.size > size:
            raise CheckpointError(f"{path}: the {side} tokenizer has {tokenizer.size} tokens, but {CONFIG} says {size}")
    return LoadedModel(config, loaded, source, target, _read_decoding(path, fields, task), task, fields, report)


def read_weights(
    path: Path, config: WritingConfig, entries: Mapping[str, weights.Entry]
) -> tuple[WritingConfig, dict[str, Tensor], hf_names.WeightReport]:
    """Return the config (with an output bias if there is one), our weights and a report of the names found.

    Names and shapes are compared with what the config asks for before any tensor is read.
    """
    if config.output_bias is False and hf_names.has_output_bias(entries):
        config = config.override({"output_bias": True})
    try:
        shapes = {name: entry.shape for name, entry in entries.items()}
        matched = hf_names.Weights(config, shapes, expected_shapes(config))
        numbers = {name: entries[name] for name in matched.wanted}
        odd = [name for name, entry in numbers.items() if entry.dtype not in ("F32", "F16", "BF16", "F64")]
        if odd:
            raise CheckpointError(f"{odd[0]} is stored as {numbers[odd[0]].dtype}: F32, F16 and BF16 are read")
        return config, matched.assemble(weights.read_some(numbers)), matched.report
    except CheckpointError as error:
        message = str(error)
        raise CheckpointError(message if str(path) in message else f"{path}: weights: {message}") from None


def expected_shapes(config: WritingConfig) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a config's weights without making them."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in build(config).state_dict().items()}


def _opened(folder: Path) -> Path:
    """Return where to read a folder's model from, or say what is there instead."""
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise CheckpointError(f"{folder}: {what}; a run's or model's folder is needed")
    path = files.published(folder)
    if (path / CONFIG).is_file():
        return path
    if (folder / "run.json").exists():
        raise CheckpointError(f"{folder}: a run that has not written its model yet: go on with the same train command")
    raise CheckpointError(f"{folder}: no {CONFIG} in it; a run's or model's folder is needed")


def _verify(path: Path) -> None:
    """Compare what will be read with the manifest, if there is one."""
    if not (path / files.MANIFEST).exists():
        return
    read = (CONFIG, weights.FILE, TOKENIZER, TARGET_TOKENIZER, GENERATION, TASK_FILE)
    try:
        files.verify_folder(path, read)
    except CheckpointError as error:
        advice = f"copy the folder again, or delete {files.MANIFEST} if the change was meant"
        raise CheckpointError(f"{error}: {advice}") from None


def has_only_old_weights(folder: Path) -> bool:
    """Whether a folder's weights are pickled and nothing else."""
    safe = any((folder / name).exists() for name in (weights.FILE, weights.INDEX))
    return not safe and any((folder / name).exists() for name in (weights.OLD_FILE, weights.OLD_INDEX))


def _headers(path: Path) -> dict[str, weights.Entry]:
    """Return the entries of all weight files of a folder."""
    if (path / weights.FILE).exists():
        return weights.read_header(path / weights.FILE)
    if (path / weights.INDEX).exists():
        placed = files.read_json(path / weights.INDEX).get("weight_map")
        plain = isinstance(placed, dict) and all(isinstance(name, str) for name in placed.values())
        shards = sorted(set(placed.values())) if plain and placed else []
        if not shards or any(Path(name).name != name for name in shards):
            raise CheckpointError(f"{path / weights.INDEX}: weight_map must name files of this folder")
        return {name: entry for shard in shards for name, entry in weights.read_header(path / shard).items()}
    if has_only_old_weights(path):
        raise CheckpointError(
            f"{path}: only old pickled weights ({weights.OLD_FILE}), which are not opened here: "
            f"turn the folder into a safe one with `regard convert {path} OUT --to regard`"
        )
    raise CheckpointError(f"{path / weights.FILE}: no such file; the folder holds no weights")


def _read_task(path: Path) -> dict[str, Any]:
    """Return what task.json holds, if the folder has one and it is of this task."""
    if not (path / TASK_FILE).exists():
        return {}
    task = files.read_json(path / TASK_FILE)
    if task.get("task") != TASK:
        raise CheckpointError(f"{path}: a model for the task {task.get('task')!r:.60}; one for {TASK!r} is needed")
    version = task.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise CheckpointError(
            f"{path / TASK_FILE}: version {version!r:.60}; up to {VERSION} is read here: use a newer Regard"
        )
    return task


def _read_decoding(path: Path, fields: Mapping[str, Any], task: Mapping[str, Any]) -> DecodingConfig:
    ours = task.get("decoding")
    if isinstance(ours, dict):
        try:
            return DecodingConfig.from_dict(ours, where=str(path / TASK_FILE))
        except (ConfigError, OverflowError, TypeError, ValueError) as error:
            raise CheckpointError(str(error)) from None
    theirs = files.read_json(path / GENERATION) if (path / GENERATION).exists() else {}
    return hf_names.read_decoding({**fields, **theirs}, str(path / GENERATION))


def _read_tokenizers(path: Path, fields: Mapping[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of both sides; one for both unless the folder holds two."""
    if (path / TOKENIZER).exists():
        source = _tokenizer(path / TOKENIZER)
        return source, _tokenizer(path / TARGET_TOKENIZER) if (path / TARGET_TOKENIZER).exists() else source
    if sentencepiece_files.present(path):
        return sentencepiece_files.read(path)
    raise CheckpointError(f"{path}: no {TOKENIZER}, and no {' and '.join(sentencepiece_files.FILES)} either")


def _tokenizer(path: Path) -> Tokenizer:
    try:
        text = files.read_bytes(path, most=_TOKENIZER_LIMIT).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8: {error}") from None
    return Tokenizer.loads(text, where=str(path))


def _tokenizer_config(tokenizer: Tokenizer, config: WritingConfig) -> dict[str, Any]:
    """Return what tells other tools which tokens are special and how long a row may be."""
    roles = {"pad_token": config.pad, "eos_token": config.end, "unk_token": tokenizer.unknown}
    if tokenizer.start >= 0:
        roles["bos_token"] = tokenizer.start
    named = {role: tokenizer.backend.id_to_token(number) for role, number in roles.items() if number >= 0}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.places,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        **named,
    }
