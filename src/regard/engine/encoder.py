"""`EncoderEngine`: BERT and its relatives in the engine: hidden states, embeddings of texts, logits of a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from regard.attention.trace import is_tracing
from regard.config.models import BertConfig
from regard.engine import layout
from regard.engine.base import EngineModel, unsupported_stack_reason
from regard.engine.library import CODES, pointer
from regard.errors import UsageError
from regard.packed_tokens import Ids, Tokens

Floats = NDArray[np.float32]
BATCH_TOKENS = 128  # that the library reads together
HEADS = ("plain", "label", "token", "span")  # that the engine computes
POOLINGS = ("first", "last", "mean")  # of a label head that the engine computes


def unsupported_reason(config: BertConfig) -> str:
    """Why the engine cannot run an encoder; empty where it can.

    >>> unsupported_reason(BertConfig(head="masked"))
    'it has no masked head'
    """
    if config.attention != "full":
        return "it has no block-sparse attention"
    if config.span_feed_forward:
        return "it has no feed-forward layer before a span head"
    if reason := unsupported_stack_reason(config.stack, config.positions):
        return reason
    if config.head_transform and config.head != "plain":
        return "it has no transform before a head"
    if config.positions == "sinusoidal" and config.embedding_size:
        return "it has no sinusoidal positions"
    if config.head == "label" and config.pooling not in POOLINGS:
        return f"it has no {config.pooling} pooling before a label head"
    return "" if config.head in HEADS else f"it has no {config.head} head"


def _check_supported(config: BertConfig) -> None:
    if reason := unsupported_reason(config):
        raise UsageError(f"the engine does not compute this encoder: {reason}")


class EncoderEngine(EngineModel[BertConfig]):
    """An encoder in the engine; the result of a text does not depend on the other texts of a batch."""

    def __init__(
        self,
        config: BertConfig,
        arrays: Sequence[layout.Array],
        precision: str = "float32",
        instructions: str = "",
        threads: int = 1,
    ) -> None:
        """Create the encoder from arrays in the order of `array_specs`; `instructions` names an instruction set."""
        _check_supported(config)
        head_specs = list(layout.head_specs(config))
        num_encoder_arrays = len(arrays) - 2 * len(head_specs)
        head_arrays = iter(arrays[num_encoder_arrays:])
        self.head_layers = {spec.name: (next(head_arrays), next(head_arrays)) for spec in head_specs}  # weight, bias
        super().__init__(config, arrays[:num_encoder_arrays], precision, instructions)
        self.threads = threads

    @classmethod
    def from_weights(
        cls, config: BertConfig, weights: layout.Weights, precision: str = "float32", instructions: str = ""
    ) -> Self:
        """Pack an encoder's float32 weights for the engine."""
        _check_supported(config)
        return super().from_weights(config, weights, precision, instructions)

    # ---- interface of `backends.EncoderBackend`

    @property
    def makes_batches(self) -> bool:
        """Whether `embed_texts` divides texts into batches; a traced batch is the caller's, which bounds its memory."""
        return not is_tracing()

    def encode(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:  # [tokens, hidden]
        """Hidden states of all tokens; `token_types` defaults to those of the batch."""
        return self._encode(tokens, token_types)

    def embed_texts(self, tokens: Tokens, pooling: Sequence[str] = ("mean",)) -> Floats:  # [texts, hidden · poolings]
        """Embedding of each text: mean or maximum of its hidden states, or the first one."""
        if is_tracing():  # captured rows are in the order of the texts
            return self._encode(tokens, None, pooling)
        order = fill_batches(tokens.lengths.tolist())
        ordered = Tokens.from_rows([tokens.row(index) for index in order])
        if tokens.token_types is not None:
            starts = tokens.offsets[:-1]
            stops = tokens.offsets[1:]
            token_types = [tokens.token_types[starts[index] : stops[index]] for index in order]
            ordered = Tokens(ordered.ids, ordered.offsets, np.concatenate(token_types))
        embeddings = np.empty((len(order), self.hidden_size * len(pooling)), np.float32)
        embeddings[order] = self._encode(ordered, None, pooling)
        return embeddings

    def pooler_output(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:  # [texts, hidden]
        """Pooler output of each text, from its pooled hidden states."""
        if "pooler" not in self.head_layers:
            raise UsageError("this encoder has no pooler")
        return self._pool(tokens, token_types)

    def logits(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:
        """Logits of the head: of texts [texts, labels], or of tokens [tokens, outputs] for tags and spans."""
        if not self.config.num_outputs:
            raise UsageError("a model without a head has hidden states, not logits")
        is_pooled = self.config.head == "label"
        hidden = self._pool(tokens, token_types) if is_pooled else self.encode(tokens, token_types)
        return self._apply_linear("classifier", hidden, self.config.num_outputs, CODES["activation"]["identity"])

    def _pool(self, tokens: Tokens, token_types: Ids | None) -> Floats:  # [texts, hidden]
        """One vector per text, by the kind of pooling; after the pooler where there is one."""
        kind = self.config.pooling if self.config.head == "label" else "first"
        if kind == "last":
            pooled = self._encode(tokens, token_types)[tokens.offsets[1:] - 1]
        else:
            pooled = self._encode(tokens, token_types, ("cls" if kind == "first" else kind,))
        if "pooler" not in self.head_layers:
            return pooled
        activation = CODES["activation"][self.config.pooler_activation]
        return self._apply_linear("pooler", pooled, self.hidden_size, activation)

    def _encode(self, tokens: Tokens, token_types: Ids | None, pooling: Sequence[str] = ()) -> Floats:
        max_length = int(tokens.lengths.max(initial=0))
        if max_length > self.config.max_positions:
            raise UsageError(f"a row has {max_length} tokens but the model takes {self.config.max_positions}: split it")
        if token_types is None:
            token_types = tokens.token_types
        if self.config.num_token_types <= 1:
            token_types = None
        return self.run_encoder(tokens, token_types, pooling, self.threads)

    def _apply_linear(self, name: str, hidden: Floats, num_outputs: int, activation: int) -> Floats:
        packed_weight, bias = self.head_layers[name]
        output = np.empty((len(hidden), num_outputs), np.float32)
        self.library.call(
            self.library.handle.regard_linear,
            self.instruction_set.encode(),
            pointer(hidden),
            len(hidden),
            self.hidden_size,
            pointer(packed_weight),
            packed_weight.nbytes,
            pointer(bias),
            len(bias),
            num_outputs,
            activation,
            pointer(output),
        )
        return output


def fill_batches(lengths: Sequence[int], max_tokens: int = BATCH_TOKENS) -> list[int]:
    """Order the indices of texts so that consecutive ones fill batches: the longest first, then the longest that fits.

    >>> fill_batches([3, 5, 2, 4, 1], max_tokens=6)
    [1, 4, 3, 2, 0]
    """
    waiting: list[list[int]] = [[] for _ in range(max_tokens + 1)]  # indices by length
    order: list[int] = []  # texts that fill a batch alone, or are empty, come first
    for index, length in enumerate(lengths):
        if 0 < length <= max_tokens:
            waiting[length].append(index)
        else:
            order.append(index)
    longest = max_tokens
    while True:
        while longest and not waiting[longest]:
            longest -= 1
        if not longest:
            return order
        remaining = max_tokens
        length = longest
        while length:
            order.append(waiting[length].pop(0))
            remaining -= length
            length = min(remaining, length)
            while length and not waiting[length]:
                length -= 1
