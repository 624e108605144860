"""What all models in the compiled library share: how one is made of arrays, and how it reads texts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.engine.layout import PRECISIONS, EngineConfig, slots
from regard.engine.layout import Array as Numbers
from regard.engine.library import CODES, Array, Library, Shape, chosen_instructions, library, pointer
from regard.errors import ConfigError, UsageError
from regard.tokens import Ids, Tokens


class CompiledModel:
    """A model that computes in the compiled library."""

    handle = 0  # until it is made

    def __init__(
        self, config: EngineConfig, shape: Shape, arrays: Sequence[Numbers], precision: str, instructions: str
    ) -> None:
        """Take arrays in the order of `layout.slots`; `instructions` chooses an instruction set."""
        self.library: Library = library()
        self.width = int(shape.hidden_size)
        self.vocabulary = int(shape.target_vocab_size)  # of what it writes; 0: nothing
        self.precision, self.instructions = precision, chosen_instructions(instructions)
        self.arrays = list(arrays)  # the library reads them where they are
        specs = [slot for slot in slots(config, precision) if slot.slot]  # without heads, which are computed apart
        entries = [
            Array(
                slot=CODES["slot"][spec.slot],
                part=CODES["part"][spec.part],
                layer=spec.layer,
                data=pointer(array),
                num_bytes=array.nbytes,
            )
            for spec, array in zip(specs, self.arrays, strict=True)
        ]
        table = (Array * len(entries))(*entries)
        self.handle = self.library.checked(
            self.library.handle.regard_model_new, ctypes.byref(shape), table, len(table), self.instructions.encode()
        )

    def __del__(self) -> None:
        if self.handle:
            self.library.handle.regard_model_free(self.handle)
            self.handle = 0

    def read(
        self, source: Tokens, types: Ids | None = None, pooling: Sequence[str] = (), threads: int = 1
    ) -> NDArray[np.float32]:
        """Return the states of all tokens, [N, D], or all poolings of each text side by side, [B, D · poolings]."""
        ids, offsets = plain(source)
        kinds = np.array([CODES["pooling"][one] for one in pooling], np.int32)
        told = None if types is None else np.ascontiguousarray(types, dtype=np.int32)
        if told is not None and len(told) != len(ids):
            raise UsageError(f"{len(ids)} tokens have {len(told)} types")
        made = np.empty((len(source), self.width * len(kinds)) if pooling else (len(ids), self.width), np.float32)
        calls = self.library
        calls.checked(
            calls.handle.regard_encode,
            *(self.handle, pointer(ids), None if told is None else pointer(told), pointer(offsets), len(source)),
            *(pointer(kinds), len(kinds), threads, pointer(made)),
        )
        return made


def plain(source: Tokens) -> tuple[Ids, Ids]:
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
