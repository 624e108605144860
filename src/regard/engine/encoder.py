"""`EncoderEngine`: BERT and its relatives in the compiled library: states, vectors of texts, and scores of a head."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.config.models import BertConfig
from regard.engine import layout
from regard.engine.base import EngineModel, check_precision
from regard.engine.library import CODES, CModelShape, pointer
from regard.errors import UsageError
from regard.tokens import Ids, Tokens

Floats = NDArray[np.float32]
TOGETHER = 128  # tokens that the library reads together
HEADS = ("plain", "label", "token", "span")  # that are computed here


def obstacle(config: BertConfig) -> str:
    """Return why the engine cannot compute an encoder; nothing where it can.

    >>> obstacle(BertConfig(head="masked"))
    'it has no masked head'
    """
    if config.attention != "full":
        return "it lets all tokens look at all, not blocks at blocks"
    if config.embedding_size or config.layer_groups:
        return "it has neither words narrower than the states nor layers that share weights"
    if config.span_feed_forward:
        return "it has no feed-forward part before a span head"
    if (
        config.positions != "learned"
        or config.attention_window
        or config.gated
        or not (config.bias and config.first_attention_norm)
    ):
        return "its places are learned, all layers look at whole rows, and nothing is gated or without bias"
    if config.head_transform and config.head != "plain":
        return "its heads score states as they are"
    return "" if config.head in HEADS else f"it has no {config.head} head"


def _check_fit(config: BertConfig) -> None:
    if why := obstacle(config):
        raise UsageError(f"the engine does not compute this encoder: {why}")


class EncoderEngine(EngineModel):
    """An encoder that computes in the compiled library; a text's result does not depend on what is read beside it."""

    def __init__(
        self,
        config: BertConfig,
        arrays: Sequence[layout.Array],
        precision: str = "float32",
        instructions: str = "",
        threads: int = 1,
    ) -> None:
        """Take a config and the arrays of `layout.slots`; `instructions` chooses an instruction set."""
        _check_fit(config)
        self.heads = {}
        arrays = list(arrays)
        for part in reversed([*layout.head_specs(config)]):  # behind all that the library takes
            self.heads[part.name] = arrays[-2], arrays[-1]
            arrays = arrays[:-2]
        super().__init__(config, _shape(config, precision), arrays, precision, instructions)
        self.config, self.threads = config, threads

    @classmethod
    def from_weights(
        cls, config: BertConfig, weights: layout.Weights, precision: str = "float32", instructions: str = ""
    ) -> EncoderEngine:
        """Return the engine of an encoder's weights under our names, float32."""
        check_precision(precision)
        _check_fit(config)
        return cls(config, layout.pack_weights(config, weights, precision), precision, instructions)

    # the face of `models.encoder.Encoder`
    def encode(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:
        """Return a state for each token, [N, D]; types are the tokens' segments where none are given."""
        return self._read(tokens, token_types)

    def embed_texts(self, tokens: Tokens, pooling: Sequence[str] = ("mean",)) -> Floats:
        """Return one vector for each text, [B, D · poolings]: the mean or maximum of its states, or the first one."""
        order = fill_batches(tokens.lengths.tolist())
        given = Tokens.from_rows([tokens.row(number) for number in order])
        segments = tokens.token_types
        if segments is not None:
            parts = [segments[tokens.offsets[number] : tokens.offsets[number + 1]] for number in order]
            given = Tokens(given.ids, given.offsets, np.concatenate(parts))
        made = np.empty((len(order), self.hidden_size * len(pooling)), np.float32)
        made[order] = self._read(given, None, pooling)
        return made

    def pooler_output(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:
        """Return one state for each text, [B, D], of a model that has them."""
        if "pooler" not in self.heads:
            raise UsageError("this encoder has no state for a whole text")
        first = self._read(tokens, token_types, ("cls",))
        return self._linear("pooler", first, self.hidden_size, CODES["activation"][self.config.pooler_activation])

    def logits(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:
        """Return the head's scores: of texts [B, …] for labels, of tokens [N, …] for token labels and spans."""
        if not self.config.num_outputs:
            raise UsageError("a model without a head gives states, not scores")
        states = (
            self.pooler_output(tokens, token_types) if self.config.head == "label" else self.encode(tokens, token_types)
        )
        return self._linear("output", states, self.config.num_outputs, CODES["activation"]["identity"])

    def _read(self, tokens: Tokens, token_types: Ids | None, pooling: Sequence[str] = ()) -> Floats:
        longest = int(tokens.lengths.max(initial=0))
        if longest > self.config.max_positions:
            raise UsageError(f"a row has {longest} tokens but the model takes {self.config.max_positions}: split it")
        kinds = tokens.token_types if token_types is None else token_types
        return self.run_encoder(tokens, kinds if self.config.num_token_types > 1 else None, pooling, self.threads)

    def _linear(self, name: str, rows: Floats, outputs: int, activation: int) -> Floats:
        packed, bias = self.heads[name]
        made = np.empty((len(rows), outputs), np.float32)
        self.library.call(
            self.library.handle.regard_linear,
            *(self.instructions.encode(), pointer(rows), len(rows), self.hidden_size, pointer(packed), pointer(bias)),
            *(outputs, activation, pointer(made)),
        )
        return made


def fill_batches(lengths: Sequence[int], max_tokens: int = TOGETHER) -> list[int]:
    """Return the numbers of texts in an order in which they fill up what is read together.

    >>> fill_batches([3, 5, 2, 4, 1], max_tokens=6)
    [1, 4, 3, 2, 0]
    """
    waiting: list[list[int]] = [[] for _ in range(max_tokens + 1)]  # by length
    order: list[int] = []
    for number, length in enumerate(lengths):
        (waiting[length] if 0 < length <= max_tokens else order).append(number)
    longest = max_tokens
    while True:
        while longest and not waiting[longest]:
            longest -= 1
        if not longest:
            return order
        room = max_tokens
        length = longest
        while length:
            order.append(waiting[length].pop(0))
            room -= length
            length = min(room, length)
            while length and not waiting[length]:
                length -= 1


def _shape(config: BertConfig, precision: str) -> CModelShape:
    check_precision(precision)
    return CModelShape(
        hidden_size=config.hidden_size,
        encoder_layers=config.stack.num_layers,
        encoder_heads=config.stack.num_heads,
        encoder_feed_forward_size=config.stack.feed_forward_size,
        source_vocab_size=config.vocab_size,
        max_positions=config.position_offset + config.max_positions,
        position_offset=config.position_offset,
        num_token_types=config.num_token_types,
        precision=CODES["precision"][precision],
        activation=CODES["activation"][config.activation],
        positions=CODES["positions"]["learned"],
        pre_norm=config.norm == "before",
        embedding_norm=True,
        norm_eps=config.norm_eps,
        embedding_scale=math.sqrt(config.hidden_size) if config.scale_embedding else 1.0,
    )
