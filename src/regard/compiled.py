"""Whether translators compute in the engine or in torch, and the engine's own folders of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.checkpoint import files
from regard.checkpoint.model_folder import LoadedModel, load_model, save_model
from regard.checkpoint.weight_report import WeightReport
from regard.config.model import TranslatorConfig, WritingConfig
from regard.engine import file, layout
from regard.engine.layout import PRECISIONS
from regard.engine.library import absence
from regard.engine.translator import Engine
from regard.errors import CheckpointError, ConfigError, UsageError, nearest

BACKENDS = ("auto", "engine", "torch")


@dataclass(frozen=True)
class Opened:
    """A translator's folder as it was read; one that `convert --precision` made has its arrays ready."""

    folder: Path
    loaded: LoadedModel
    precision: str = "float32"
    arrays: Sequence[layout.Array] = ()

    def engine(self, precision: str) -> Engine:
        """Return its engine."""
        config = self.loaded.config
        assert isinstance(config, TranslatorConfig)
        if self.arrays:
            return Engine(config, self.arrays, precision)
        return Engine.of(config, {name: one.numpy() for name, one in self.loaded.weights.items()}, precision)


def open_translator(folder: Path) -> Opened:
    """Return what a folder holds: weights as they were trained, or arrays that are ready for the engine."""
    place = files.published(folder)
    if not (place / file.FILE).exists():
        return Opened(folder, load_model(folder))
    found: list[tuple[str, Sequence[layout.Array]]] = []

    def read(path: Path, config: WritingConfig) -> tuple[WritingConfig, dict[str, Tensor], WeightReport]:
        if not isinstance(config, TranslatorConfig):
            raise CheckpointError(f"{path}: {file.FILE} beside a {config.family} model, which has none")
        if why := absence():
            raise UsageError(f"{folder} was made for the engine, which is not here: {why}")
        told = files.read_json(path / "task.json").get("output_bias")
        config = config.override({"output_bias": bool(told)})
        precision, arrays = file.read(path / file.FILE, config)
        found[:] = [(precision, arrays)]
        weights = layout.unpacked(config, arrays, precision)
        return config, {name: torch.tensor(one) for name, one in weights.items()}, WeightReport()

    loaded = load_model(folder, read=read, beside=file.FILE)
    return Opened(folder, loaded, *found[0])


def save_compiled(loaded: LoadedModel, folder: Path, out: Path, precision: str, card: str) -> None:
    """Write a translator as a folder whose weights are ready for the engine."""
    if not isinstance(loaded.config, TranslatorConfig):
        raise UsageError(f"{folder} cannot be written for the engine: it computes Transformers, not recurrent models")
    _check_precision(precision)
    if why := absence():
        raise UsageError(f"{folder} cannot be written for the engine: {why}")
    config = loaded.config
    arrays = layout.packed(config, {name: one.numpy() for name, one in loaded.weights.items()}, precision)
    facts = {name: value for name, value in loaded.task.items() if name not in ("decoding", "task", "version")}
    save_model(
        out,
        config,
        loaded.weights,
        tokenizers={"source": loaded.source, "target": loaded.target},
        decoding=loaded.decoding,
        task={**facts, "precision": precision, "output_bias": config.output_bias},
        card=card,
        fields=loaded.fields,
        instead={file.FILE: file.content(config, precision, arrays)},
    )


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise ConfigError(
            f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}{nearest(precision, PRECISIONS)}"
        )


def compiled(opened: Sequence[Opened], backend: str, precision: str | None, device: str) -> list[Engine]:
    """Return the engines of models; none where torch is to compute.

    `auto` takes the engine where it is there and fits; `engine` says why it does not. Without a precision each has
    that of its folder.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}{nearest(backend, BACKENDS)}")
    if precision is not None:
        _check_precision(precision)
    for one in opened:
        if one.arrays and precision not in (None, one.precision):
            raise UsageError(f"{one.folder} holds {one.precision} weights, {precision} was asked for: leave it out")
    why = "the torch backend was asked for" if backend == "torch" else _obstacle(opened, device)
    if not why:
        return [one.engine(precision or one.precision) for one in opened]
    if backend == "engine":
        raise UsageError(f"the engine cannot be used: {why}")
    if precision == "int8":
        raise UsageError(f"int8 is computed by the engine, which cannot be used: {why}")
    return []


def _obstacle(opened: Sequence[Opened], device: str) -> str:
    """Return why the engine cannot compute these models; nothing where it can."""
    if device != "cpu":
        return f"it computes on processors, not on {device!r}"
    if any(not isinstance(one.loaded.config, TranslatorConfig) for one in opened):
        return "it computes Transformers; a recurrent model runs on torch"
    return absence()
