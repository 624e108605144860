"""What models in the engine share: `EngineModel` encodes texts, `EngineDecoder` also generates tokens."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.backends import PositionCodes
from regard.cancellation import check_cancelled
from regard.config.models import BIAS_POSITIONS, StackConfig
from regard.engine.capture import RowHeads, RowMask, store_call
from regard.engine.description import describe_model, model_shape
from regard.engine.layout import PRECISIONS, Array, Model, Weights, array_specs, pack_weights
from regard.engine.library import CODES, CArray, Library, load_library, pointer, select_instruction_set
from regard.engine.positions import position_codes, rotary_codes
from regard.engine.sites import AttentionOptions, SiteArrays, engine_sites, group_sites, traced_sites
from regard.errors import ConfigError, UsageError, nearest
from regard.packed_tokens import Candidates, Ids, Tokens

ModelT = TypeVar("ModelT", bound=Model)
_NO_IDS = np.zeros(1, np.int32)  # passed where the library returns no token ids


def unsupported_stack_reason(stack: StackConfig, positions: str) -> str:
    """Why the engine cannot run a stack of blocks with a positional scheme; empty where it can.

    >>> unsupported_stack_reason(StackConfig(attention_normalization="sparsemax"), "learned")
    'it has no sparsemax attention'
    """
    if positions not in CODES["positions"]:
        return f"it has no {positions} positions"
    if stack.attention_normalization != "softmax":
        return f"it has no {stack.attention_normalization} attention"
    if stack.attention_temperature != 1 and positions in BIAS_POSITIONS:
        return f"it has no attention_temperature with {positions} positions"
    return ""


class EngineModel(Generic[ModelT]):
    """A model that computes in the engine."""

    handle = 0  # until the library has created the model

    def __init__(
        self, config: ModelT, arrays: Sequence[Array], precision: str = "float32", instructions: str = ""
    ) -> None:
        """Create the model from arrays in the order of `array_specs`; `instructions` names an instruction set."""
        check_precision(precision)
        self.config = config
        self.library: Library = load_library()
        shape = model_shape(config, precision)
        description = describe_model(config)
        self.hidden_size = description.hidden_size
        self.vocab_size = int(shape.target_vocab_size)  # of generated tokens; 0 for an encoder
        self.precision = precision
        self.instruction_set = select_instruction_set(instructions)
        self.arrays = [np.ascontiguousarray(array) for array in arrays]  # kept alive: the library reads them in place
        # An encoder's head has no slot: `regard_linear` computes it separately.
        specs = [spec for spec in array_specs(config, precision) if spec.slot]
        if len(specs) != len(self.arrays):
            raise UsageError(f"the model needs {len(specs)} arrays, {len(self.arrays)} were passed")
        self.description = description
        self.tables = {
            (spec.slot, spec.layer): array
            for spec, array in zip(specs, self.arrays, strict=True)
            if spec.slot.endswith(("_positions", "_relative_bias"))
        }  # learned positions and relative biases
        self.sites = engine_sites(description, self.tables)
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
            self.library.handle.regard_model_new, ctypes.byref(shape), table, len(table), self.instruction_set.encode()
        )

    @classmethod
    def from_weights(cls, config: ModelT, weights: Weights, precision: str = "float32", instructions: str = "") -> Self:
        """Pack a model's float32 weights for the engine."""
        check_precision(precision)
        return cls(config, pack_weights(config, weights, precision), precision, instructions)

    def __del__(self) -> None:
        if self.handle:
            self.library.handle.regard_model_free(self.handle)
            self.handle = 0

    def attention_sites(self) -> dict[str, int]:
        """Attention sites of the model, first layer first, with their number of heads."""
        return {site.name: site.num_heads for site in self.sites}

    @property
    def backend_name(self) -> str:
        """What computes the model, and in which precision."""
        return f"engine {self.precision}"

    def position_codes(self, count: int, side: str = "source") -> PositionCodes | None:
        """Codes of the first positions: of the embeddings of a side, or of a head with rotary positions."""
        model = self.description
        stack = model.encoder if side == "source" else model.decoder
        assert stack is not None
        offset = model.position_offset if side == "source" else 0
        width = (model.embedding_size if side == "source" else 0) or self.hidden_size
        table = self.tables.get((f"{side}_positions", 0), np.zeros((0, width), np.float32))
        codes = position_codes(model.positions, table, range(offset, offset + count))
        return rotary_codes(stack, range(count)) if codes is None else codes

    def run_encoder(
        self, source: Tokens, token_types: Ids | None = None, pooling: Sequence[str] = (), threads: int = 1
    ) -> NDArray[np.float32]:
        """Hidden states of all tokens [tokens, hidden], or the poolings of each text [texts, hidden · poolings].

        An active trace captures attention beside it, an active intervention ablates heads.
        """
        check_cancelled()
        ids, offsets = contiguous_ids(source)
        if token_types is not None:
            token_types = to_int32(token_types, "token types")
            if len(token_types) != len(ids):
                raise UsageError(f"{len(ids)} tokens have {len(token_types)} types")
        pooling_codes = np.array([CODES["pooling"][name] for name in pooling], np.int32)
        if pooling:
            output = np.empty((len(source), self.hidden_size * len(pooling)), np.float32)
        else:
            output = np.empty((len(ids), self.hidden_size), np.float32)
        sites = [site for site in self.sites if site.kind == "encoder_self"]
        for group in group_sites(traced_sites(sites), len(ids)):
            captures = [SiteArrays(site, len(ids), len(ids)) for site in group]
            options = AttentionOptions(sites, captures)
            self.library.call(
                self.library.handle.regard_encode,
                self.handle,
                pointer(ids),
                None if token_types is None else pointer(token_types),
                pointer(offsets),
                len(source),
                pointer(pooling_codes),
                len(pooling_codes),
                threads,
                options.argument,
                pointer(output),
            )
            store_encoder_captures(captures, offsets)
        return output


