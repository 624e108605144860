"""Whether models compute in the engine or in torch, and the engine's own folders of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.attention.intervention import active_intervention
from regard.checkpoint import atomic
from regard.checkpoint.causal_dir import LoadedCausalLM
from regard.checkpoint.encoder_dir import LoadedEncoder, load_encoder
from regard.checkpoint.locate import CONFIG, read_task
from regard.checkpoint.model_dir import LoadedTranslator, load_translator
from regard.checkpoint.weights import WeightReport
from regard.config.models import BertConfig, TransformerConfig
from regard.config.rnn_models import TranslationModelConfig
from regard.engine import causal, file, layout
from regard.engine.encoder import EncoderEngine, obstacle
from regard.engine.folder import (
    LazyProxy,
    SwitchingCausalLM,
    SwitchingEncoder,
    describe_family,
    encoder_in,
    gpt_in,
    is_engine_folder,
    open_engine_folder,
)
from regard.engine.layout import PRECISIONS
from regard.engine.library import unavailable_reason
from regard.engine.shortlist import Shortlist
from regard.engine.translator import TranslatorEngine
from regard.errors import CheckpointError, ConfigError, UsageError, nearest
from regard.models.bert import Bert
from regard.models.gpt import Gpt

BACKENDS = ("auto", "engine", "torch")


@dataclass(frozen=True)
class OpenedTranslator:
    """A translator's folder as it was read; one that `convert --precision` made has its arrays ready."""

    folder: Path
    loaded: LoadedTranslator
    precision: str = "float32"
    arrays: Sequence[layout.Array] = ()
    shortlist: Shortlist | None = None

    def engine(self, precision: str) -> TranslatorEngine:
        """Return its engine."""
        config = self.loaded.config
        assert isinstance(config, TransformerConfig)
        if self.arrays:
            engine = TranslatorEngine(config, self.arrays, precision)
            engine.shortlist = self.shortlist
            return engine
        return TranslatorEngine.of(config, {name: one.numpy() for name, one in self.loaded.weights.items()}, precision)


def read_translator(folder: Path) -> OpenedTranslator:
    """Return what a folder holds: weights as they were trained, or arrays that are ready for the engine."""
    place = atomic.published_path(folder)
    if not (place / file.FILE).exists():
        return OpenedTranslator(folder, load_translator(folder))
    found: list[file.EngineFile] = []

    def read(
        path: Path, config: TranslationModelConfig
    ) -> tuple[TranslationModelConfig, dict[str, Tensor], WeightReport]:
        if why := unavailable_reason():
            raise UsageError(f"{folder} was made for the engine, which is not here: {why}")
        stored = file.read_engine_file(path / file.FILE)
        if not isinstance(config, TransformerConfig) or not isinstance(stored.config, TransformerConfig):
            raise CheckpointError(f"{path}: {file.FILE} beside a {config.family} model, which has none")
        found[:] = [stored]
        weights = layout.unpack_weights(stored.config, stored.arrays, stored.precision)
        return stored.config, {name: torch.tensor(one) for name, one in weights.items()}, WeightReport()

    loaded = load_translator(folder, read_weights=read, weights_file=file.FILE)
    (stored,) = found
    return OpenedTranslator(folder, loaded, stored.precision, stored.arrays, stored.shortlist)


def read_encoder(folder: str | Path, *, head: str | None = None, task: str = "") -> LoadedEncoder:
    """Return what an encoder's folder holds; of one that was made for the engine, all but its weights."""
    if not is_engine_folder(folder):
        return load_encoder(folder, head=head, task=task)
    found = open_engine_folder(folder)
    config, facts = found.stored.config, found.stored.metadata
    if not isinstance(config, BertConfig):
        raise CheckpointError(f"{folder}: {describe_family(config)}, where an encoder is needed")
    held = read_task(found.path, task) if task else found.task
    labels, problem = facts.get("labels", []), str(facts.get("problem", ""))
    fields = atomic.read_json(found.path / CONFIG)
    longest = min(int(facts.get("longest", config.max_positions)), config.max_positions)
    told = (tuple(map(str, labels)), problem, longest, str(fields.get("model_type")), fields, held, WeightReport(), "")
    return LoadedEncoder(config, {}, found.tokenizers()[0], *told, found.path)


def encoder_backend(
    loaded: LoadedEncoder, model: Callable[[], Bert], backend: str, precision: str | None, device: str, threads: int
) -> Bert:
    """Return an encoder as it is to compute; `model` makes it in torch."""
    _check_backend(backend, precision)
    if _is_torch(backend, precision, device, obstacle(loaded.config)):
        return model()
    weights = {name: one.numpy() for name, one in loaded.weights.items()}
    engine = EncoderEngine.from_weights(loaded.config, weights, precision or "float32")
    engine.threads = threads
    return encoder_in(SwitchingEncoder(engine, LazyProxy(model, config=loaded.config)))


def causal_backend(
    loaded: LoadedCausalLM, model: Callable[[], Gpt], backend: str, precision: str | None, device: str
) -> Gpt:
    """Return a causal language model as it is to compute; `model` makes it in torch."""
    _check_backend(backend, precision)
    if _is_torch(backend, precision, device, causal.obstacle(loaded.config)):
        return model()
    weights = {name: one.numpy() for name, one in loaded.weights.items()}
    engine = causal.CausalEngine.of(loaded.config, weights, precision or "float32")
    return gpt_in(SwitchingCausalLM(engine, LazyProxy(model, config=loaded.config)))


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise ConfigError(
            f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}{nearest(precision, PRECISIONS)}"
        )


def translator_backends(
    opened: Sequence[OpenedTranslator], backend: str, precision: str | None, device: str
) -> list[TranslatorEngine]:
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
    if backend == "auto" and precision != "int8" and active_intervention() is not None:
        return True
    why = "the torch backend was asked for" if backend == "torch" else _elsewhere(device) or obstacle
    return _fallen_back(why or unavailable_reason(), backend, precision)


def _fallen_back(why: str, backend: str, precision: str | None) -> bool:
    """Whether torch computes, because of this; raises where only the engine could."""
    if why and backend == "engine":
        raise UsageError(f"the engine cannot be used: {why}")
    if why and precision == "int8":
        raise UsageError(f"int8 is computed by the engine, which cannot be used: {why}")
    return bool(why)


def _elsewhere(device: str) -> str:
    return "" if device == "cpu" else f"it computes on processors, not on {device!r}"


def _obstacle(opened: Sequence[OpenedTranslator], device: str) -> str:
    """Return why the engine cannot compute these models; nothing where it can."""
    if why := _elsewhere(device):
        return why
    if any(not isinstance(one.loaded.config, TransformerConfig) for one in opened):
        return "it computes Transformers; a recurrent model runs on torch"
    return unavailable_reason()
