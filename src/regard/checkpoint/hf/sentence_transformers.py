"""Pooling of sentence embeddings, in the files of sentence-transformers: modules.json, 1_Pooling/. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.checkpoint import atomic
from regard.checkpoint.locate import verify
from regard.errors import CheckpointError

MODULES = "modules.json"
LIMIT = "sentence_bert_config.json"
POOLING = "1_Pooling"
CONFIG = "config.json"
_NORMALIZE = "2_Normalize"
_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max"}
_MODULE_TYPES = ("Transformer", "Pooling", "Normalize")
_TYPE_PREFIX = "sentence_transformers.models."


@dataclass(frozen=True)
class SentenceTransformersConfig:
    """How the hidden states of a text become its embedding; several poolings are concatenated."""

    pooling: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int = 0  # tokens of a text; 0: as many as the model takes


def read_modules(path: Path) -> SentenceTransformersConfig:
    """Read a folder's modules; the mean of all tokens where there are none."""
    file = path / MODULES
    if not file.exists():
        return SentenceTransformersConfig()
    modules = _read_module_list(file)
    types = [module["type"].rpartition(".")[2] for module in modules]
    for module_type in types:
        if module_type not in _MODULE_TYPES:
            allowed = ", ".join(_MODULE_TYPES)
            raise CheckpointError(f"{file}: a module of type {module_type!r:.60}, which is not read; {allowed} are")
    max_length = _read_max_length(path / LIMIT)
    pooling: tuple[str, ...] = ("mean",)
    if "Pooling" in types:
        module = modules[types.index("Pooling")]
        pooling = _read_pooling(path / str(module.get("path", POOLING)))
    return SentenceTransformersConfig(pooling, "Normalize" in types, max_length=max_length)


def _read_module_list(file: Path) -> list[dict[str, Any]]:
    modules = atomic.read_json_value(file)
    is_list = isinstance(modules, list) and all(
        isinstance(module, dict) and isinstance(module.get("type"), str) for module in modules
    )
    if not is_list:
        raise CheckpointError(f"{file}: must be a list of modules with their types")
    return modules  # type: ignore[return-value]


def _read_max_length(file: Path) -> int:
    """Maximal length of a text in tokens; 0 where the folder does not limit it."""
    max_length = atomic.read_json(file).get("max_seq_length") if file.exists() else 0
    return max_length if type(max_length) is int and max_length > 0 else 0


def _read_pooling(folder: Path) -> tuple[str, ...]:
    """Pooling modes of a pooling module, in either of its spellings."""
    file = folder / CONFIG
    if folder.parent / folder.name != folder or ".." in folder.parts:
        raise CheckpointError(f"{folder.parent / MODULES}: a module lies outside of the folder: {folder.name!r:.60}")
    verify(folder)
    fields: dict[str, Any] = atomic.read_json(file)
    spelling = fields.get("pooling_mode")
    modes = tuple(spelling.split("+")) if isinstance(spelling, str) else ()
    if not modes:
        modes = tuple(mode for name, mode in _MODES.items() if fields.get(name) is True)
    flags = [name for name, value in fields.items() if name.startswith("pooling_mode_") and value is True]
    unknown = [name for name in [*modes, *flags] if name not in (*_MODES.values(), *_MODES)]
    if unknown or not modes:
        allowed = ", ".join(_MODES.values())
        raise CheckpointError(f"{file}: pooling {', '.join(unknown) or 'of no kind'}, which is not read; {allowed} are")
    return modes


def serialize_modules(modules: SentenceTransformersConfig) -> dict[str, bytes]:
    """Files beside a model that describe its modules to other tools."""
    module_types = {"": "Transformer", POOLING: "Pooling"}  # folder → type
    if modules.normalize:
        module_types[_NORMALIZE] = "Normalize"
    rows = [
        {"idx": index, "name": str(index), "path": path, "type": _TYPE_PREFIX + module_type}
        for index, (path, module_type) in enumerate(module_types.items())
    ]
    files = {MODULES: atomic.json_bytes(rows)}
    if modules.max_length:
        files[LIMIT] = atomic.json_bytes({"max_seq_length": modules.max_length, "do_lower_case": False})
    return files


def write_pooling(folder: Path, modules: SentenceTransformersConfig, hidden_size: int) -> None:
    """Write the pooling module's folder inside a model folder."""
    fields: dict[str, Any] = {"word_embedding_dimension": hidden_size}
    fields |= {name: mode in modules.pooling for name, mode in _MODES.items()}
    atomic.write_folder(folder / POOLING, {CONFIG: atomic.json_bytes(fields)})
