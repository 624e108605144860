"""The compiled library: where it is, what it offers, and how it is called."""

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
INTERFACE = 4  # of the library that this code calls
INSTALL = "install a C++ compiler (Debian: apt install g++ cmake) and repeat `make setup` or `pip install`"
VARIABLE = "REGARD_INSTRUCTIONS"  # environment variable that chooses an instruction set
_ROOM = 512  # bytes of a message

Numbers = NDArray[Any]
_Pointer, _Int, _Long, _Text = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {  # function → what it returns, what it takes
    "regard_interface": (_Int, ()),
    "regard_instructions": (_Text, ()),
    "regard_packed_bytes": (_Long, (_Long, _Long, _Int)),
    "regard_pack": (_Int, (_Pointer, _Long, _Long, _Int, _Pointer, _Pointer, _Pointer)),
    "regard_model_new": (_Pointer, (_Pointer, _Pointer, _Int, _Text, _Text, _Int)),
    "regard_model_free": (None, (_Pointer,)),
    "regard_start": (_Pointer, (_Pointer, _Pointer, _Pointer, _Int, _Text, _Int)),
    "regard_state_free": (None, (_Pointer,)),
    "regard_step": (_Int, (*(_Pointer,) * 2, _Int, _Int, *(_Pointer,) * 4, _Text, _Int)),
    "regard_select": (_Int, (_Pointer, _Pointer, _Int, _Text, _Int)),
    "regard_search": (_Int, (*(_Pointer,) * 3, _Int, _Pointer, _Pointer, _Text, _Int)),
    "regard_read": (_Int, (*(_Pointer,) * 4, _Int, _Pointer, _Int, _Int, _Pointer, _Text, _Int)),
    "regard_linear": (_Int, (_Text, _Pointer, _Int, _Int, *(_Pointer,) * 2, _Int, _Int, _Pointer, _Text, _Int)),
    "regard_integer_sums": (_Int, (_Text, _Pointer, _Int, _Int, _Pointer, _Pointer, _Int, _Pointer)),
}


class Shape(ctypes.Structure):
    """What a model is, as the library is told."""

    _fields_ = (
        *((name, _Int) for name in ("precision", "width")),
        *((name, _Int) for name in ("encoder_layers", "encoder_heads", "encoder_feedforward")),
        *((name, _Int) for name in ("decoder_layers", "decoder_heads", "decoder_feedforward")),
        *((name, _Int) for name in ("source_vocabulary", "target_vocabulary", "shared", "norm_before", "activation")),
        *((name, _Int) for name in ("positions", "places", "first_place", "types", "embedding_norm", "end")),
        ("epsilon", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


class Array(ctypes.Structure):
    """One of a model's arrays, as the library is told."""

    _fields_ = (("data", _Pointer), ("bytes", _Long))


class Plan(ctypes.Structure):
    """What a plain search is asked for, as the library is told."""

    _fields_ = (
        *((name, _Int) for name in ("beam", "nbest", "start")),
        *((name, _Pointer) for name in ("limits", "powers", "forbidden")),
        ("forbidden_count", _Int),
        ("common", _Pointer),
        ("common_count", _Int),
        *((name, _Pointer) for name in ("lexicon_offsets", "lexicon")),
    )


class Found(ctypes.Structure):
    """Where the answers of a search go."""

    _fields_ = tuple((name, _Pointer) for name in ("ids", "lengths", "scores", "totals", "finished"))


class Library:
    """The library's functions; one that fails raises what it says."""

    def __init__(self, path: Path) -> None:
        self.handle = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.handle, name)
            function.restype, function.argtypes = result, arguments
        if self.handle.regard_interface() != INTERFACE:
            raise OSError(f"{path} was built for another version of Regard")

    @property
    def instructions(self) -> list[str]:
        """The instruction sets of this processor, best first."""
        names: bytes = self.handle.regard_instructions()
        return names.decode().split(",")

    def checked(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns that writes a message behind its other arguments where it fails."""
        message = ctypes.create_string_buffer(_ROOM)
        made = function(*arguments, message, _ROOM)
        if not made:
            raise UsageError(f"the engine: {message.value.decode(errors='replace')}")
        return made


@cache
def _found() -> Library | str:
    """Return the library, or why there is none."""
    if not FILE.exists():
        return f"it was not built: {INSTALL}"
    try:
        return Library(FILE)
    except (OSError, AttributeError) as error:
        return f"it does not load ({error}): build it again by `make setup` or `pip install`"


def absence() -> str:
    """Return why there is no engine; nothing where there is one.

    >>> isinstance(absence(), str)
    True
    """
    found = _found()
    return found if isinstance(found, str) else ""


def library() -> Library:
    """Return the library; raises where it is absent."""
    found = _found()
    if isinstance(found, str):
        raise UsageError(f"there is no engine here: {found}")
    return found


def chosen_instructions(name: str = "") -> str:
    """Return the instruction set to compute with: the one of this name, of the environment, or the best."""
    wanted, offered = name or os.environ.get(VARIABLE, ""), library().instructions
    if wanted and wanted not in offered:
        raise ConfigError(f"no instruction set {wanted!r} for the engine: this processor has {', '.join(offered)}")
    return wanted or offered[0]


def pointer(numbers: Numbers) -> int:
    """Return where contiguous numbers are."""
    place: int = numbers.__array_interface__["data"][0]
    return place
