"""A small model of every family with attention, each as a function that computes something from fixed tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config.decoding import DecodingConfig
from regard.config.gpt import GptConfig
from regard.config.model import (
    ClassifierConfig,
    EncoderConfig,
    MemoryConfig,
    ReaderConfig,
    RecurrentConfig,
    StackConfig,
    TranslatorConfig,
)
from regard.decoding.search import search
from regard.models import build
from regard.models.base import Model
from regard.models.memory_network import Told
from regard.models.reader import Texts
from regard.tokens import Tokens

VOCABULARY = 23
STACK = StackConfig(layers=2, heads=2, feedforward=12)
SOURCE = Tokens.from_rows([[5, 6, 7, 8, 1], [9, 3, 1]])
LONG = Tokens.from_rows([[*range(3, 22)]])  # longer than what a block-sparse encoder looks at as a whole
Answer = list[NDArray[np.floating]]


def made(config: object, seed: int = 1) -> Model:
    """A model with weights large enough that a mistake shows."""
    model: Model = build(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter.normal_(0, 0.4, generator=generator)
    return model.eval()


def translator() -> Model:
    config = TranslatorConfig(
        source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, width=8, encoder=STACK, decoder=STACK, places=40
    )
    return made(config)


def recurrent(**changes: object) -> Model:
    config = RecurrentConfig(source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, embedding=7, width=9)
    return made(config.override(changes))


def gpt() -> Model:
    return made(GptConfig(vocabulary=VOCABULARY, width=8, stack=STACK, places=24, positions="learned"))


def encoder(**changes: object) -> Model:
    config = EncoderConfig(vocabulary=VOCABULARY, width=8, stack=STACK, places=40)
    return made(config.override(changes))


def big_bird(**changes: object) -> Model:
    return encoder(attention="blocks", block=2, random_blocks=1, drawn=False, **changes)


def memory() -> Model:
    return made(MemoryConfig(vocabulary=VOCABULARY, longest=4, memory=5, width=6, hops=2))


def classifier() -> Model:
    reader = ReaderConfig(vocabulary=VOCABULARY, embedding=5, width=7)
    return made(ClassifierConfig(labels=3, encoder=reader))


def searched(model: Model, beam: int) -> Answer:
    """What a search writes, and how likely that is."""
    source = Tokens.from_rows([[5, 6, 7], [8, 9, 3]]) if hasattr(model, "stack") else SOURCE
    found = search(model, source, DecodingConfig(beam=beam), limits=[6] * len(source))  # type: ignore[arg-type]
    return [np.array([*one.ids, one.total]) for some in found for one in some]


def told() -> Told:
    sentences = Tokens.from_rows([[2, 3], [4, 5, 6], [7]])
    return Told(Tokens.from_rows([[0, 1], [2]]), sentences, np.array([1, 0, 0]), np.array([2, 1]))


def states(model: Model) -> Answer:
    return [model.encode(SOURCE), model.encode(LONG)]  # type: ignore[operator]


FAMILIES: dict[str, tuple[Callable[[], Model], Callable[[Model], Answer]]] = {
    "translator, greedy": (translator, lambda model: searched(model, 1)),
    "translator, beam": (translator, lambda model: searched(model, 3)),
    "translator, forced": (translator, lambda model: [*model.score_tokens(SOURCE, SOURCE)]),  # type: ignore[operator]
    "recurrent, greedy": (recurrent, lambda model: searched(model, 1)),
    "recurrent, beam": (lambda: recurrent(attention="dot", input_feeding="output"), lambda model: searched(model, 3)),
    "gpt, greedy": (gpt, lambda model: searched(model, 1)),
    "gpt, beam": (gpt, lambda model: searched(model, 3)),
    "encoder": (encoder, states),
    "encoder, packed": (lambda: encoder().pack(), states),  # type: ignore[operator]
    "big bird": (big_bird, states),
    "memory network": (memory, lambda model: [model.logits(model(told())).detach().numpy()]),  # type: ignore[operator]
    "classifier": (classifier, lambda model: [model.chances(Texts(SOURCE))]),  # type: ignore[operator]
}
