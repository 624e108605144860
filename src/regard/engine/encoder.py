"""`EncoderEngine`: BERT and its relatives in the compiled library: states, vectors of texts, and scores of a head."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.config.model import EncoderConfig
from regard.engine import layout
from regard.engine.library import CODES, Shape, pointer
from regard.engine.model import CompiledModel, check_precision
from regard.errors import UsageError
from regard.tokens import Ids, Tokens

Floats = NDArray[np.float32]
TOGETHER = 128  # tokens that the library reads together
HEADS = ("plain", "label", "token", "span")  # that are computed here


def obstacle(config: EncoderConfig) -> str:
    """Return why the engine cannot compute an encoder; nothing where it can.

    >>> obstacle(EncoderConfig(head="masked"))
    'it has no masked head'
    """
    if config.attention != "full":
        return "it lets all tokens look at all, not blocks at blocks"
    if config.embedding or config.groups:
        return "it has neither words narrower than the states nor layers that share weights"
    if config.span_feedforward:
        return "it has no feed-forward part before a span head"
    if config.positions != "learned" or config.reach or config.gated or not (config.biases and config.first_norm):
        return "its places are learned, all layers look at whole rows, and nothing is gated or without bias"
    if config.transform and config.head != "plain":
        return "its heads score states as they are"
    return "" if config.head in HEADS else f"it has no {config.head} head"


def _check_fit(config: EncoderConfig) -> None:
    if why := obstacle(config):
        raise UsageError(f"the engine does not compute this encoder: {why}")


class EncoderEngine(CompiledModel):
    """An encoder that computes in the compiled library; a text's result does not depend on what is read beside it."""

    def __init__(
        self,
        config: EncoderConfig,
        arrays: Sequence[layout.Array],
        precision: str = "float32",
        instructions: str = "",
        threads: int = 1,
    ) -> None:
        """Take a config and the arrays of `layout.slots`; `instructions` chooses an instruction set."""
        _check_fit(config)
        self.heads = {}
        arrays = list(arrays)
        for part in reversed([*layout.heads(config)]):  # behind all that the library takes
            self.heads[part.name] = arrays[-2], arrays[-1]
            arrays = arrays[:-2]
        super().__init__(config, _shape(config, precision), arrays, precision, instructions)
        self.config, self.threads = config, threads

    @classmethod
    def of(
        cls, config: EncoderConfig, weights: layout.Weights, precision: str = "float32", instructions: str = ""
    ) -> EncoderEngine:
        """Return the engine of an encoder's weights under our names, float32."""
        check_precision(precision)
        _check_fit(config)
        return cls(config, layout.packed(config, weights, precision), precision, instructions)

    # the face of `models.encoder.Encoder`
    def encode(self, tokens: Tokens, types: Ids | None = None) -> Floats:
        """Return a state for each token, [N, D]; types are the tokens' segments where none are given."""
        return self._read(tokens, types)

    def vectors(self, tokens: Tokens, pooling: Sequence[str] = ("mean",)) -> Floats:
        """Return one vector for each text, [B, D · poolings]: the mean or maximum of its states, or the first one."""
        order = fitted(tokens.lengths.tolist())
        given = Tokens.from_rows([tokens.row(number) for number in order])
        segments = tokens.segments
        if segments is not None:
            parts = [segments[tokens.offsets[number] : tokens.offsets[number + 1]] for number in order]
            given = Tokens(given.ids, given.offsets, np.concatenate(parts))
        made = np.empty((len(order), self.width * len(pooling)), np.float32)
        made[order] = self._read(given, None, pooling)
        return made

    def pool(self, tokens: Tokens, types: Ids | None = None) -> Floats:
        """Return one state for each text, [B, D], of a model that has them."""
        if "pooler" not in self.heads:
            raise UsageError("this encoder has no state for a whole text")
        first = self._read(tokens, types, ("cls",))
        return self._linear("pooler", first, self.width, CODES["activation"][self.config.pooler_activation])

    def scores(self, tokens: Tokens, types: Ids | None = None) -> Floats:
        """Return the head's scores: of texts [B, …] for labels, of tokens [N, …] for token labels and spans."""
        if not self.config.outputs:
            raise UsageError("a model without a head gives states, not scores")
        states = self.pool(tokens, types) if self.config.head == "label" else self.encode(tokens, types)
        return self._linear("output", states, self.config.outputs, CODES["activation"]["identity"])

    def _read(self, tokens: Tokens, types: Ids | None, pooling: Sequence[str] = ()) -> Floats:
        longest = int(tokens.lengths.max(initial=0))
        if longest > self.config.places:
            raise UsageError(f"a row has {longest} tokens but the model takes {self.config.places}: split it")
        kinds = tokens.segments if types is None else types
        return self.read(tokens, kinds if self.config.types > 1 else None, pooling, self.threads)

    def _linear(self, name: str, rows: Floats, outputs: int, activation: int) -> Floats:
        packed, bias = self.heads[name]
        made = np.empty((len(rows), outputs), np.float32)
        self.library.checked(
            self.library.handle.regard_linear,
            *(self.instructions.encode(), pointer(rows), len(rows), self.width, pointer(packed), pointer(bias)),
            *(outputs, activation, pointer(made)),
        )
        return made


def fitted(lengths: Sequence[int], most: int = TOGETHER) -> list[int]:
    """Return the numbers of texts in an order in which they fill up what is read together.

    >>> fitted([3, 5, 2, 4, 1], most=6)
    [1, 4, 3, 2, 0]
    """
    waiting: list[list[int]] = [[] for _ in range(most + 1)]  # by length
    order: list[int] = []
    for number, length in enumerate(lengths):
        (waiting[length] if 0 < length <= most else order).append(number)
    longest = most
    while True:
        while longest and not waiting[longest]:
            longest -= 1
        if not longest:
            return order
        room = most
        length = longest
        while length:
            order.append(waiting[length].pop(0))
            room -= length
            length = min(room, length)
            while length and not waiting[length]:
                length -= 1


def _shape(config: EncoderConfig, precision: str) -> Shape:
    check_precision(precision)
    return Shape(
        hidden_size=config.width,
        encoder_layers=config.stack.layers,
        encoder_heads=config.stack.heads,
        encoder_feed_forward_size=config.stack.feedforward,
        source_vocab_size=config.vocabulary,
        max_positions=config.first_place + config.places,
        position_offset=config.first_place,
        num_token_types=config.types,
        precision=CODES["precision"][precision],
        activation=CODES["activation"][config.activation],
        positions=CODES["positions"]["learned"],
        pre_norm=config.norm == "before",
        embedding_norm=True,
        norm_eps=config.epsilon,
        embedding_scale=math.sqrt(config.width) if config.scale_embedding else 1.0,
    )
