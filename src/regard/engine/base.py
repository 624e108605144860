"""What all models in the compiled library share: how one is made of arrays, and how it reads texts.

What all models that write in the compiled library share: their states, and a step of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.engine.layout import PRECISIONS, EngineConfig, array_specs
from regard.engine.layout import Array as Numbers
from regard.engine.library import CODES, CArray, CModelShape, Library, load_library, pointer, select_instruction_set
from regard.errors import ConfigError, UsageError
from regard.tokens import Candidates, Ids, Tokens


class EngineModel:
    """A model that computes in the compiled library."""

    handle = 0  # until it is made

    def __init__(
        self, config: EngineConfig, shape: CModelShape, arrays: Sequence[Numbers], precision: str, instructions: str
    ) -> None:
        """Take arrays in the order of `layout.slots`; `instructions` chooses an instruction set."""
        self.library: Library = load_library()
        self.hidden_size = int(shape.hidden_size)
        self.vocab_size = int(shape.target_vocab_size)  # of what it writes; 0: nothing
        self.precision, self.instructions = precision, select_instruction_set(instructions)
        self.arrays = list(arrays)  # the library reads them where they are
        specs = [
            slot for slot in array_specs(config, precision) if slot.slot
        ]  # without heads, which are computed apart
        entries = [
            CArray(
                slot=CODES["slot"][spec.slot],
                part=CODES["part"][spec.part],
                layer=spec.layer,
                data=pointer(array),
                num_bytes=array.nbytes,
            )
            for spec, array in zip(specs, self.arrays, strict=True)
        ]
        table = (CArray * len(entries))(*entries)
        self.handle = self.library.call(
            self.library.handle.regard_model_new, ctypes.byref(shape), table, len(table), self.instructions.encode()
        )

    def __del__(self) -> None:
        if self.handle:
            self.library.handle.regard_model_free(self.handle)
            self.handle = 0

    def run_encoder(
        self, source: Tokens, token_types: Ids | None = None, pooling: Sequence[str] = (), threads: int = 1
    ) -> NDArray[np.float32]:
        """Return the states of all tokens, [N, D], or all poolings of each text side by side, [B, D · poolings]."""
        ids, offsets = contiguous_ids(source)
        kinds = np.array([CODES["pooling"][one] for one in pooling], np.int32)
        told = None if token_types is None else np.ascontiguousarray(token_types, dtype=np.int32)
        if told is not None and len(told) != len(ids):
            raise UsageError(f"{len(ids)} tokens have {len(told)} types")
        made = np.empty(
            (len(source), self.hidden_size * len(kinds)) if pooling else (len(ids), self.hidden_size), np.float32
        )
        calls = self.library
        calls.call(
            calls.handle.regard_encode,
            *(self.handle, pointer(ids), None if told is None else pointer(told), pointer(offsets), len(source)),
            *(pointer(kinds), len(kinds), threads, pointer(made)),
        )
        return made


def contiguous_ids(source: Tokens) -> tuple[Ids, Ids]:
    """Return the numbers and offsets of tokens as the library takes them."""
    ids = np.ascontiguousarray(source.ids, dtype=np.int32)
    offsets = np.ascontiguousarray(source.offsets, dtype=np.int32)
    if len(source) == 0 or int(offsets[-1]) != len(ids):
        raise UsageError("the engine reads at least one source text, its tokens laid end to end")
    return ids, offsets


def check_precision(precision: str) -> None:
    """Raise for a precision that the library does not have."""
    if precision not in PRECISIONS:
        raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")


_NONE = np.zeros(1, np.int32)  # where nothing is asked for


class EngineState:
    """What the library remembers of texts being written; one row for each."""

    def __init__(self, engine: EngineDecoder, handle: int, rows: int) -> None:
        self.engine, self.handle, self.rows = engine, handle, rows

    def __del__(self) -> None:
        if self.handle:
            self.engine.library.handle.regard_state_free(self.handle)
            self.handle = 0

    def select(self, rows: NDArray[np.int64]) -> EngineState:
        """Return the rows with these numbers, in this order; rows may be dropped and repeated."""
        numbers = np.ascontiguousarray(rows, dtype=np.int64)
        calls = self.engine.library
        calls.call(calls.handle.regard_select_rows, self.handle, pointer(numbers), len(numbers))
        self.rows = len(numbers)
        return self


class EngineDecoder(EngineModel):
    """A model that writes one token after another."""

    def start_state(self, ids: Ids, offsets: Ids) -> EngineState:
        """Return the state after texts, laid end to end: one row for each."""
        calls, rows = self.library, len(offsets) - 1
        return EngineState(
            self, calls.call(calls.handle.regard_start, self.handle, pointer(ids), pointer(offsets), rows), rows
        )

    def run_step(
        self, tokens: Ids, state: EngineState, k: int, wanted: Ids | None
    ) -> tuple[Candidates, NDArray[np.float32]]:
        """Return the best next tokens of each row, given one more, and how likely a wanted one is (none: the end)."""
        given = np.ascontiguousarray(tokens, dtype=np.int32)
        rows = len(given)
        ids = np.empty((rows, k), np.int32) if k else _NONE
        logp = np.empty((rows, k or self.vocab_size), np.float32)
        told = np.empty(rows, np.float32)
        calls = self.library
        calls.call(
            calls.handle.regard_step,
            *(state.handle, pointer(given), rows, k, pointer(ids), pointer(logp)),
            *(None if wanted is None else pointer(wanted), pointer(told)),
        )
        if k:
            return Candidates(ids, logp, told), told
        every = np.broadcast_to(np.arange(self.vocab_size, dtype=np.int32), logp.shape)
        return Candidates(every, logp), told