def store_encoder_captures(captures: Sequence[SiteArrays], offsets: Ids) -> None:
    """Give active traces what was captured of packed texts, each of which attends to itself."""
    masks: dict[tuple[int, bool], RowMask] = {}  # by window and direction: layers share them
    ranges = [slice(start, stop) for start, stop in itertools.pairwise(offsets.tolist())]
    for capture in captures:
        window = capture.site.settings.window
        is_causal = capture.site.is_causal
        if (window, is_causal) not in masks:
            lengths = [(text.stop - text.start, text.stop - text.start, 0) for text in ranges]
            masks[window, is_causal] = RowMask(lengths, window=window, is_causal=is_causal)
        rows = [
            RowHeads(capture.query[text], capture.key[text], None if capture.value is None else capture.value[text])
            for text in ranges
        ]
        store_call(capture.site, rows, masks[window, is_causal])


def contiguous_ids(source: Tokens) -> tuple[Ids, Ids]:
    """Ids and offsets of packed tokens as contiguous int32 arrays."""
    ids = to_int32(source.ids, "token ids")
    offsets = to_int32(source.offsets, "offsets")
    if len(offsets) < 2 or int(offsets[-1]) != len(ids):
        raise UsageError("the engine reads at least one source text, its tokens packed end to end")
    return ids, offsets


def to_int32(values: NDArray[Any], name: str, max_dims: int = 1) -> Ids:
    """A contiguous array of 32-bit integers; larger ones are rejected, not cut.

    >>> to_int32(np.array([7, 1 << 32]), "token ids")
    Traceback (most recent call last):
    regard.errors.UsageError: token ids must be 32-bit integers, not up to 4294967296
    """
    array = np.asarray(values)
    if not 1 <= array.ndim <= max_dims:
        raise UsageError(f"{name} must have at most {max_dims} dimensions, not the shape {array.shape}")
    if array.dtype != np.int32 and array.size:
        if array.dtype.kind not in "iu":
            raise UsageError(f"{name} must be 32-bit integers, not {array.dtype}")
        for bound in (int(array.min()), int(array.max())):
            if not -(1 << 31) <= bound < 1 << 31:
                raise UsageError(f"{name} must be 32-bit integers, not up to {bound}")
    return np.ascontiguousarray(array, dtype=np.int32)


