"""The shared library of the engine: loading, the C interface as ctypes declarations, and calls."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from regard.errors import ConfigError, UsageError

FILE = Path(__file__).with_name("regard_engine.so")
ABI_VERSION = 11  # of `regard_engine.h`, whose names this module mirrors
INSTALL = "install a C++ compiler (Debian: apt install g++ cmake) and repeat `make setup` or `pip install`"
INSTRUCTIONS_VARIABLE = "REGARD_INSTRUCTIONS"  # environment variable that chooses an instruction set
_ERROR_SIZE = 512  # bytes of an error message

_Pointer = ctypes.c_void_p
_Int = ctypes.c_int32
_Long = ctypes.c_int64
_Text = ctypes.c_char_p
_Error = (_Text, _Long)  # last arguments of functions that can fail: buffer for the message, its size
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {  # function → result type, argument types
    "regard_abi_version": (_Int, ()),
    "regard_instruction_sets": (_Text, ()),
    "regard_packed_bytes": (_Long, (_Long, _Long, _Int)),
    "regard_pack_weights": (_Int, (_Pointer, _Long, _Long, _Int, _Pointer, _Pointer, _Pointer)),
    "regard_model_new": (_Pointer, (_Pointer, _Pointer, _Long, _Text, *_Error)),
    "regard_model_free": (None, (_Pointer,)),
    "regard_start": (_Pointer, (_Pointer, _Pointer, _Pointer, _Long, _Pointer, *_Error)),
    "regard_state_free": (None, (_Pointer,)),
    "regard_step": (
        _Int,
        (_Pointer, _Pointer, _Long, _Long, _Long, _Pointer, _Pointer, _Pointer, _Pointer, _Pointer, *_Error),
    ),
    "regard_select_rows": (_Int, (_Pointer, _Pointer, _Long, *_Error)),
    "regard_search": (_Int, (_Pointer, _Pointer, _Pointer, _Long, _Pointer, _Pointer, _Pointer, *_Error)),
    "regard_encode": (
        _Int,
        (_Pointer, _Pointer, _Pointer, _Pointer, _Long, _Pointer, _Long, _Long, _Pointer, _Pointer, *_Error),
    ),
    "regard_linear": (
        _Int,
        (_Text, _Pointer, _Long, _Long, _Pointer, _Long, _Pointer, _Long, _Long, _Int, _Pointer, *_Error),
    ),
    "regard_integer_sums": (_Int, (_Text, _Pointer, _Long, _Long, _Pointer, _Pointer, _Long, _Pointer)),
}

# Enums of the header: `CODES["activation"]["gelu"]` is `REGARD_ACT_GELU`.
CODES: dict[str, dict[str, int]] = {
    "precision": {"float32": 0, "bf16": 1, "int8": 2},
    "positions": {"sinusoidal": 0, "learned": 1, "rotary": 2, "none": 3, "alibi": 4, "relative": 5},
    "norm": {"layer": 0, "rms": 1, "rms_plus_one": 2},
    "norm_placement": {"pre": 0, "post": 1, "both": 2, "none": 3},
    "activation": {"identity": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5, "quick_gelu": 6},
    "pooling": {"mean": 0, "cls": 1, "max": 2},
    "site": {"encoder_self": 0, "decoder_self": 1, "decoder_cross": 2},
    "slot": {
        "source_embedding": 0,
        "target_embedding": 1,
        "source_positions": 2,
        "target_positions": 3,
        "token_types": 4,
        "embedding_norm": 5,
        "encoder_norm": 6,
        "decoder_norm": 7,
        "output": 8,
        "embedding_projection": 9,
        "encoder_self_norm": 16,
        "encoder_self_qkv": 17,
        "encoder_self_out": 18,
        "encoder_feed_forward_norm": 19,
        "encoder_feed_forward_up": 20,
        "encoder_feed_forward_down": 21,
        "encoder_self_output_norm": 22,
        "encoder_self_query_norm": 23,
        "encoder_self_key_norm": 24,
        "encoder_feed_forward_output_norm": 25,
        "encoder_relative_bias": 26,
        "decoder_self_norm": 32,
        "decoder_self_qkv": 33,
        "decoder_self_out": 34,
        "decoder_cross_norm": 35,
        "decoder_cross_query": 36,
        "decoder_cross_key_value": 37,
        "decoder_cross_out": 38,
        "decoder_feed_forward_norm": 39,
        "decoder_feed_forward_up": 40,
        "decoder_feed_forward_down": 41,
        "decoder_self_output_norm": 42,
        "decoder_self_query_norm": 43,
        "decoder_self_key_norm": 44,
        "decoder_cross_output_norm": 45,
        "decoder_cross_query_norm": 46,
        "decoder_cross_key_norm": 47,
        "decoder_feed_forward_output_norm": 48,
        "decoder_relative_bias": 49,
    },
    "part": {"weight": 0, "bias": 1, "scales": 2, "corrections": 3},
}


class CBlock(ctypes.Structure):
    """`regard_block`: settings that all blocks of a stack share, named as in `BlockConfig`."""

    _fields_ = (
        ("hidden_size", _Long),
        ("num_heads", _Long),
        ("num_kv_heads", _Long),
        ("head_size", _Long),
        ("value_size", _Long),
        ("feed_forward_size", _Long),
        ("activation", _Int),
        ("gated", _Int),
        ("norm", _Int),
        ("norm_placement", _Int),
        ("first_attention_norm", _Int),
        ("residual", _Int),
        ("qk_norm", _Int),
        ("cross_attention", _Int),
        ("norm_eps", ctypes.c_float),
        ("attention_scale", ctypes.c_float),
    )


class CLayer(ctypes.Structure):
    """`regard_layer`: what differs between the layers of a stack, named as in `LayerDescription`."""

    _fields_ = (
        ("block", _Long),
        ("window", _Long),
        ("rotary_dim", _Long),
        ("bias_table", _Long),
        ("num_buckets", _Long),
        ("max_distance", _Long),
        ("positions", _Int),
        ("interleaved", _Int),
        ("is_causal", _Int),
        ("theta", ctypes.c_float),
        ("factor", ctypes.c_float),
    )


class CModelShape(ctypes.Structure):
    """`regard_shape`: sizes and settings of a model."""

    _fields_ = (
        ("encoder", CBlock),
        ("decoder", CBlock),
        ("encoder_layers", _Pointer),
        ("decoder_layers", _Pointer),
        ("num_encoder_layers", _Long),
        ("num_decoder_layers", _Long),
        ("source_vocab_size", _Long),
        ("target_vocab_size", _Long),
        ("max_positions", _Long),
        ("position_offset", _Long),
        ("num_token_types", _Long),
        ("embedding_size", _Long),
        ("precision", _Int),
        ("positions", _Int),
        ("embedding_norm", _Int),
        ("share_embeddings", _Int),
        ("eos_id", _Int),
        ("embedding_scale", ctypes.c_float),
    )


class CArray(ctypes.Structure):
    """`regard_array`: one array of a model, identified by slot, part and layer."""

    _fields_ = (
        ("slot", _Int),
        ("part", _Int),
        ("layer", _Long),
        ("data", _Pointer),
        ("num_bytes", _Long),
    )


class CCapture(ctypes.Structure):
    """`regard_capture`: arrays that receive queries, keys and values of one site and layer."""

    _fields_ = (
        ("site", _Int),
        ("layer", _Long),
        ("query", _Pointer),
        ("key", _Pointer),
        ("value", _Pointer),
    )


class CAblation(ctypes.Structure):
    """`regard_ablation`: heads of one site and layer whose output is zero."""

    _fields_ = (
        ("site", _Int),
        ("layer", _Long),
        ("heads", _Pointer),
    )


class CAttentionOptions(ctypes.Structure):
    """`regard_attention_options`: what one call captures and ablates."""

    _fields_ = (
        ("captures", _Pointer),
        ("num_captures", _Long),
        ("ablations", _Pointer),
        ("num_ablations", _Long),
    )


class CSearchRequest(ctypes.Structure):
    """`regard_search_request`: greedy or beam search without constraints."""

    _fields_ = (
        ("beam", _Long),
        ("nbest", _Long),
        ("bos_id", _Int),
        ("max_lengths", _Pointer),
        ("num_max_lengths", _Long),
        ("length_norms", _Pointer),
        ("num_length_norms", _Long),
        ("forbidden", _Pointer),
        ("num_forbidden", _Long),
        ("always_allowed", _Pointer),
        ("num_always_allowed", _Long),
        ("lexicon_offsets", _Pointer),
        ("num_lexicon_offsets", _Long),
        ("lexicon", _Pointer),
        ("lexicon_size", _Long),
        ("cancelled", _Pointer),
    )


class CSearchResult(ctypes.Structure):
    """`regard_search_result`: arrays that receive the hypotheses."""

    _fields_ = (
        ("ids", _Pointer),
        ("lengths", _Pointer),
        ("scores", _Pointer),
        ("logprobs", _Pointer),
        ("finished", _Pointer),
    )


class Library:
    """Functions of the shared library."""

    def __init__(self, path: Path) -> None:
        self.handle = ctypes.CDLL(str(path))
        for name, (result_type, argument_types) in _SIGNATURES.items():
            function = getattr(self.handle, name)
            function.restype = result_type
            function.argtypes = argument_types
        if self.handle.regard_abi_version() != ABI_VERSION:
            raise OSError(f"{path} was built for another version of Regard")

    @property
    def instructions(self) -> list[str]:
        """Instruction sets of this processor, best first."""
        names: bytes = self.handle.regard_instruction_sets()
        return names.decode().split(",")

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that can fail; raise its error message where it does."""
        message = ctypes.create_string_buffer(_ERROR_SIZE)
        result = function(*arguments, message, _ERROR_SIZE)
        if not result:
            raise UsageError(f"the engine: {message.value.decode(errors='replace')}")
        return result


