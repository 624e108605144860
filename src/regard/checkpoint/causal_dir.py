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

from regard.checkpoint import atomic, weights
from regard.checkpoint.hf import causal
from regard.checkpoint.hf.causal import KINDS
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CONFIG, TASK_FILE, read_task, resolve_model_path, retry_while_replaced, verify
from regard.checkpoint.model_dir import (
    check_weights,
    expected_shapes,
    name_folder_in_errors,
    publish_model,
    read_tensor_entries,
)
from regard.checkpoint.native import native_type, read_native_config, read_native_weights, save_native
from regard.checkpoint.tokenizer_files import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_vocabulary,
    read_folder_tokenizer,
    tokenizer_config,
)
from regard.checkpoint.weights import WeightReport
from regard.config.models import GptConfig
from regard.errors import CheckpointError
from regard.text.tokenizer import Tokenizer

TASK = "generate"
OWN = native_type(GptConfig().family)
TYPES = (*KINDS, OWN)
END = "<|endoftext|>"
GENERATION = "generation_config.json"


@dataclass(frozen=True)
class LoadedCausalLM:
    """A model as its folder holds it."""

    config: GptConfig
    weights: dict[str, Tensor]  # under our names, float32
    tokenizer: Tokenizer
    task: dict[str, Any]  # task.json; nothing for a folder from elsewhere
    hf_config: dict[str, Any]  # config.json as it stands, to be written back
    report: WeightReport = field(default_factory=WeightReport)


def save_causal_lm(
    folder: str | Path,
    config: GptConfig,
    model_weights: Mapping[str, Tensor],
    *,
    tokenizer: Tokenizer,
    facts: Mapping[str, Any],
    card: str,
    fields: Mapping[str, Any] | None = None,
    weight_files: Mapping[str, atomic.Content] | None = None,
) -> None:
    """Write a model so that readers find the old one or the new one whole; `fields` are of the folder it came from.

    `instead` are files to write instead of the weights.
    """
    besides = {
        TOKENIZER: tokenizer.to_json().encode(),
        TOKENIZER_CONFIG: atomic.json_bytes(_tokenizer_config(tokenizer, config)),
        GENERATION: atomic.json_bytes(_generation(config)),
    }
    if not causal.causal_model_type(config)[0]:
        save_native(
            folder,
            config,
            model_weights,
            task=TASK,
            facts=facts,
            card=card,
            extra_files=besides,
            weight_files=weight_files,
        )
        return
    theirs = causal.to_theirs(config, check_weights(config, model_weights))
    written = causal.write_config(config, fields)
    publish_model(
        folder, written, theirs, task=TASK, metadata=facts, card=card, extra_files=besides, weight_files=weight_files
    )


def load_causal_lm(folder: str | Path, *, weights_from: Path | None = None) -> LoadedCausalLM:
    """Return the model of a folder, ours or one from elsewhere, or of a published name; all of it is checked.

    `weights_from` is another folder to read the weights from, for one whose own were converted first.
    """
    return retry_while_replaced(resolve_model(folder), lambda place: _load(place, weights_from))


def _load(folder: Path, weights_from: Path | None) -> LoadedCausalLM:
    path = resolve_model_path(folder)
    task = read_task(path, TASK)
    fields, where = atomic.read_json(path / CONFIG), str(path / CONFIG)
    kind = fields.get("model_type")
    if kind not in TYPES:
        raise CheckpointError(f"{where}: a model of type {kind!r:.60}; {', '.join(TYPES)} write texts")
    verify(path, (CONFIG, weights.FILE, TOKENIZER, TASK_FILE))
    report = WeightReport()
    if kind == OWN:
        config = read_native_config(fields, {OWN: GptConfig}, where)
        loaded = read_native_weights(path, config)
    else:
        config = causal.read_config(fields, where)
        loaded, report = _read_weights(path, config, fields, weights_from)
    tokenizer = _read_tokenizer(path)
    check_vocabulary(path, tokenizer, config.vocab_size)
    return LoadedCausalLM(config, loaded, tokenizer, task, fields, report)


def _read_weights(
    path: Path, config: GptConfig, fields: Mapping[str, Any], weights_from: Path | None
) -> tuple[dict[str, Tensor], WeightReport]:
    entries = read_tensor_entries(weights_from or path)
    with name_folder_in_errors(path):
        shapes = {name: entry.shape for name, entry in entries.items()}
        matched = causal.CausalWeightMatcher(config, shapes, expected_shapes(config))
        return matched.assemble(weights.read_float_tensors(entries, matched.wanted), fields), matched.report


def _read_tokenizer(path: Path) -> Tokenizer:
    """Return a folder's tokenizer; in older ones, of two files, nobody says that the end is a special token."""
    found = read_folder_tokenizer(path)
    number = found.backend.token_to_id(END)
    if number is None or number in found.special_ids:
        return found
    found.backend.add_special_tokens([END])
    return Tokenizer(found.backend)


def _tokenizer_config(tokenizer: Tokenizer, config: GptConfig) -> dict[str, Any]:
    roles = {**dict.fromkeys(("bos_token", "eos_token", "pad_token"), config.eos_id), "unk_token": tokenizer.unk_id}
    return {**tokenizer_config(tokenizer, roles, config.max_positions), "padding_side": "left"}


def _generation(config: GptConfig) -> dict[str, Any]:
    ends = ("bos_token_id", "eos_token_id", "pad_token_id") if config.eos_id >= 0 else ()
    return {"max_length": config.max_positions, **dict.fromkeys(ends, config.eos_id)}
