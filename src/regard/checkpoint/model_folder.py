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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.checkpoint import files, hf_names, sentencepiece_files, weights
from regard.checkpoint.disk import DISK, Disk
from regard.checkpoint.folder import checked_floats, expected_shapes, headers, naming_weights
from regard.checkpoint.location import CARD, CONFIG, TASK_FILE, VERSION, opened, patiently, read_task, verify
from regard.checkpoint.published import local_folder
from regard.checkpoint.tokenizer_files import (
    TARGET_TOKENIZER,
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_vocabulary,
    read_tokenizer,
    tokenizer_config,
)
from regard.checkpoint.weight_report import WeightReport
from regard.config.decoding import DecodingConfig
from regard.config.model import WritingConfig
from regard.errors import CheckpointError, ConfigError
from regard.text.tokenizer import Tokenizer

TASK = "translate"
GENERATION = "generation_config.json"


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
    report: WeightReport = field(default_factory=WeightReport)


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
    instead: Mapping[str, files.Content] | None = None,
    disk: Disk = DISK,
) -> None:
    """Write a model into a folder so that readers find the old one or the new one whole; other files there stay.

    `tokenizers` has "source" and "target"; `fields` are the `config.json` of the folder that the model came from,
    if it did: what we do not know in it is written back. `instead` are files to write instead of the weights.
    """
    floats = checked_floats(model_config, model_weights)
    source, target = tokenizers["source"], tokenizers["target"]
    theirs = hf_names.to_theirs(model_config, floats)
    contents: dict[str, files.Content] = {
        **({weights.FILE: weights.content(theirs)} if instead is None else instead),
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


Reader = Callable[[Path, WritingConfig], tuple[WritingConfig, dict[str, Tensor], WeightReport]]


def load_model(
    folder: str | Path, *, weights_from: Path | None = None, read: Reader | None = None, beside: str = ""
) -> LoadedModel:
    """Return the model of a folder or published name, ours or a Marian or Pegasus one, after checking all of it.

    `weights_from` is another folder to read the weights from, for one whose own were converted first. A folder that a
    training run replaces at this moment is read again. `read` reads other weights, those in the file `beside`.
    """
    return patiently(local_folder(folder), lambda place: _load(place, weights_from, read, beside))


def _load(folder: Path, weights_from: Path | None, read: Reader | None, beside: str) -> LoadedModel:
    path = opened(folder)
    task = read_task(path, TASK)
    fields = files.read_json(path / CONFIG)
    where = str(path / CONFIG)
    config = hf_names.read_config(fields, where)
    verify(path, (CONFIG, weights.FILE, TOKENIZER, TARGET_TOKENIZER, GENERATION, TASK_FILE, beside))
    if read is None:
        config, loaded, report = read_weights(path, config, headers(weights_from or path))
    else:
        config, loaded, report = read(path, config)
    source, target = _read_tokenizers(path, fields)
    check_vocabulary(path, source, config.source_vocabulary, "source")
    check_vocabulary(path, target, config.target_vocabulary, "target")
    return LoadedModel(config, loaded, source, target, _read_decoding(path, fields, task), task, fields, report)


def read_weights(
    path: Path, config: WritingConfig, entries: Mapping[str, weights.Entry]
) -> tuple[WritingConfig, dict[str, Tensor], WeightReport]:
    """Return the config (with an output bias if there is one), our weights and a report of the names found.

    Names and shapes are compared with what the config asks for before any tensor is read.
    """
    if config.output_bias is False and hf_names.has_output_bias(entries):
        config = config.override({"output_bias": True})
    with naming_weights(path):
        shapes = {name: entry.shape for name, entry in entries.items()}
        matched = hf_names.Weights(config, shapes, expected_shapes(config))
        return config, matched.assemble(weights.read_checked(entries, matched.wanted)), matched.report


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
        source = read_tokenizer(path / TOKENIZER)
        return source, read_tokenizer(path / TARGET_TOKENIZER) if (path / TARGET_TOKENIZER).exists() else source
    if sentencepiece_files.present(path):
        return sentencepiece_files.read(path)
    raise CheckpointError(f"{path}: no {TOKENIZER}, and no {' and '.join(sentencepiece_files.FILES)} either")


def _tokenizer_config(tokenizer: Tokenizer, config: WritingConfig) -> dict[str, Any]:
    """Return what tells other tools which tokens are special and how long a row may be."""
    roles = {"pad_token": config.pad, "eos_token": config.end, "unk_token": tokenizer.unknown}
    return tokenizer_config(tokenizer, {**roles, "bos_token": tokenizer.start}, config.places)
