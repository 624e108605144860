"""What all models that write in the compiled library share: their states, and a step of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regard.engine.library import pointer
from regard.engine.model import CompiledModel
from regard.tokens import Candidates, Ids

_NONE = np.zeros(1, np.int32)  # where nothing is asked for


class EngineState:
    """What the library remembers of texts being written; one row for each."""

    def __init__(self, engine: CompiledWriter, handle: int, rows: int) -> None:
        self.engine, self.handle, self.rows = engine, handle, rows

    def __del__(self) -> None:
        if self.handle:
            self.engine.library.handle.regard_state_free(self.handle)
            self.handle = 0

    def select(self, rows: NDArray[np.int64]) -> EngineState:
        """Return the rows with these numbers, in this order; rows may be dropped and repeated."""
        numbers = np.ascontiguousarray(rows, dtype=np.int64)
        calls = self.engine.library
        calls.checked(calls.handle.regard_select_rows, self.handle, pointer(numbers), len(numbers))
        self.rows = len(numbers)
        return self


class CompiledWriter(CompiledModel):
    """A model that writes one token after another."""

    def opened(self, ids: Ids, offsets: Ids) -> EngineState:
        """Return the state after texts, laid end to end: one row for each."""
        calls, rows = self.library, len(offsets) - 1
        return EngineState(
            self, calls.checked(calls.handle.regard_start, self.handle, pointer(ids), pointer(offsets), rows), rows
        )

    def stepped(
        self, tokens: Ids, state: EngineState, k: int, wanted: Ids | None
    ) -> tuple[Candidates, NDArray[np.float32]]:
        """Return the best next tokens of each row, given one more, and how likely a wanted one is (none: the end)."""
        given = np.ascontiguousarray(tokens, dtype=np.int32)
        rows = len(given)
        ids = np.empty((rows, k), np.int32) if k else _NONE
        logp = np.empty((rows, k or self.vocabulary), np.float32)
        told = np.empty(rows, np.float32)
        calls = self.library
        calls.checked(
            calls.handle.regard_step,
            *(state.handle, pointer(given), rows, k, pointer(ids), pointer(logp)),
            *(None if wanted is None else pointer(wanted), pointer(told)),
        )
        if k:
            return Candidates(ids, logp, told), told
        every = np.broadcast_to(np.arange(self.vocabulary, dtype=np.int32), logp.shape)
        return Candidates(every, logp), told
