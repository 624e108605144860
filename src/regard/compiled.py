"""Whether models compute in the engine or in torch, and the engine's own folders of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.attention.intervention import intervention
from regard.checkpoint import files, hf_encoders
from regard.checkpoint.encoder_folder import LoadedEncoder, load_encoder, save_encoder
from regard.checkpoint.gpt_folder import LoadedGpt, save_gpt
from regard.checkpoint.location import CONFIG, read_task
from regard.checkpoint.model_folder import LoadedModel, load_model, save_model
from regard.checkpoint.weight_report import WeightReport
from regard.config.model import EncoderConfig, TranslatorConfig, WritingConfig
from regard.engine import file, gpt, layout
from regard.engine.encoder import EncoderEngine, obstacle
from regard.engine.layout import PRECISIONS
from regard.engine.library import absence
from regard.engine.shortlist import Shortlist
from regard.engine.translator import Engine
from regard.errors import CheckpointError, ConfigError, UsageError, nearest
from regard.models.encoder import Encoder
from regard.models.gpt import Gpt
from regard.ready import Deferred, WatchableEncoder, WatchableGpt, encoder_in, gpt_in, is_ready, named, open_ready

BACKENDS = ("auto", "engine", "torch")


@dataclass(frozen=True)
class Opened:
    """A translator's folder as it was read; one that `convert --precision` made has its arrays ready."""

    folder: Path
    loaded: LoadedModel
    precision: str = "float32"
    arrays: Sequence[layout.Array] = ()
    shortlist: Shortlist | None = None

    def engine(self, precision: str) -> Engine:
        """Return its engine."""
        config = self.loaded.config
        assert isinstance(config, TranslatorConfig)
        if self.arrays:
            engine = Engine(config, self.arrays, precision)
            engine.shortlist = self.shortlist
            return engine
        return Engine.of(config, {name: one.numpy() for name, one in self.loaded.weights.items()}, precision)


def open_translator(folder: Path) -> Opened:
    """Return what a folder holds: weights as they were trained, or arrays that are ready for the engine."""
    place = files.published(folder)
    if not (place / file.FILE).exists():
        return Opened(folder, load_model(folder))
    found: list[file.Stored] = []

    def read(path: Path, config: WritingConfig) -> tuple[WritingConfig, dict[str, Tensor], WeightReport]:
        if why := absence():
            raise UsageError(f"{folder} was made for the engine, which is not here: {why}")
        stored = file.read(path / file.FILE)
        if not isinstance(config, TranslatorConfig) or not isinstance(stored.config, TranslatorConfig):
            raise CheckpointError(f"{path}: {file.FILE} beside a {config.family} model, which has none")
        found[:] = [stored]
        weights = layout.unpacked(stored.config, stored.arrays, stored.precision)
        return stored.config, {name: torch.tensor(one) for name, one in weights.items()}, WeightReport()

    loaded = load_model(folder, read=read, beside=file.FILE)
    (stored,) = found
    return Opened(folder, loaded, stored.precision, stored.arrays, stored.shortlist)


def open_encoder(folder: str | Path, *, head: str | None = None, task: str = "") -> LoadedEncoder:
    """Return what an encoder's folder holds; of one that was made for the engine, all but its weights."""
    if not is_ready(folder):
        return load_encoder(folder, head=head, task=task)
    found = open_ready(folder)
    config, facts = found.stored.config, found.stored.facts
    if not isinstance(config, EncoderConfig):
        raise CheckpointError(f"{folder}: {named(config)}, where an encoder is needed")
    held = read_task(found.path, task) if task else found.task
    labels, problem = facts.get("labels", []), str(facts.get("problem", ""))
    fields = files.read_json(found.path / CONFIG)
    longest = min(int(facts.get("longest", config.places)), config.places)
    told = (tuple(map(str, labels)), problem, longest, str(fields.get("model_type")), fields, held, WeightReport(), "")
    return LoadedEncoder(config, {}, found.tokenizers()[0], *told, found.path)


def save_compiled(
    loaded: LoadedModel, folder: Path, out: Path, precision: str, card: str, shortlist: Shortlist | None = None
) -> Engine:
    """Write a translator as a folder whose weights are ready for the engine; return it as the engine computes it."""
    if not isinstance(loaded.config, TranslatorConfig):
        raise UsageError(f"{folder} cannot be written for the engine: it computes Transformers, not recurrent models")
    _check_writing(folder, precision)
    config = loaded.config
    arrays = layout.packed(config, {name: one.numpy() for name, one in loaded.weights.items()}, precision)
    facts = {name: value for name, value in loaded.task.items() if name not in ("decoding", "task", "version")}
    save_model(
        out,
        config,
        loaded.weights,
        tokenizers={"source": loaded.source, "target": loaded.target},
        decoding=loaded.decoding,
        task={**facts, "precision": precision},
        card=card,
        fields=loaded.fields,
        instead={file.FILE: file.content(config, precision, arrays, shortlist=shortlist)},
    )
    return Engine(config, arrays, precision)