@cache
def _load_library_or_reason() -> Library | str:
    """Load the library once; the reason, where it cannot be loaded."""
    if not FILE.exists():
        return f"it was not built: {INSTALL}"
    try:
        return Library(FILE)
    except (OSError, AttributeError) as error:
        return f"it does not load ({error}): build it again by `make setup` or `pip install`"


def unavailable_reason() -> str:
    """Why the engine is not available; empty where it is.

    >>> isinstance(unavailable_reason(), str)
    True
    """
    library_or_reason = _load_library_or_reason()
    return library_or_reason if isinstance(library_or_reason, str) else ""


def load_library() -> Library:
    """Load the shared library; raise with the reason where it is not available."""
    library_or_reason = _load_library_or_reason()
    if isinstance(library_or_reason, str):
        raise UsageError(f"the engine is not available: {library_or_reason}")
    return library_or_reason


def select_instruction_set(name: str = "") -> str:
    """Select the instruction set by name, by the environment variable, or the best of this processor."""
    available = load_library().instructions
    requested = name or os.environ.get(INSTRUCTIONS_VARIABLE, "")
    if not requested:
        return available[0]
    if requested not in available:
        raise ConfigError(f"no instruction set {requested!r} for the engine: this processor has {', '.join(available)}")
    return requested


def pointer(array: NDArray[Any]) -> int:
    """Address of a contiguous array."""
    address: int = array.__array_interface__["data"][0]
    return address
