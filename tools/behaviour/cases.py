"""Cases: named functions whose outputs are digested one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

Outputs = Iterator[tuple[str, Any]]


@dataclass(frozen=True)
class Workspace:
    """A temporary folder; what several cases need is built once."""

    path: Path

    def build(self, name: str, builder: Callable[[Path], object]) -> Path:
        """The folder of this name, built by the first case that needs it."""
        folder = self.path / name
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            builder(folder)
        return folder

    def new(self, name: str) -> Path:
        """A path of which only the parent folder exists."""
        folder = self.path / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder


@dataclass(frozen=True)
class Case:
    """One model, backend or training run; every output becomes the digest `name/output`."""

    name: str
    run: Callable[[Workspace], Outputs]


def select_cases(cases: list[Case], pattern: str) -> list[Case]:
    """The cases whose name matches a shell pattern anywhere; all without a pattern.

    >>> [case.name for case in select_cases([Case("bert/span", iter), Case("gpt2", iter)], "bert")]
    ['bert/span']
    """
    return [case for case in cases if not pattern or fnmatchcase(case.name, f"*{pattern}*")]