def save_compiled_encoder(
    loaded: LoadedEncoder, folder: Path, out: Path, precision: str, card: str, besides: Mapping[str, bytes]
) -> None:
    """Write an encoder as a folder whose weights are ready for the engine."""
    if why := obstacle(loaded.config):
        raise UsageError(f"{folder} cannot be written for the engine: {why}")
    _check_writing(folder, precision)
    arrays = layout.packed(loaded.config, {name: one.numpy() for name, one in loaded.weights.items()}, precision)
    facts = {"labels": list(loaded.labels), "problem": loaded.problem, "longest": loaded.longest}
    save_encoder(
        out,
        loaded.config,
        loaded.weights,
        tokenizer=loaded.tokenizer,
        task=str(loaded.task.get("task") or hf_encoders.TASKS[loaded.config.head]),  # no weights will tell it
        facts={name: value for name, value in loaded.task.items() if name not in ("task", "version")},
        card=card,
        labels=loaded.labels,
        problem=loaded.problem,
        kind=loaded.kind,
        fields=loaded.fields,
        longest=loaded.longest,
        besides=besides,
        instead={file.FILE: file.content(loaded.config, precision, arrays, facts)},
    )


def save_compiled_gpt(loaded: LoadedGpt, folder: Path, out: Path, precision: str, card: str) -> None:
    """Write a causal language model as a folder whose weights are ready for the engine."""
    if why := gpt.obstacle(loaded.config):
        raise UsageError(f"{folder} cannot be written for the engine: {why}")
    _check_writing(folder, precision)
    arrays = layout.packed(loaded.config, {name: one.numpy() for name, one in loaded.weights.items()}, precision)
    save_gpt(
        out,
        loaded.config,
        loaded.weights,
        tokenizer=loaded.tokenizer,
        facts={name: value for name, value in loaded.task.items() if name not in ("task", "version")},
        card=card,
        fields=loaded.fields,
        instead={file.FILE: file.content(loaded.config, precision, arrays)},
    )


def _check_writing(folder: Path, precision: str) -> None:
    _check_precision(precision)
    if why := absence():
        raise UsageError(f"{folder} cannot be written for the engine: {why}")


def compiled_encoder(
    loaded: LoadedEncoder, model: Callable[[], Encoder], backend: str, precision: str | None, device: str, threads: int
) -> Encoder:
    """Return an encoder as it is to compute; `model` makes it in torch."""
    _check_backend(backend, precision)
    if _is_torch(backend, precision, device, obstacle(loaded.config)):
        return model()
    weights = {name: one.numpy() for name, one in loaded.weights.items()}
    engine = EncoderEngine.of(loaded.config, weights, precision or "float32")
    engine.threads = threads
    return encoder_in(WatchableEncoder(engine, Deferred(model, config=loaded.config)))


def compiled_gpt(loaded: LoadedGpt, model: Callable[[], Gpt], backend: str, precision: str | None, device: str) -> Gpt:
    """Return a causal language model as it is to compute; `model` makes it in torch."""
    _check_backend(backend, precision)
    if _is_torch(backend, precision, device, gpt.obstacle(loaded.config)):
        return model()
    weights = {name: one.numpy() for name, one in loaded.weights.items()}
    engine = gpt.GptEngine.of(loaded.config, weights, precision or "float32")
    return gpt_in(WatchableGpt(engine, Deferred(model, config=loaded.config)))


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
    _check_backend(backend, precision)
    for one in opened:
        if one.arrays and precision not in (None, one.precision):
            raise UsageError(f"{one.folder} holds {one.precision} weights, {precision} was asked for: leave it out")
    why = "the torch backend was asked for" if backend == "torch" else _obstacle(opened, device)
    return [] if _fallen_back(why, backend, precision) else [one.engine(precision or one.precision) for one in opened]


def _check_backend(backend: str, precision: str | None) -> None:
    if backend not in BACKENDS:
        raise ConfigError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}{nearest(backend, BACKENDS)}")
    if precision is not None:
        _check_precision(precision)


def _is_torch(backend: str, precision: str | None, device: str, obstacle: str) -> bool:
    """Whether torch computes an encoder or a causal model: also where heads are off, so that wrong names are told."""
    if backend == "auto" and precision != "int8" and intervention() is not None:
        return True
    why = "the torch backend was asked for" if backend == "torch" else _elsewhere(device) or obstacle
    return _fallen_back(why or absence(), backend, precision)


def _fallen_back(why: str, backend: str, precision: str | None) -> bool:
    """Whether torch computes, because of this; raises where only the engine could."""
    if why and backend == "engine":
        raise UsageError(f"the engine cannot be used: {why}")
    if why and precision == "int8":
        raise UsageError(f"int8 is computed by the engine, which cannot be used: {why}")
    return bool(why)


def _elsewhere(device: str) -> str:
    return "" if device == "cpu" else f"it computes on processors, not on {device!r}"


def _obstacle(opened: Sequence[Opened], device: str) -> str:
    """Return why the engine cannot compute these models; nothing where it can."""
    if why := _elsewhere(device):
        return why
    if any(not isinstance(one.loaded.config, TranslatorConfig) for one in opened):
        return "it computes Transformers; a recurrent model runs on torch"
    return absence()
