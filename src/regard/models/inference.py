"""Torch models for inference: number of threads, dtype and device, ablated heads, use after a fork."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention.intervention import active_intervention
from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.config.rnn_models import Seq2SeqConfig
from regard.errors import ConfigError
from regard.hardware import available_cores
from regard.models import build_model
from regard.models.base import Model, ModelT, Packable, move_to_device

PackableConfig = TransformerConfig | Seq2SeqConfig | BertConfig | GptConfig
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


def configure_torch(precision: str, threads: int) -> torch.dtype:
    """Set the number of torch threads (0: all cores); return the dtype of a precision.

    >>> configure_torch("float32", threads=1)
    torch.float32
    """
    if precision not in DTYPES:
        raise ConfigError(f"precision must be one of {', '.join(DTYPES)}, not {precision!r}")
    _allow_forks()
    torch.set_num_threads(threads or available_cores())
    return DTYPES[precision]


@cache
def _allow_forks() -> None:
    """Let forked processes compute with one thread: OpenMP would wait for threads that only the parent has."""
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def prepare_for_inference(model: ModelT, device: str, dtype: torch.dtype) -> ModelT:
    """Move a model to its device in evaluation mode; ablated heads must exist in it."""
    check_ablation(model)
    return move_to_device(model, device, dtype).eval()


def check_ablation(model: Model) -> None:
    """Raise where a head that is ablated now does not exist in the model."""
    intervention = active_intervention()
    if intervention is not None:
        intervention.check(model.attention_sites())


def build_for_inference(
    config: PackableConfig, arrays: Mapping[str, NDArray[np.float32]], *, device: str, precision: str, threads: int
) -> Any:
    """Build a model from a config and its weights, prepacked for inference."""
    dtype = configure_torch(precision, threads)
    model: Packable = build_model(config)
    model.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    return prepare_for_inference(model, device, dtype).pack()
