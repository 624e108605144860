"""Choice of the backend, engine or torch, for each kind of model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from regard.engine.base import check_precision
from regard.engine.encoder import EncoderEngine, unsupported_reason
from regard.engine.folder import (
    LazyProxy,
    SwitchingCausalLM,
    SwitchingEncoder,
    as_bert,
    as_gpt,
    describe_family,
    is_engine_folder,
    open_engine_folder,
)
from regard.engine.library import unavailable_reason
from regard.engine.shortlist import Shortlist
from regard.engine.translator import TranslatorEngine, unsupported_transformer_reason
from regard.errors import CheckpointError, ConfigError, UsageError, nearest
from regard.models.bert import Bert
from regard.models.gpt import Gpt

BACKENDS = ("auto", "engine", "torch")


# ---- reading models


@dataclass(frozen=True)
class OpenedTranslator:
    """A loaded translator; one from an engine folder has packed arrays."""

    folder: Path
    loaded: LoadedTranslator
    precision: str = "float32"
    arrays: Sequence[layout.Array] = ()
    shortlist: Shortlist | None = None

    def engine(self, precision: str) -> TranslatorEngine:
        """Build its engine from the packed arrays, or from the weights."""
        config = self.loaded.config
        assert isinstance(config, TransformerConfig)
        if not self.arrays:
            return TranslatorEngine.from_weights(config, _to_numpy(self.loaded.weights), precision)
        engine = TranslatorEngine(config, self.arrays, precision)
        engine.shortlist = self.shortlist
        return engine


def read_translator(folder: Path) -> OpenedTranslator:
    """Load a translation model, from weights or from an engine folder."""
    if not (atomic.published_path(folder) / file.ENGINE_FILE).exists():
        return OpenedTranslator(folder, load_translator(folder))
    stored: file.EngineFile | None = None

    def read_weights(
        path: Path, config: TranslationModelConfig
    ) -> tuple[TranslationModelConfig, dict[str, Tensor], WeightReport]:
        nonlocal stored
        if reason := unavailable_reason():
            raise UsageError(f"{folder} needs the engine, which is not available: {reason}")
        stored = file.read_engine_file(path / file.ENGINE_FILE)
        if not isinstance(config, TransformerConfig) or not isinstance(stored.config, TransformerConfig):
            raise CheckpointError(
                f"{path}: {file.ENGINE_FILE} beside a {config.family} model, which the engine does not run"
            )
        weights = layout.unpack_weights(stored.config, stored.arrays, stored.precision)
        return stored.config, {name: torch.tensor(array) for name, array in weights.items()}, WeightReport()

    loaded = load_translator(folder, read_weights=read_weights, weights_file=file.ENGINE_FILE)
    assert stored is not None
    return OpenedTranslator(
        folder, loaded, precision=stored.precision, arrays=stored.arrays, shortlist=stored.shortlist
    )


def read_encoder(folder: str | Path, *, head: str | None = None, task: str = "") -> LoadedEncoder:
    """Load an encoder; one from an engine folder comes without weights."""
    if not is_engine_folder(folder):
        return load_encoder(folder, head=head, task=task)
    opened = open_engine_folder(folder)
    config = opened.stored.config
    metadata = opened.stored.metadata
    if not isinstance(config, BertConfig):
        raise CheckpointError(f"{folder}: {describe_family(config)}, where an encoder is needed")
    hf_config = atomic.read_json(opened.path / CONFIG)
    tokenizer, _ = opened.tokenizers()
    return LoadedEncoder(
        config,
        {},
        tokenizer=tokenizer,
        labels=tuple(str(label) for label in metadata.get("labels", [])),
        problem_type=str(metadata.get("problem_type", "")),
        max_length=min(int(metadata.get("max_length", config.max_positions)), config.max_positions),
        model_type=str(hf_config.get("model_type")),
        hf_config=hf_config,
        metadata=read_task(opened.path, task) if task else opened.task,
        report=WeightReport(),
        digest="",
        path=opened.path,
    )


def _to_numpy(weights: Mapping[str, Tensor]) -> layout.Weights:
    return {name: tensor.numpy() for name, tensor in weights.items()}


# ---- choosing the backend


def encoder_backend(
    loaded: LoadedEncoder,
    build_torch: Callable[[], Bert],
    backend: str,
    precision: str | None,
    device: str,
    threads: int,
) -> Bert:
    """Encoder on the requested backend; `build_torch` is called where torch computes it."""
    _check_backend(backend, precision)
    if _uses_torch(backend, precision, device, unsupported_reason(loaded.config)):
        return build_torch()
    engine = EncoderEngine.from_weights(loaded.config, _to_numpy(loaded.weights), precision or "float32")
    engine.threads = threads
    return as_bert(SwitchingEncoder(engine, LazyProxy(build_torch, config=loaded.config)))


def causal_backend(
    loaded: LoadedCausalLM, build_torch: Callable[[], Gpt], backend: str, precision: str | None, device: str
) -> Gpt:
    """Causal language model on the requested backend; `build_torch` is called where torch computes it."""
    _check_backend(backend, precision)
    if _uses_torch(backend, precision, device, causal.unsupported_reason(loaded.config)):
        return build_torch()
    engine = causal.CausalEngine.from_weights(loaded.config, _to_numpy(loaded.weights), precision or "float32")
    return as_gpt(SwitchingCausalLM(engine, LazyProxy(build_torch, config=loaded.config)))


def translator_backends(
    opened: Sequence[OpenedTranslator], backend: str, precision: str | None, device: str
) -> list[TranslatorEngine]:
    """Engines of translators; none where torch computes.

    `auto` takes the engine where it can run the models; `engine` raises where it cannot. Without a precision each
    model has that of its folder.
    """
    _check_backend(backend, precision)
    for translator in opened:
        if translator.arrays and precision not in (None, translator.precision):
            raise UsageError(
                f"{translator.folder} holds {translator.precision} weights, {precision} was requested: "
                "leave out the precision"
            )
    reason = _torch_requested(backend) or _translator_unsupported_reason(opened, device)
    if _falls_back(reason, backend, precision):
        return []
    return [translator.engine(precision or translator.precision) for translator in opened]


def _check_backend(backend: str, precision: str | None) -> None:
    if backend not in BACKENDS:
        raise ConfigError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}{nearest(backend, BACKENDS)}")
    if precision is not None:
        check_precision(precision)


def _uses_torch(backend: str, precision: str | None, device: str, unsupported: str) -> bool:
    """Whether torch computes an encoder or a causal language model."""
    # With heads ablated, torch builds the model now, so that wrong site names raise before any text is read.
    if backend == "auto" and precision != "int8" and active_intervention() is not None:
        return True
    reason = _torch_requested(backend) or _device_unsupported_reason(device) or unsupported or unavailable_reason()
    return _falls_back(reason, backend, precision)


def _falls_back(reason: str, backend: str, precision: str | None) -> bool:
    """Whether torch computes for this reason; raise where only the engine could."""
    if reason and backend == "engine":
        raise UsageError(f"the engine cannot be used: {reason}")
    if reason and precision == "int8":
        raise UsageError(f"int8 is computed by the engine, which cannot be used: {reason}")
    return bool(reason)


def _torch_requested(backend: str) -> str:
    return "the torch backend was requested" if backend == "torch" else ""


def _device_unsupported_reason(device: str) -> str:
    return "" if device == "cpu" else f"it runs on CPUs, not on {device!r}"


def _translator_unsupported_reason(opened: Sequence[OpenedTranslator], device: str) -> str:
    """Why the engine cannot run these translators; empty where it can."""
    if reason := _device_unsupported_reason(device):
        return reason
    for translator in opened:
        config = translator.loaded.config
        if not isinstance(config, TransformerConfig):
            return "it computes Transformers; a recurrent model runs on torch"
        if reason := unsupported_transformer_reason(config):
            return reason
    return unavailable_reason()
