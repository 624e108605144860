"""`GptEngine`: a causal language model in the compiled library, as a generator that a search drives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.config.models import GptConfig
from regard.engine import layout
from regard.engine.base import EngineDecoder, EngineState, check_precision
from regard.engine.library import CODES, CModelShape
from regard.errors import UsageError
from regard.tokens import Candidates, Ids, Tokens


def obstacle(config: GptConfig) -> str:
    """Return why the engine cannot compute a causal language model; nothing where it can.

    >>> obstacle(GptConfig(eos_id=-1))
    'it writes texts that have an end'
    """
    return "it writes texts that have an end" if config.eos_id < 0 else ""


@dataclass
class CausalEngineState:
    """What generation remembers: the library's state, and the last tokens themselves."""

    held: EngineState
    tokens: Ids  # [R, T], the last ones read or written, as many as the model takes
    read: int  # how many tokens of each row the library has read
    has_pending_token: bool  # whether the last of them is still to be read

    def select(self, rows: NDArray[np.int64]) -> CausalEngineState:
        """Return the rows with these numbers, in this order; rows may be dropped and repeated."""
        return CausalEngineState(self.held.select(rows), self.tokens[rows], self.read, self.has_pending_token)


class CausalEngine(EngineDecoder):
    """A causal language model that computes in the compiled library, step for step as `models.gpt.Gpt` does."""

    def __init__(
        self, config: GptConfig, arrays: Sequence[layout.Array], precision: str = "float32", instructions: str = ""
    ) -> None:
        """Take a config and the arrays of `layout.slots`; `instructions` chooses an instruction set."""
        if why := obstacle(config):
            raise UsageError(f"the engine does not compute this model: {why}")
        super().__init__(config, _shape(config, precision), arrays, precision, instructions)
        self.config = config

    @classmethod
    def of(
        cls, config: GptConfig, weights: layout.Weights, precision: str = "float32", instructions: str = ""
    ) -> CausalEngine:
        """Return the engine of a model's weights under our names, float32."""
        check_precision(precision)
        return cls(config, layout.pack_weights(config, weights, precision), precision, instructions)

    # the generator's face
    @property
    def eos_id(self) -> int:
        return self.config.eos_id

    bos_id = pad_id = eos_id

    def start(self, source: Tokens, room: int) -> CausalEngineState:
        """Return the state before the first token to be written: the source texts are what is continued.

        All have equally many tokens, at least one; of more than the model takes, the last are read.
        """
        if len(set(source.lengths.tolist())) != 1 or not len(source.ids):
            raise UsageError("texts that are continued together must have equally many tokens, at least one")
        tokens = np.ascontiguousarray(source.ids, dtype=np.int32).reshape(len(source), -1)
        if tokens.shape[1] > self.config.max_positions:
            tokens = self._last(tokens)
        return self._read(tokens, waiting=True)

    def _last(self, tokens: Ids) -> Ids:
        """Return the tokens that are read again where there is no place for one more: half of what the model takes."""
        return tokens[:, -max(1, self.config.max_positions // 2) :]

    def _read(self, tokens: Ids, *, waiting: bool) -> CausalEngineState:
        """Return the state in which all but the last of tokens [R, T] are read."""
        count, length = len(tokens), tokens.shape[1] - 1
        ids = np.ascontiguousarray(tokens[:, :-1]).reshape(-1)
        offsets = (np.arange(count + 1) * length).astype(np.int32)
        return CausalEngineState(self.start_state(ids, offsets), tokens, length, waiting)

    def step(self, tokens: Ids, state: CausalEngineState, k: int) -> tuple[Candidates, CausalEngineState]:
        """Return the best next tokens for each row, given one more token of each; k = 0: all log-probabilities.

        The first step reads the last token of what is continued instead of the start that it is given.
        """
        if state.has_pending_token:
            state.has_pending_token = False
        else:
            given = np.asarray(tokens, dtype=np.int32)[:, None]
            state.tokens = np.concatenate([state.tokens, given], axis=1)[:, -self.config.max_positions :]
        if state.read == self.config.max_positions:
            state = self._read(self._last(state.tokens), waiting=False)
        found, _ = self.run_step(state.tokens[:, -1], state.held, min(k, self.vocab_size), None)
        state.read += 1
        return found, state


def _shape(config: GptConfig, precision: str) -> CModelShape:
    check_precision(precision)
    return CModelShape(
        hidden_size=config.hidden_size,
        decoder_layers=config.stack.num_layers,
        decoder_heads=config.stack.num_heads,
        decoder_feed_forward_size=config.stack.feed_forward_size,
        target_vocab_size=config.vocab_size,
        max_positions=config.max_positions,
        precision=CODES["precision"][precision],
        activation=CODES["activation"][config.activation],
        positions=CODES["positions"][config.positions],
        pre_norm=True,
        eos_id=config.eos_id,
        norm_eps=config.norm_eps,
        embedding_scale=1.0,
    )
