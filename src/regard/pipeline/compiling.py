"""Whether translators compute in the engine or in torch, and the engine's own folders of them."""

from __future__ import annotations

from collections.abc import Sequence

from regard.checkpoint.model_folder import LoadedModel
from regard.config.model import TranslatorConfig
from regard.engine.layout import PRECISIONS
from regard.engine.library import absence
from regard.engine.translator import Engine
from regard.errors import ConfigError, UsageError, nearest

BACKENDS = ("auto", "engine", "torch")


def compiled(loaded: Sequence[LoadedModel], backend: str, precision: str, device: str) -> list[Engine]:
    """Return the engines of models; none where torch is to compute.

    `auto` takes the engine where it is there and fits; `engine` says why it does not.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}{nearest(backend, BACKENDS)}")
    if precision not in PRECISIONS:
        raise ConfigError(
            f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}{nearest(precision, PRECISIONS)}"
        )
    why = "--backend torch was asked for" if backend == "torch" else _obstacle(loaded, device)
    if not why:
        return [_engine(one, precision) for one in loaded]
    if backend == "engine":
        raise UsageError(f"the engine cannot be used: {why}")
    if precision == "int8":
        raise UsageError(f"int8 is computed by the engine, which cannot be used: {why}")
    return []


def _obstacle(loaded: Sequence[LoadedModel], device: str) -> str:
    """Return why the engine cannot compute these models; nothing where it can."""
    if device != "cpu":
        return f"it computes on processors, not on {device!r}"
    if any(not isinstance(one.config, TranslatorConfig) for one in loaded):
        return "it computes Transformers; a recurrent model runs on torch"
    return absence()


def _engine(loaded: LoadedModel, precision: str) -> Engine:
    assert isinstance(loaded.config, TranslatorConfig)
    return Engine.of(loaded.config, {name: one.numpy() for name, one in loaded.weights.items()}, precision)
