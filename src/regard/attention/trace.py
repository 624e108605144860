"""What is seen: a tap on `attend` that is open only while someone watches and never touches the output."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]


@dataclass
class Record:
    """The weights of one site; successive steps join along the query axis."""

    site: str
    mask: str
    parts: list[Weights] = field(default_factory=list)  # each [B, H, Q, K]

    @property
    def role(self) -> str:
        """`self`, `cross`, …: the last part of the site's name."""
        return self.site.rpartition(".")[2]

    @property
    def weights(self) -> Weights:
        """All weights seen, [B, H, Q, K]; a step that saw fewer keys has zeros at the others."""
        keys = max(part.shape[-1] for part in self.parts)
        wide = [np.pad(part, ((0, 0), (0, 0), (0, 0), (0, keys - part.shape[-1]))) for part in self.parts]
        return np.concatenate(wide, axis=2)


class Trace:
    """The records of what was watched, by site."""

    def __init__(self, only: str) -> None:
        self.only = only
        self.records: dict[str, Record] = {}

    def wants(self, site: str) -> bool:
        """Whether this site is watched."""
        return any(fnmatch.fnmatchcase(site, pattern) for pattern in self.only.split(","))

    def add(self, site: str, mask: str, weights: Weights) -> None:
        """File the weights [B, H, Q, K] under their site."""
        self.records.setdefault(site, Record(site, mask)).parts.append(weights)

    def __getitem__(self, site: str) -> Record:
        return self.records[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


_open: ContextVar[Trace | None] = ContextVar("regard_trace", default=None)


def is_watched() -> bool:
    """Whether a trace is open, whatever it wants to see."""
    return _open.get() is not None


def watching(site: str) -> Trace | None:
    """Return the open trace if it wants this site."""
    seen = _open.get()
    return seen if seen is not None and site and seen.wants(site) else None


@contextmanager
def trace(only: str = "*") -> Iterator[Trace]:
    """Watch the sites that match `only` (shell patterns, separated by commas) while the block runs.

    >>> import torch
    >>> from regard.attention.attend import attend
    >>> one = torch.ones(1, 1, 2, 4)
    >>> with trace("hop.*") as seen:
    ...     _ = attend(one, one, one, site="hop.0")
    >>> seen["hop.0"].weights.tolist()
    [[[[0.5, 0.5], [0.5, 0.5]]]]
    """
    seen = Trace(only)
    token = _open.set(seen)
    try:
        yield seen
    finally:
        _open.reset(token)