def check_precision(precision: str) -> None:
    """Raise for a precision that the engine does not have."""
    if precision not in PRECISIONS:
        raise ConfigError(
            f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}{nearest(precision, PRECISIONS)}"
        )


class EngineState:
    """State of the library for texts being generated, one row each: caches of keys and values."""

    def __init__(self, engine: EngineDecoder[Any], handle: int, rows: int) -> None:
        self.engine = engine
        self.handle = handle
        self.rows = rows

    def __del__(self) -> None:
        if self.handle:
            self.engine.library.handle.regard_state_free(self.handle)
            self.handle = 0

    def select(self, rows: NDArray[np.int64]) -> EngineState:
        """Keep the rows of these indices, in this order; rows may be dropped and repeated."""
        indices = np.ascontiguousarray(rows, dtype=np.int64)
        library = self.engine.library
        library.call(library.handle.regard_select_rows, self.handle, pointer(indices), len(indices))
        self.rows = len(indices)
        return self


class EngineDecoder(EngineModel[ModelT]):
    """A model that generates one token after another. An active intervention ablates heads."""

    @property
    def eos_id(self) -> int:
        """End-of-sequence token."""
        return self.description.eos_id

    def position_codes(self, count: int, side: str = "target") -> PositionCodes | None:
        """Codes of the first positions: of the embeddings of a side, or of a head with rotary positions."""
        return super().position_codes(count, side)

    def start_state(self, ids: Ids, offsets: Ids, captures: Sequence[SiteArrays] = ()) -> EngineState:
        """State after prefilling packed texts, one row for each."""
        rows = len(offsets) - 1
        options = AttentionOptions(self.sites, captures)
        handle = self.library.call(
            self.library.handle.regard_start, self.handle, pointer(ids), pointer(offsets), rows, options.argument
        )
        return EngineState(self, handle, rows)

    def run_step(
        self, tokens: Ids, state: EngineState, k: int, targets: Ids | None, captures: Sequence[SiteArrays] = ()
    ) -> tuple[Candidates, NDArray[np.float32]]:
        """Append tokens [rows] or [rows, tokens]; return the `k` best next ones of each, and its target's logprob.

        `k` = 0 returns the whole vocabulary. Without targets it is the logprob of the end.
        """
        input_ids = to_int32(tokens, "tokens", max_dims=2)
        rows = len(input_ids)
        count = input_ids.size
        if not rows or not count:
            raise UsageError("a step needs at least one token")
        if not 0 <= k <= self.vocab_size:
            raise UsageError(f"k must be from 0 to {self.vocab_size}, not {k}")
        if targets is not None:
            targets = to_int32(targets, "targets", max_dims=2)
            if targets.shape != input_ids.shape:
                raise UsageError(f"{count} tokens have {targets.size} targets")
        ids = np.empty((count, k), np.int32) if k else _NO_IDS
        logprobs = np.empty((count, k or self.vocab_size), np.float32)
        target_logprobs = np.empty(count, np.float32)
        options = AttentionOptions(self.sites, captures)
        self.library.call(
            self.library.handle.regard_step,
            state.handle,
            pointer(input_ids),
            rows,
            count // rows,
            k,
            pointer(ids),
            pointer(logprobs),
            None if targets is None else pointer(targets),
            pointer(target_logprobs),
            options.argument,
        )
        if k:
            return Candidates(ids, logprobs, target_logprobs), target_logprobs
        all_ids = np.broadcast_to(np.arange(self.vocab_size, dtype=np.int32), logprobs.shape)
        return Candidates(all_ids, logprobs), target_logprobs
