"""A small model of every family with attention, each with a function that computes something from fixed tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config.inference import DecodingConfig
from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.config.rnn_models import MemoryNetworkConfig, RnnClassifierConfig, RnnTextConfig, Seq2SeqConfig
from regard.decoding.search import search
from regard.models import build_model
from regard.models.base import Model
from regard.models.gpt import Gpt
from regard.models.memory_network import StoryBatch
from regard.models.text_classifier import TextBatch
from regard.packed_tokens import Tokens

VOCAB_SIZE = 23
STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=12)
SOURCE = Tokens.from_rows([[5, 6, 7, 8, 1], [9, 3, 1]])
LONG = Tokens.from_rows([[*range(3, 22)]])  # longer than what a block-sparse encoder attends to in full
Outputs = list[NDArray[np.floating]]


def made(config: object, seed: int = 1) -> Model:
    """A model with weights large enough that a mistake shows."""
    model: Model = build_model(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter.normal_(0, 0.4, generator=generator)
    return model.eval()


def transformer() -> Model:
    config = TransformerConfig(
        source_vocab_size=VOCAB_SIZE,
        target_vocab_size=VOCAB_SIZE,
        hidden_size=8,
        encoder=STACK,
        decoder=STACK,
        max_positions=40,
    )
    return made(config)


def seq2seq(**changes: object) -> Model:
    config = Seq2SeqConfig(source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, embedding_size=7, hidden_size=9)
    return made(config.override(changes))


def gpt() -> Model:
    return made(GptConfig(vocab_size=VOCAB_SIZE, hidden_size=8, stack=STACK, max_positions=24, positions="learned"))


def encoder(**changes: object) -> Model:
    config = BertConfig(vocab_size=VOCAB_SIZE, hidden_size=8, stack=STACK, max_positions=40)
    return made(config.override(changes))


def big_bird(**changes: object) -> Model:
    return encoder(attention="blocks", block_size=2, num_random_blocks=1, random_once=False, **changes)


def memory_network() -> Model:
    return made(
        MemoryNetworkConfig(vocab_size=VOCAB_SIZE, max_sentence_words=4, memory_size=5, embedding_size=6, hops=2)
    )


def classifier() -> Model:
    text_encoder = RnnTextConfig(vocab_size=VOCAB_SIZE, embedding_size=5, hidden_size=7)
    return made(RnnClassifierConfig(num_labels=3, encoder=text_encoder))


def generate(model: Model, beam: int) -> Outputs:
    """Ids and log-probability of each hypothesis of a search."""
    source = Tokens.from_rows([[5, 6, 7], [8, 9, 3]]) if isinstance(model, Gpt) else SOURCE
    beams = search(model, source, DecodingConfig(beam=beam), max_lengths=[6] * len(source))  # type: ignore[arg-type]
    return [np.array([*hypothesis.ids, hypothesis.logprob]) for hypotheses in beams for hypothesis in hypotheses]


def story_batch() -> StoryBatch:
    sentences = Tokens.from_rows([[2, 3], [4, 5, 6], [7]])
    return StoryBatch(Tokens.from_rows([[0, 1], [2]]), sentences, np.array([1, 0, 0]), np.array([2, 1]))


def states(model: Model) -> Outputs:
    return [model.encode(SOURCE), model.encode(LONG)]  # type: ignore[operator]


FAMILIES: dict[str, tuple[Callable[[], Model], Callable[[Model], Outputs]]] = {
    "transformer, greedy": (transformer, lambda model: generate(model, 1)),
    "transformer, beam": (transformer, lambda model: generate(model, 3)),
    "transformer, forced": (transformer, lambda model: [*model.target_logprobs(SOURCE, SOURCE)]),  # type: ignore[operator]
    "seq2seq, greedy": (seq2seq, lambda model: generate(model, 1)),
    "seq2seq, beam": (lambda: seq2seq(attention="dot", input_feeding="output"), lambda model: generate(model, 3)),
    "gpt, greedy": (gpt, lambda model: generate(model, 1)),
    "gpt, beam": (gpt, lambda model: generate(model, 3)),
    "encoder": (encoder, states),
    "encoder, packed": (lambda: encoder().pack(), states),  # type: ignore[operator]
    "big bird": (big_bird, states),
    "memory network": (
        memory_network,
        lambda model: [model.logits(model(story_batch())).detach().numpy()],  # type: ignore[operator]
    ),
    "classifier": (classifier, lambda model: [model.probabilities(TextBatch(SOURCE))]),  # type: ignore[operator]
}
