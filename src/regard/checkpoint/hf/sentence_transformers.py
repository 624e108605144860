"""How a folder makes one vector of a text, in the files of sentence-transformers: modules.json, 1_Pooling/."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.checkpoint import atomic
from regard.errors import CheckpointError

MODULES, LIMIT = "modules.json", "sentence_bert_config.json"
POOLING, CONFIG = "1_Pooling", "config.json"
_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max"}
_READ = ("Transformer", "Pooling", "Normalize")
_KIND = "sentence_transformers.models."


@dataclass(frozen=True)
class SentenceTransformersConfig:
    """What is made of the states of a text's tokens; several poolings are put side by side."""

    pooling: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int = 0  # tokens of a text that are read; 0: as many as the model takes


def read_modules(path: Path) -> SentenceTransformersConfig:
    """Return what a folder says of it; without a word, the mean of all tokens."""
    file = path / MODULES
    if not file.exists():
        return SentenceTransformersConfig()
    found = atomic.read_json_value(file)
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and isinstance(one.get("type"), str) for one in found
    ):
        raise CheckpointError(f"{file}: a list of modules with their types is needed")
    kinds = [one["type"].rpartition(".")[2] for one in found]
    for kind in kinds:
        if kind not in _READ:
            known = ", ".join(_READ)
            raise CheckpointError(f"{file}: a module of type {kind!r:.60}, which is not read; {known} are")
    pooling = next((one for one, kind in zip(found, kinds, strict=True) if kind == "Pooling"), None)
    limit = atomic.read_json(path / LIMIT).get("max_seq_length") if (path / LIMIT).exists() else 0
    longest = limit if type(limit) is int and limit > 0 else 0
    modes = ("mean",) if pooling is None else _pooling(path / str(pooling.get("path", POOLING)))
    return SentenceTransformersConfig(modes, "Normalize" in kinds, longest)


def _pooling(place: Path) -> tuple[str, ...]:
    file = place / CONFIG
    if place.parent / place.name != place or ".." in place.parts:
        raise CheckpointError(f"{place.parent / MODULES}: a module lies outside of the folder: {place.name!r:.60}")
    fields: dict[str, Any] = atomic.read_json(file)
    named = fields.get("pooling_mode")
    modes = tuple(named.split("+")) if isinstance(named, str) else ()
    modes = modes or tuple(mode for name, mode in _MODES.items() if fields.get(name) is True)
    others = [name for name, value in fields.items() if name.startswith("pooling_mode_") and value is True]
    unknown = [name for name in [*modes, *others] if name not in (*_MODES.values(), *_MODES)]
    if unknown or not modes:
        known = ", ".join(_MODES.values())
        raise CheckpointError(f"{file}: pooling {', '.join(unknown) or 'of no kind'}, which is not read; {known} are")
    return modes


def serialize_modules(modules: SentenceTransformersConfig) -> dict[str, bytes]:
    """Return the files beside a model that say it to others."""
    rows = [("", "Transformer"), (POOLING, "Pooling"), *([("2_Normalize", "Normalize")] if modules.normalize else [])]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": _KIND + kind}
        for number, (path, kind) in enumerate(rows)
    ]
    made = {MODULES: atomic.json_bytes(listed)}
    if modules.max_length:
        made[LIMIT] = atomic.json_bytes({"max_seq_length": modules.max_length, "do_lower_case": False})
    return made


def write_pooling(folder: Path, modules: SentenceTransformersConfig, width: int) -> None:
    """Write the folder inside a model's folder that says how its states are pooled."""
    fields: dict[str, Any] = {"word_embedding_dimension": width}
    fields |= {name: mode in modules.pooling for name, mode in _MODES.items()}
    atomic.write_folder(folder / POOLING, {CONFIG: atomic.json_bytes(fields)})
