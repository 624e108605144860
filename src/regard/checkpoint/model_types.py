"""Model types of `config.json` that are read: those of Hugging Face, and `regard-…` for families only Regard has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.checkpoint.hf.causal import CAUSAL_TYPES
from regard.checkpoint.hf.encoder_decoders import ARCHITECTURES
from regard.checkpoint.hf.encoder_types import ENCODER_TYPES, NATIVE_TYPE
from regard.components import FAMILIES
from regard.errors import CheckpointError, nearest


def native_type(family: str) -> str:
    """Model type of a family in `config.json`.

    >>> native_type("memory_network")
    'regard-memory-network'
    """
    return f"regard-{family.replace('_', '-')}"


def native_family(model_type: object) -> str:
    """Family of a model type of our own; empty for another type, or for a family that is not known.

    >>> native_family("regard-memory-network"), native_family("bert")
    ('memory_network', '')
    """
    if not isinstance(model_type, str) or not model_type.startswith(native_type("")):
        return ""
    return next((family for family in FAMILIES if native_type(family) == model_type), "")


def known_model_types() -> list[str]:
    """All model types that are read, those of Hugging Face first."""
    hf_types = [*ENCODER_TYPES, *CAUSAL_TYPES, *ARCHITECTURES]
    return list(dict.fromkeys([*hf_types, NATIVE_TYPE, *(native_type(family) for family in FAMILIES)]))


def check_model_type(hf_config: Mapping[str, Any], where: str) -> None:
    """Raise for a model type that no loader reads.

    >>> check_model_type({"model_type": "roberto"}, "x")
    Traceback (most recent call last):
    regard.errors.CheckpointError: x: a model of type 'roberto', which is not read (did you mean roberta?): bert, ...
    """
    model_type = hf_config.get("model_type")
    known = known_model_types()
    if isinstance(model_type, str) and model_type in known:
        return
    problem = f"a model of type {model_type!r:.60}, which is not read" if model_type else "no model_type"
    suggestion = nearest(model_type, known) if isinstance(model_type, str) else ""
    raise CheckpointError(f"{where}: {problem}{suggestion}: {', '.join(known)} are")
