"""A causal language model as a folder: Hugging Face's `gpt2` or `gpt_neox` by its positions, else our own type.

Beside config and weights there are `tokenizer.json` (older folders: `vocab.json` and `merges.txt`),
`generation_config.json`, and for models trained here `task.json` and the card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.checkpoint import files, hf_gpt, weights
from regard.checkpoint.folder import checked_floats, expected_shapes, headers, naming_weights, publish_model
from regard.checkpoint.hf_gpt_kinds import KINDS
from regard.checkpoint.location import CONFIG, TASK_FILE, opened, patiently, read_task, verify
from regard.checkpoint.own_folder import own_config, own_type, own_weights, save_own
from regard.checkpoint.published import local_folder
from regard.checkpoint.tokenizer_files import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_vocabulary,
    read_folder_tokenizer,
    tokenizer_config,
)
from regard.checkpoint.weight_report import WeightReport
from regard.config.gpt import GptConfig
from regard.errors import CheckpointError
from regard.text.tokenizer import Tokenizer

TASK = "generate"
OWN = own_type(GptConfig().family)
TYPES = (*KINDS, OWN)
END = "<|endoftext|>"
GENERATION = "generation_config.json"


@dataclass(frozen=True)
class LoadedGpt:
    """A model as its folder holds it."""

    config: GptConfig
    weights: dict[str, Tensor]  # under our names, float32
    tokenizer: Tokenizer
    task: dict[str, Any]  # task.json; nothing for a folder from elsewhere
    fields: dict[str, Any]  # config.json as it stands, to be written back
    report: WeightReport = field(default_factory=WeightReport)


def save_gpt(
    folder: str | Path,
    config: GptConfig,
    model_weights: Mapping[str, Tensor],
    *,
    tokenizer: Tokenizer,
    facts: Mapping[str, Any],
    card: str,
    fields: Mapping[str, Any] | None = None,
    instead: Mapping[str, files.Content] | None = None,
) -> None:
    """Write a model so that readers find the old one or the new one whole; `fields` are of the folder it came from.

    `instead` are files to write instead of the weights.
    """
    besides = {
        TOKENIZER: tokenizer.dumps().encode(),
        TOKENIZER_CONFIG: files.json_bytes(_tokenizer_config(tokenizer, config)),
        GENERATION: files.json_bytes(_generation(config)),
    }
    if not hf_gpt.kind_of(config)[0]:
        save_own(folder, config, model_weights, task=TASK, facts=facts, card=card, besides=besides, instead=instead)
        return
    theirs = hf_gpt.to_theirs(config, checked_floats(config, model_weights))
    written = hf_gpt.write_config(config, fields)
    publish_model(folder, written, theirs, task=TASK, facts=facts, card=card, besides=besides, instead=instead)


def load_gpt(folder: str | Path, *, weights_from: Path | None = None) -> LoadedGpt:
    """Return the model of a folder, ours or one from elsewhere, or of a published name; all of it is checked.

    `weights_from` is another folder to read the weights from, for one whose own were converted first.
    """
    return patiently(local_folder(folder), lambda place: _load(place, weights_from))


def _load(folder: Path, weights_from: Path | None) -> LoadedGpt:
    path = opened(folder)
    task = read_task(path, TASK)
    fields, where = files.read_json(path / CONFIG), str(path / CONFIG)
    kind = fields.get("model_type")
    if kind not in TYPES:
        raise CheckpointError(f"{where}: a model of type {kind!r:.60}; {', '.join(TYPES)} write texts")
    verify(path, (CONFIG, weights.FILE, TOKENIZER, TASK_FILE))
    report = WeightReport()
    if kind == OWN:
        config = own_config(fields, {OWN: GptConfig}, where)
        loaded = own_weights(path, config)
    else:
        config = hf_gpt.read_config(fields, where)
        loaded, report = _read_weights(path, config, fields, weights_from)
    tokenizer = _read_tokenizer(path)
    check_vocabulary(path, tokenizer, config.vocabulary)
    return LoadedGpt(config, loaded, tokenizer, task, fields, report)


def _read_weights(
    path: Path, config: GptConfig, fields: Mapping[str, Any], weights_from: Path | None
) -> tuple[dict[str, Tensor], WeightReport]:
    entries = headers(weights_from or path)
    with naming_weights(path):
        shapes = {name: entry.shape for name, entry in entries.items()}
        matched = hf_gpt.Weights(config, shapes, expected_shapes(config))
        return matched.assemble(weights.read_checked(entries, matched.wanted), fields), matched.report


def _read_tokenizer(path: Path) -> Tokenizer:
    """Return a folder's tokenizer; in older ones, of two files, nobody says that the end is a special token."""
    found = read_folder_tokenizer(path)
    number = found.backend.token_to_id(END)
    if number is None or number in found.specials:
        return found
    found.backend.add_special_tokens([END])
    return Tokenizer(found.backend)


def _tokenizer_config(tokenizer: Tokenizer, config: GptConfig) -> dict[str, Any]:
    roles = {**dict.fromkeys(("bos_token", "eos_token", "pad_token"), config.end), "unk_token": tokenizer.unknown}
    return {**tokenizer_config(tokenizer, roles, config.places), "padding_side": "left"}


def _generation(config: GptConfig) -> dict[str, Any]:
    ends = ("bos_token_id", "eos_token_id", "pad_token_id") if config.end >= 0 else ()
    return {"max_length": config.places, **dict.fromkeys(ends, config.end)}
