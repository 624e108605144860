"""Tensors of a folder that its model does not use: a warning names them; whole layers are refused."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from regard.checkpoint.weights import WeightReport
from regard.errors import CheckpointError, CheckpointWarning

BUFFER = "a buffer, not a weight"
TIED_COPY = "a tied copy"
UNUSED_POOLER = "the pooler, which this head lacks"
HEAD_REASON = "of the {} head"
_HARMLESS = (BUFFER, TIED_COPY, UNUSED_POOLER)
_INDEX = re.compile(r"^(?P<list>(?:[^.]*[^.\d][^.]*\.)+)(?P<index>\d+)(?=\.)")  # a module of a list: encoder.layer.4
_MAX_NAMES = 3  # that a warning lists
_is_allowed: ContextVar[bool] = ContextVar("is_allowed", default=False)


@contextmanager
def allow_unused_layers(is_allowed: bool = True) -> Iterator[None]:
    """Load folders although their models leave out whole layers of the weights."""
    token = _is_allowed.set(_is_allowed.get() or is_allowed)
    try:
        yield
    finally:
        _is_allowed.reset(token)


def check_unused_weights(path: Path, report: WeightReport, *, is_head_requested: bool = False) -> None:
    """Warn about tensors of a folder that are not used, and about what else its report notes; refuse whole layers.

    Buffers, tied copies and poolers are harmless; so are heads if the caller requested another one.
    """
    layers = find_unused_layers([*report.loaded, *report.renamed], report.ignored)
    if layers and not _is_allowed.get():
        raise CheckpointError(
            f"{path}: {len(layers)} whole layers of the weights are not used ({_list_names(layers)}), because "
            "config.json asks for fewer: correct it, or leave them out on purpose with --allow-unused "
            "(in Python allow_unused=True)"
        )
    names_by_reason: dict[str, list[str]] = {}
    for name in report.ignored:
        reason = report.reasons.get(name, "")
        is_other_head = reason.startswith(HEAD_REASON.partition("{")[0])
        if reason not in _HARMLESS and not (is_other_head and is_head_requested):
            names_by_reason.setdefault(reason, []).append(name)
    for reason, names in names_by_reason.items():
        suffix = f", {reason}" if reason else ""
        count = "1 weight is" if len(names) == 1 else f"{len(names)} weights are"
        warn_about([f"{path}: {count} not used{suffix}: {_list_names(names)}"])
    warn_about(note if str(path) in note else f"{path}: {note}" for note in report.notes)


def find_unused_layers(used: Iterable[str], unused: Iterable[str]) -> list[str]:
    """Layers none of whose weights are used, although other layers of the same list are.

    >>> find_unused_layers(["layer.0.weight", "layer.1.weight"], ["layer.1.mask", "layer.2.weight", "pooler.weight"])
    ['layer.2']
    """
    used_layers = {match[0] for match in map(_INDEX.match, used) if match}
    used_lists = {layer.rpartition(".")[0] for layer in used_layers}
    unused_layers = dict.fromkeys(match[0] for match in map(_INDEX.match, unused) if match)
    return [layer for layer in unused_layers if layer not in used_layers and layer.rpartition(".")[0] in used_lists]


def warn_about(messages: Iterable[str]) -> None:
    """Warn about a folder; the command line prints the messages alone."""
    for message in messages:
        warnings.warn(message, CheckpointWarning, stacklevel=3)


def _list_names(names: list[str]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")
