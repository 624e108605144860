"""`CausalEngine`: a causal language model in the engine, as a generator for the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.config.models import GptConfig
from regard.engine import layout
from regard.engine.base import EngineDecoder, EngineState, unsupported_stack_reason
from regard.engine.forced_decoding import force_decode, label_logprobs, vocabulary_logprobs
from regard.errors import UsageError
from regard.packed_tokens import Candidates, Ids, Tokens


def unsupported_reason(config: GptConfig) -> str:
    """Why the engine cannot run a causal language model; empty where it can.

    >>> unsupported_reason(GptConfig(eos_id=-1))
    'it needs an end-of-text token'
    """
    if config.eos_id < 0:
        return "it needs an end-of-text token"
    return unsupported_stack_reason(config.stack, config.positions)


@dataclass
class CausalEngineState:
    """State of the engine, with the last tokens of each row to read again when all positions are used."""

    engine_state: EngineState
    tokens: Ids  # [rows, length], the last ones read or generated, at most as many as there are positions
    length: int  # number of tokens of each row in the cache
    has_pending_token: bool  # whether the last token of the prompt is still to be read

    def select(self, rows: NDArray[np.int64]) -> CausalEngineState:
        """Keep the rows of these indices, in this order; rows may be dropped and repeated."""
        return CausalEngineState(
            self.engine_state.select(rows),
            self.tokens[rows],
            length=self.length,
            has_pending_token=self.has_pending_token,
        )


class CausalEngine(EngineDecoder[GptConfig]):
    """A causal language model in the engine, step for step as `models.gpt.Gpt`."""

    def __init__(
        self, config: GptConfig, arrays: Sequence[layout.Array], precision: str = "float32", instructions: str = ""
    ) -> None:
        """Create the model from arrays in the order of `array_specs`; `instructions` names an instruction set."""
        if reason := unsupported_reason(config):
            raise UsageError(f"the engine does not compute this model: {reason}")
        super().__init__(config, arrays, precision, instructions)

    # ---- interface of a generator

    @property
    def eos_id(self) -> int:
        return self.config.eos_id

    bos_id = pad_id = eos_id

    def start(self, source: Tokens, max_length: int) -> CausalEngineState:
        """Prefill prompts of equal length, at least one token; of longer ones than the model takes, the last tokens."""
        if len(set(source.lengths.tolist())) != 1 or not len(source.ids):
            raise UsageError("texts that are continued together must have equally many tokens, at least one")
        tokens = np.ascontiguousarray(source.ids, dtype=np.int32).reshape(len(source), -1)
        if tokens.shape[1] > self.config.max_positions:
            tokens = self._last_tokens(tokens)
        return self._prefill(tokens, has_pending_token=True)

    def read(self, tokens: Tokens) -> None:
        """Read sequences for the traces that are open."""
        for _ in force_decode(self, tokens):
            pass

    def next_token_logprobs(self, tokens: Tokens) -> NDArray[np.float32]:  # [tokens, vocabulary]
        """Log-probabilities of the vocabulary after each token; what an open trace captures."""
        return vocabulary_logprobs(self, tokens)

    def summed_loss(self, tokens: Tokens) -> float:
        """Cross-entropy of all tokens but the first of each sequence, in nats."""
        rows = [row for row in tokens if len(row) > 1]
        inputs = Tokens.from_rows([row[:-1] for row in rows])
        labels = Tokens.from_rows([row[1:] for row in rows])
        logprobs = label_logprobs(self, inputs, labels)
        return -sum(float(row_logprobs.sum(dtype=np.float64)) for row_logprobs in logprobs)

    def _last_tokens(self, tokens: Ids) -> Ids:
        """Tokens to read again when all positions are used: half as many as there are positions."""
        return tokens[:, -max(1, self.config.max_positions // 2) :]

    def _prefill(self, tokens: Ids, *, has_pending_token: bool) -> CausalEngineState:  # [rows, length]
        """Read all tokens but the last of each row into a new cache."""
        rows = len(tokens)
        length = tokens.shape[1] - 1
        ids = np.ascontiguousarray(tokens[:, :-1]).reshape(-1)
        offsets = (np.arange(rows + 1) * length).astype(np.int32)
        return CausalEngineState(
            self.start_state(ids, offsets), tokens, length=length, has_pending_token=has_pending_token
        )

    def step(self, tokens: Ids, state: CausalEngineState, k: int) -> tuple[Candidates, CausalEngineState]:
        """Append one token to each row; return its `k` best next tokens, or for k = 0 the whole vocabulary.

        The first step reads the last token of the prompt instead of the start token that it receives.
        """
        if state.has_pending_token:
            state.has_pending_token = False
        else:
            column = np.asarray(tokens, dtype=np.int32)[:, None]
            state.tokens = np.concatenate([state.tokens, column], axis=1)[:, -self.config.max_positions :]
        if state.length == self.config.max_positions:
            state = self._prefill(self._last_tokens(state.tokens), has_pending_token=False)
        candidates, _ = self.run_step(state.tokens[:, -1], state.engine_state, min(k, self.vocab_size), None)
        state.length += 1
        return candidates, state
