"""Every part of the block that can be chosen or left out, in all families: the engine computes what torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from regard.engine import layout
from regard.engine.causal import CausalEngine
from regard.engine.encoder import EncoderEngine
from regard.engine.translator import TranslatorEngine
from tests.engine.conftest import draw_sources, force_decode, translator
from tests.engine.test_causal import build_gpt, draw_prompts
from tests.engine.test_encoder import build_encoder, draw_texts, relative_error
from tests.parts import BASE, PARTS_OF_THE_ENGINE, Part, family_settings

LENGTHS = (5, 1, 17, 2, 9, 33, 4)
NUM_STEPS = 4
BUILDERS: dict[str, tuple[Callable[..., Any], type[Any]]] = {  # of a model and of its engine
    "transformer": (translator, TranslatorEngine),
    "bert": (build_encoder, EncoderEngine),
    "gpt": (build_gpt, CausalEngine),
}
BOUNDS = {"float32": 2e-5, "bf16": 0.03, "int8": 0.1}  # relative to the largest output, with dequantized weights


def compute(family: str, model: Any) -> np.ndarray:
    """Outputs of a torch model or of an engine: hidden states, or log-probabilities of several steps."""
    match family:
        case "bert":
            output: np.ndarray = model.encode(draw_texts(LENGTHS))
        case "gpt":
            output = force_decode(model, draw_prompts(), NUM_STEPS)
        case _:
            output = force_decode(model, draw_sources(model, LENGTHS), NUM_STEPS)
    return output


@torch.no_grad()
def shrink_matrices(model: torch.nn.Module) -> None:
    """Make weights smaller: without norms or residual connections, roundings of large ones grow with each layer."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(2 / 3)


def error_of_engine(family: str, settings: dict[str, Any], precision: str) -> float:
    """Relative error of the engine, whose rounded weights the torch model gets."""
    build, engine_class = BUILDERS[family]
    model = build(**family_settings(family, {**BASE, **settings}))
    if precision != "float32":
        shrink_matrices(model)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    arrays = layout.pack_weights(model.config, weights, precision)
    engine = engine_class(model.config, arrays, precision)
    dequantized = layout.unpack_weights(model.config, arrays, precision)
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in dequantized.items()})
    return relative_error(compute(family, engine), compute(family, model))


@pytest.mark.parametrize("precision", layout.PRECISIONS)
@pytest.mark.parametrize("family", BUILDERS)
@pytest.mark.parametrize("part", PARTS_OF_THE_ENGINE, ids=str)
def test_the_engine_computes_every_part(part: Part, family: str, precision: str) -> None:
    error = error_of_engine(family, part.settings, precision)
    assert error < BOUNDS[precision]
    assert precision == "float32" or error > 1e-6  # it is computed in that precision
